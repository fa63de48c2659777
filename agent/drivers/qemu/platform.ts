/**
 * Finds the guest architectures that this host can run. For each architecture, finds QEMU's program, machine type and firmware, the fastest
 * accelerator that works, and the screens that QEMU can give to guests. The existence of /dev/kvm proves nothing, because a guest can hang
 * before its first instruction. So the agent tries each accelerator with a guest of a few instructions, which powers itself off. The results
 * are saved, so that a restarted agent does not spend seconds on trying them again.
 */
import { createHash } from 'node:crypto';
import { mkdir, mkdtemp, readFile, rm, stat, truncate, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { Logger } from 'pino';
import { ReasonedError } from '../../../api/v1alpha1/reasons.ts';
import { isMissing, isOfSystem, undefinedIf } from '../../../base/errors.ts';
import { findProgram, ProgramError, run } from '../../../base/exec.ts';
import { writeWhole } from '../../../base/files.ts';
import { hostBootId } from '../../processes/process.ts';
import type { Architecture } from '../driver.ts';
import { canPassSockets } from './dbusconnection.ts';

interface Firmware {
  code: string;
  /** Path of the template of the firmware's variables. Each machine has its own copy of this file, and writes to the copy. */
  variables: string;
}

/** Capabilities of this host for one architecture. {@link HostPlatforms} finds these capabilities. */
export interface GuestPlatform {
  architecture: Architecture;
  binary: string;
  /** Newest versioned machine type, for example `pc-q35-7.2`. */
  machineType: string;
  accelerator: 'kvm' | 'hvf' | 'tcg';
  /** UEFI firmware; absent for amd64, which starts with the BIOS of QEMU. */
  firmware: Firmware | undefined;
  display: DisplaySupport;
  /** Whether QEMU changes to another user by its option `-run-with`. Earlier versions of QEMU have the option `-runas` instead. */
  runWith: boolean;
  /** Version of QEMU with the version of its package, for example `7.2.22 (Debian 1:7.2+dfsg-7+deb12u18)`. */
  version: string;
  /** Whether QEMU can open the file with a guest's memory read-only. */
  readOnlyMemory: boolean;
}

/** Screen features of this host's QEMU. */
interface DisplaySupport {
  /** Whether QEMU has the graphics card `virtio-vga`. QEMU can set the DPI of this card, but not of the older card `VGA`. */
  virtioVga: boolean;
  /** Whether QEMU has a D-Bus display, over which the agent sets the DPI. */
  dbus: boolean;
  /** Largest size in pixels that VNC shows. */
  vncMaximum: { width: number; height: number };
}

/** Names of the programs of QEMU. */
export const BINARIES: Record<Architecture, string> = {
  amd64: 'qemu-system-x86_64',
  arm64: 'qemu-system-aarch64',
};

/**
 * Patterns that match only those machine types of QEMU that have a version. If a machine had a type without a version (an alias), an
 * upgrade of QEMU would change the machine's hardware.
 */
const MACHINE_TYPE_PATTERNS: Record<Architecture, RegExp> = {
  amd64: /^(pc-q35-(\d+)\.(\d+)) /,
  arm64: /^(virt-(\d+)\.(\d+)) /,
};

/** Paths at which distributions and Homebrew install the UEFI firmware for ARM machines. */
const ARM_FIRMWARE: Firmware[] = [
  { code: '/usr/share/AAVMF/AAVMF_CODE.fd', variables: '/usr/share/AAVMF/AAVMF_VARS.fd' },
  {
    code: '/usr/share/edk2/aarch64/QEMU_EFI-pflash.raw',
    variables: '/usr/share/edk2/aarch64/vars-template-pflash.raw',
  },
  {
    code: '/opt/homebrew/share/qemu/edk2-aarch64-code.fd',
    variables: '/opt/homebrew/share/qemu/edk2-arm-vars.fd',
  },
  {
    code: '/usr/local/share/qemu/edk2-aarch64-code.fd',
    variables: '/usr/local/share/qemu/edk2-arm-vars.fd',
  },
];

async function findArmFirmware(): Promise<Firmware | undefined> {
  for (const firmware of ARM_FIRMWARE) {
    if ((await exists(firmware.code)) && (await exists(firmware.variables))) {
      return firmware;
    }
  }
  return undefined;
}

/**
 * Returns QEMU's processor model for a guest, with all features that the accelerator offers. Emulated ARM guests get the model of a
 * real processor, because QEMU's own model `max` is far slower.
 */
export function cpuModel(platform: Pick<GuestPlatform, 'architecture' | 'accelerator'>): string {
  if (platform.accelerator !== 'tcg') {
    return 'host';
  }
  return platform.architecture === 'amd64' ? 'max' : 'cortex-a72';
}

async function exists(path: string): Promise<boolean> {
  return (await undefinedIf(isOfSystem, stat(path))) !== undefined;
}

/**
 * Time limit to try a guest with a hardware accelerator. The guest powers itself off 0.1 s after its start. If it still runs after
 * 5 s, the accelerator does not work.
 */
const HARDWARE_TIMEOUT_MILLISECONDS = 5_000;
/** Time limit to try a guest with emulation. Working emulation can be slow if other programs use the processor. */
const EMULATION_TIMEOUT_MILLISECONDS = 30_000;
/** Time limit of a program that prints its version or help. The program needs about 50 ms, or seconds on an overloaded host. */
const HELP_TIMEOUT_MILLISECONDS = 30_000;
/** Size of the largest screen that VNC shows, in pixels. QEMU cuts off the rest of a larger screen. */
const VNC_MAXIMUM = { width: 5120, height: 2160 };
const FORMER_VNC_MAXIMUM = { width: 2560, height: 2048 };
/** QEMU 9.1 is the first version with the limit {@link VNC_MAXIMUM}. Earlier versions have the limit {@link FORMER_VNC_MAXIMUM}. */
const LARGE_VNC = { major: 9, minor: 1 };
/** QEMU 9.1 is the first version whose option `-run-with` can change the user. QEMU 10.0 no longer has the option `-runas`. */
const RUN_WITH = { major: 9, minor: 1 };
/** QEMU 8.2 is the first version that can open the file with a guest's memory read-only (`rom=off`). */
const READ_ONLY_MEMORY = { major: 8, minor: 2 };
/** Longest text that counts as the version of a QEMU that names its version in another form. */
const VERSION_CHARACTERS = 200;

/**
 * Machine code of the test guest for amd64, which shows whether an accelerator works: `mov ecx, 50000000; dec ecx; jnz -4`, then
 * `mov al, 0x10; out 0xf4, al; hlt`. The device `isa-debug-exit` turns 0x10 into QEMU's exit code (0x10 << 1) | 1.
 *
 * The loop detects a KVM that is too slow. A processor finishes the loop in hundredths of a second. If this host is itself a virtual
 * machine, KVM sometimes lacks hardware support, and interprets the instructions instead. The loop then takes minutes, and the boot of a
 * real guest takes even longer.
 */
const BIOS_GUEST = Buffer.from('66b980f0fa02664975fcb010e6f4f4ebfd', 'hex');
const BIOS_GUEST_EXIT_CODE = 0x21;
const SECTOR_BYTES = 512;
/**
 * Size in bytes of the disk from which the test guest for amd64 boots. SeaBIOS does not boot from a disk smaller than one cylinder (516,096
 * bytes).
 */
const BIOS_DISK_BYTES = 4 * 1024 * 1024;
/**
 * Machine code of the test guest for arm64, which shows whether an accelerator works: `mov w0, #0x84000008; hvc #0; b .`. The code calls
 * PSCI SYSTEM_OFF, so QEMU ends with exit code 0.
 */
const ARM_GUEST = Buffer.from('000180520080b072020000d400000014', 'hex');

export interface HostPlatformsOptions {
  dataDirectory: string;
  logger: Logger;
  /** Architecture of machines that name no architecture. The default is the host's own architecture. */
  architecture?: Architecture | undefined;
}

/**
 * Finds the platforms of this host: guest architectures, each with a working accelerator. They are tried only at the first request, because
 * the trial takes seconds.
 */
export class HostPlatforms {
  readonly #options: HostPlatformsOptions;
  #found: { key: string; platforms: Promise<GuestPlatform[]> } | undefined;

  constructor(options: HostPlatformsOptions) {
    this.#options = options;
  }

  /** Returns the platforms of this host. They are tried again if QEMU or the rights of the agent have changed since the last request. */
  async all(): Promise<GuestPlatform[]> {
    const binaries = await findBinaries();
    const key = await cacheKey([...binaries.values()]);
    // There must be no `await` between this check and the assignment, so that simultaneous requests share one trial.
    if (this.#found?.key !== key) {
      this.#found = { key, platforms: findPlatforms(binaries, key, this.#options) };
    }
    const { platforms } = this.#found;
    let found: GuestPlatform[] = [];
    try {
      found = await platforms;
      return found;
    } finally {
      // If QEMU runs no guest at all, perhaps because its upgrade is under way, the next request tries the platforms again. Working
      // platforms are kept, because a trial beside running guests can fail although the accelerator works.
      if (found.length === 0 && binaries.size > 0 && this.#found?.platforms === platforms) {
        this.#found = undefined;
      }
    }
  }

  /**
   * Returns the platform for guests of an architecture. If `architecture` is undefined, the guests have the default architecture.
   *
   * @throws ReasonedError when the host cannot run guests of that architecture.
   */
  async of(architecture: Architecture | undefined): Promise<GuestPlatform> {
    const native = this.#options.architecture ?? (process.arch === 'arm64' ? 'arm64' : 'amd64');
    const wanted = architecture ?? native;
    const platform = (await this.all()).find((candidate) => candidate.architecture === wanted);
    if (platform === undefined) {
      throw new ReasonedError('StartFailed', `This host cannot run ${wanted} guests with QEMU`);
    }
    return platform;
  }
}

/**
 * Returns the saved results of an earlier trial with the same key. If there are no such results, tries the platforms and saves the new
 * results.
 */
async function findPlatforms(
  binaries: ReadonlyMap<Architecture, string>,
  key: string,
  options: HostPlatformsOptions,
): Promise<GuestPlatform[]> {
  const saved = await readPlatforms(options.dataDirectory, key);
  if (saved !== undefined) {
    return saved;
  }
  const trials: Trial[] = [];
  for (const [architecture, binary] of binaries) {
    trials.push(await probeArchitecture(architecture, binary, options));
  }
  const platforms = trials.flatMap(({ platform }) => platform ?? []);
  const isRefused = trials.some((trial) => trial.isRefused);
  if (platforms.length > 0 || !isRefused) {
    await savePlatforms(options.dataDirectory, { key, platforms, isRefused });
  }
  return platforms;
}

async function findBinaries(): Promise<Map<Architecture, string>> {
  const found = new Map<Architecture, string>();
  for (const architecture of ['amd64', 'arm64'] as const) {
    const path = await findProgram(BINARIES[architecture]);
    if (path !== undefined) {
      found.set(architecture, path);
    }
  }
  return found;
}

/** Result of the trial of one architecture. `isRefused` tells whether an accelerator did not work. */
interface Trial {
  platform?: GuestPlatform;
  isRefused: boolean;
}

async function probeArchitecture(
  architecture: Architecture,
  binary: string,
  { dataDirectory, logger }: Pick<HostPlatformsOptions, 'dataDirectory' | 'logger'>,
): Promise<Trial> {
  const firmware = architecture === 'arm64' ? await findArmFirmware() : undefined;
  if (architecture === 'arm64' && firmware === undefined) {
    logger.warn(
      { architecture },
      'No UEFI firmware was found, so guests of this architecture cannot run here',
    );
    return { isRefused: false };
  }
  await mkdir(dataDirectory, { recursive: true });
  const work = await mkdtemp(join(dataDirectory, 'probe-'));
  try {
    const machineType = await newestMachineType(architecture, binary);
    if (machineType === undefined) {
      logger.warn(
        { architecture, binary },
        'The agent does not use this QEMU, because it offers no machine type with a version',
      );
      return { isRefused: false };
    }
    let isRefused = false;
    for (const accelerator of candidates(architecture)) {
      const refusal = await tryGuest({ architecture, binary, machineType, accelerator, firmware }, work);
      if (refusal === undefined) {
        const features = await probeFeatures(binary);
        const platform = { architecture, binary, machineType, accelerator, firmware, ...features };
        return { platform, isRefused };
      }
      isRefused = true;
      logger.warn({ architecture, accelerator, refusal }, 'An accelerator does not work on this host');
    }
    return { isRefused };
  } finally {
    await rm(work, { recursive: true, force: true });
  }
}

function candidates(architecture: Architecture): GuestPlatform['accelerator'][] {
  const native = process.arch === 'x64' ? 'amd64' : process.arch;
  if (native !== architecture) {
    return ['tcg'];
  }
  return process.platform === 'darwin' ? ['hvf', 'tcg'] : ['kvm', 'tcg'];
}

async function newestMachineType(architecture: Architecture, binary: string): Promise<string | undefined> {
  const help = await run(binary, ['-machine', 'help'], { timeoutMilliseconds: HELP_TIMEOUT_MILLISECONDS });
  const versions = help
    .split('\n')
    .map((line) => MACHINE_TYPE_PATTERNS[architecture].exec(line))
    .filter((match) => match !== null)
    .map(([, name, major, minor]) => ({ name: name ?? '', order: Number(major) * 1000 + Number(minor) }))
    .sort((left, right) => right.order - left.order);
  return versions[0]?.name;
}

/**
 * Tries a small guest on a platform. Returns undefined if the guest ran and powered itself off. Otherwise returns the reason for the
 * failure.
 */
async function tryGuest(
  platform: Omit<GuestPlatform, keyof Features>,
  work: string,
): Promise<string | undefined> {
  const guest = join(work, 'guest');
  const expected = platform.architecture === 'amd64' ? BIOS_GUEST_EXIT_CODE : 0;
  const machine = `${platform.machineType},accel=${platform.accelerator}`;
  const parameters = ['-nodefaults', '-no-user-config', '-display', 'none', '-m', '64M'];
  parameters.push('-machine', machine, '-cpu', cpuModel(platform));
  if (platform.architecture === 'amd64') {
    const sector = Buffer.alloc(SECTOR_BYTES);
    BIOS_GUEST.copy(sector);
    sector.writeUInt16LE(0xaa55, SECTOR_BYTES - 2);
    await writeFile(guest, sector);
    await truncate(guest, BIOS_DISK_BYTES);
    parameters.push('-device', 'isa-debug-exit,iobase=0xf4,iosize=1');
    parameters.push('-drive', `file=${guest.replaceAll(',', ',,')},format=raw,if=none,id=disk,readonly=on`);
    parameters.push('-device', 'virtio-blk-pci,drive=disk,bootindex=0');
  } else {
    await writeFile(guest, ARM_GUEST);
    parameters.push('-kernel', guest);
  }
  const timeoutMilliseconds =
    platform.accelerator === 'tcg' ? EMULATION_TIMEOUT_MILLISECONDS : HARDWARE_TIMEOUT_MILLISECONDS;
  try {
    await run(platform.binary, parameters, { timeoutMilliseconds, name: 'the guest' });
    return expected === 0 ? undefined : 'QEMU ended with code 0 instead of the exit code of the test guest';
  } catch (error) {
    if (!(error instanceof ProgramError)) {
      throw error;
    }
    return error.exitCode === expected ? undefined : error.message;
  }
}

type Features = Pick<GuestPlatform, 'display' | 'runWith' | 'version' | 'readOnlyMemory'>;

/** Asks QEMU's program on this host which screens it can give its guests, and how it changes its user. */
async function probeFeatures(binary: string): Promise<Features> {
  const ask = async (...parameters: string[]) =>
    await run(binary, parameters, { timeoutMilliseconds: HELP_TIMEOUT_MILLISECONDS });
  const [version, displays, devices] = await Promise.all([
    ask('-version'),
    ask('-display', 'help'),
    ask('-device', 'help'),
  ]);
  return {
    display: displaySupport({ version, displays, devices }),
    runWith: isSince(version, RUN_WITH),
    version: /version (.+)/.exec(version)?.[1] ?? version.slice(0, VERSION_CHARACTERS),
    readOnlyMemory: isSince(version, READ_ONLY_MEMORY),
  };
}

/** Returns the screen features of QEMU. `said` contains QEMU's output for `-version`, `-display help` and `-device help`. */
export function displaySupport(said: { version: string; displays: string; devices: string }): DisplaySupport {
  return {
    virtioVga: said.devices.includes('"virtio-vga"'),
    dbus: /^dbus$/m.test(said.displays) && canPassSockets(),
    vncMaximum: isSince(said.version, LARGE_VNC) ? VNC_MAXIMUM : FORMER_VNC_MAXIMUM,
  };
}

/** Returns whether QEMU has the version `first` or a later one. `said` is QEMU's output for `-version`. */
function isSince(said: string, first: { major: number; minor: number }): boolean {
  const [, major, minor] = /version (\d+)\.(\d+)/.exec(said) ?? [];
  return Number(major) > first.major || (Number(major) === first.major && Number(minor) >= first.minor);
}

/** Number of the format of the saved results. An agent with another number ignores these results, and tries the platforms again. */
const CACHE_FORMAT = 5;
/**
 * If an accelerator did not work, the agent uses the saved results only for this time. After that, a starting agent tries the accelerators
 * again. The cause of the failure can be temporary, for example an overloaded host after its boot.
 */
const REFUSAL_MILLISECONDS = 3_600_000;

interface Saved {
  key: string;
  platforms: GuestPlatform[];
  /** Time of the trial, in milliseconds since the epoch. Absent if no accelerator failed. */
  refusedAt?: number;
}

/**
 * Returns the key under which results are saved. Results with another key are no longer used. The key changes when the host boots again,
 * and when the agent gets another user or other groups. The key also changes when a QEMU program of `binaries`, the firmware or /dev/kvm is
 * replaced or gets other rights.
 */
async function cacheKey(binaries: readonly string[]): Promise<string> {
  const firmware = await findArmFirmware();
  const stamps = await Promise.all([...binaries, '/dev/kvm', firmware?.code ?? ''].map(fileStamp));
  const user = [process.getuid?.(), process.getgid?.(), process.getgroups?.().toSorted((a, b) => a - b)];
  const text = JSON.stringify([CACHE_FORMAT, await hostBootId(), user, ...stamps]);
  return createHash('sha256').update(text).digest('hex');
}

/** Returns a text that changes when the file at `path`, its owner or its mode changes. Returns undefined if there is no file. */
async function fileStamp(path: string): Promise<string | undefined> {
  const found = await undefinedIf(isMissing, stat(path));
  return found && `${path}:${found.size}:${found.mtimeMs}:${found.ctimeMs}`;
}

async function readPlatforms(dataDirectory: string, key: string): Promise<GuestPlatform[] | undefined> {
  const text = (await undefinedIf(isMissing, readFile(fileIn(dataDirectory), 'utf8'))) ?? '{}';
  const saved = JSON.parse(text) as Partial<Saved>;
  return saved.key === key && isCurrent(saved.refusedAt) ? saved.platforms : undefined;
}

/** Saves the results of a trial. `isRefused` tells whether an accelerator did not work. */
async function savePlatforms(
  dataDirectory: string,
  { isRefused, ...trial }: { key: string; platforms: GuestPlatform[]; isRefused: boolean },
): Promise<void> {
  const saved: Saved = isRefused ? { ...trial, refusedAt: Date.now() } : trial;
  await mkdir(dataDirectory, { recursive: true });
  await writeWhole(fileIn(dataDirectory), JSON.stringify(saved));
}

function isCurrent(refusedAt: number | undefined): boolean {
  return refusedAt === undefined || Math.abs(Date.now() - refusedAt) < REFUSAL_MILLISECONDS;
}

function fileIn(dataDirectory: string): string {
  return join(dataDirectory, 'platforms.json');
}
