/**
 * Stand-in for the Android emulator, which cannot be had from package registries: a program of the tests behind the real program's contract. It has the
 * options, files, ports, console and last words that are known of the real program. It has no Android: it boots a Linux guest with Debian's adbd,
 * or answers ADB itself without a guest.
 */
import { spawn } from 'node:child_process';
import { connect } from 'node:net';
import { join } from 'node:path';
import { serveAdb } from './adb.ts';
import { Fatal, type Options, parseArguments } from './arguments.ts';
import { readToken, serveConsole } from './console.ts';
import { type Cue, Cues } from './cues.ts';
import * as files from './files.ts';
import { type GuestArchitecture, startGuest } from './guest.ts';
import { listen, type Ports } from './ports.ts';
import { type Avd, findAvd, listAvds, sdkRoot } from './places.ts';

const VERSION = 'Android emulator version 36.1.9.0 (build_id 0) (CL:N/A) (stand-in of the tests)';
const LEAST_MEMORY_MEBIBYTES = 2560;
const DEFAULT_ADB_SERVER_PORT = 5037;
const NO_DEVICE_CODE = 8;
const DEFAULT_ENDS_AFTER_MILLISECONDS = 500;
/** Life of lasting children: longer than any test, and not for ever if a test leaves them behind. */
const LASTING_SECONDS = '600';

/** Lasting children of the real program, and what keeps each away. */
const COMPANIONS: Record<string, (options: Options, cues: Cues) => boolean> = {
  netsimd: ({ withoutFeatures }, cues) =>
    withoutFeatures.has('BluetoothEmulation') && withoutFeatures.has('Uwb') && !cues.has('lasting-child'),
  crashpad_handler: ({ flags }) => flags.has('no-metrics'),
};

/** Arguments that the script of the SDK puts before those of the caller. */
interface Self {
  /** Path of the program in the SDK. */
  program: string;
  /** Architecture of the host for which the program is, as in `hw.cpu.arch`. */
  host: string;
  /** Architecture of the guest in the system images. */
  guest: GuestArchitecture;
}

interface Emulator {
  avd: Avd;
  host: string;
  options: Options;
  cues: Cues;
  imageFolder: string;
  guest: GuestArchitecture;
}

function log(level: 'INFO' | 'WARNING' | 'ERROR' | 'FATAL', text: string): void {
  process.stdout.write(`${level.padEnd(7)} | ${text}\n`);
}

/** Reads SDK and AVD. @throws Fatal as the real program refuses them. */
function prepare({ program, host, guest }: Self, options: Options): Emulator {
  const avd = findAvd(options.values.avd);
  const sdk = sdkRoot(program);
  if (sdk === undefined) {
    throw new Fatal('Cannot find AVD system path. Please define ANDROID_SDK_ROOT');
  }
  const cues = new Cues(join(program, '..'), avd.folder);
  const imageFolder = join(sdk, avd.config.get('image.sysdir.1') ?? 'none');
  if (!files.hasSystemImage(imageFolder) || cues.has('image-missing')) {
    throw new Fatal(`Broken AVD system path. Check your ANDROID_SDK_ROOT value [${sdk}]!`);
  }
  if (avd.config.get('hw.cpu.arch') !== host) {
    throw new Fatal(
      `Avd's CPU Architecture '${avd.config.get('hw.cpu.arch')}' is not supported by the QEMU2 emulator on ${host} host.`,
    );
  }
  return { avd, host, options, cues, imageFolder, guest };
}

/** @throws Fatal on the cue of a test. */
function failOnCue({ avd, host, cues, options }: Emulator): void {
  const expected: Partial<Record<Cue, string>> = {
    'no-acceleration': `${host} emulation currently requires hardware acceleration!\nCPU acceleration status: /dev/kvm is not found: VT disabled in BIOS or KVM kernel module not loaded`,
    'disk-full': `Your device does not have enough disk space to run avd: \`${avd.name}\``,
    'avd-locked': files.SAME_AVD,
    'port-taken': 'It seems too many emulator instances are running on this machine. Aborting.',
  };
  for (const [cue, text] of Object.entries(expected)) {
    if (cues.has(cue as Cue) && !(cue === 'no-acceleration' && options.values.accel === 'off')) {
      throw new Fatal(text);
    }
  }
}

/** Returns the guest's memory in MiB, which is raised to the least of its platform. */
function memoryOf({ avd, options }: Emulator): number {
  const asked = Number.parseInt(options.values.memory ?? avd.config.get('hw.ramSize') ?? '0', 10);
  if (asked < LEAST_MEMORY_MEBIBYTES) {
    log('WARNING', `Increasing RAM size to ${LEAST_MEMORY_MEBIBYTES}MB`);
  }
  return Math.max(asked, LEAST_MEMORY_MEBIBYTES);
}

async function run(emulator: Emulator): Promise<void> {
  log('INFO', VERSION);
  failOnCue(emulator);
  files.lock(emulator.avd);
  try {
    await start(emulator);
  } catch (error) {
    files.removeTraces(emulator.avd);
    throw error;
  }
}

async function start(emulator: Emulator): Promise<void> {
  const { avd, cues, options } = emulator;
  files.writeAvdFiles(avd, {
    'avd.name': avd.name,
    'hw.cpu.arch': avd.config.get('hw.cpu.arch') ?? '',
    'hw.cpu.ncore': options.values.cores ?? avd.config.get('hw.cpu.ncore') ?? 1,
    'hw.ramSize': memoryOf(emulator),
    'kernel.path': join(emulator.imageFolder, 'kernel-ranchu'),
    'disk.ramdisk.path': join(emulator.imageFolder, 'ramdisk.img'),
  });
  const life = new Life(emulator);
  const token = readToken();
  const id = options.values.id ?? avd.name;
  const facts = { avdName: avd.name, id, discoveryFile: '', kill: () => life.stop('kill') };
  const withoutGuest = cues.has('sleeping') || cues.has('asks-for-key');
  const device = {
    asksForKey: () => cues.has('asks-for-key') || !options.flags.has('skip-adb-auth'),
    property: (name: string) => (name === 'sys.boot_completed' && life.isBooted ? '1' : ''),
  };
  const ports = await listen(options, {
    console: (socket) => serveConsole(socket, token, facts),
    adb: withoutGuest ? (socket) => serveAdb(socket, device) : undefined,
  });
  startCompanions(options, cues);
  facts.discoveryFile = files.writeDiscovery({
    'port.serial': ports.console,
    'port.adb': ports.adb,
    'avd.name': avd.name,
    'avd.dir': avd.folder,
    'avd.id': id,
    cmdline: process.argv.map((argument) => JSON.stringify(argument)).join(' '),
  });
  tellAdbServer(ports);
  life.boot(ports, withoutGuest);
}

/** The time from the start until the end. */
class Life {
  isBooted = false;
  readonly #emulator: Emulator;
  #guest: { kill: () => void } | undefined;

  constructor(emulator: Emulator) {
    this.#emulator = emulator;
    for (const signal of ['SIGTERM', 'SIGINT'] as const) {
      process.on(signal, () => this.stop(signal));
    }
  }

  boot({ adb }: Ports, withoutGuest: boolean): void {
    const { cues, guest, imageFolder, options } = this.#emulator;
    const bootAfter = cues.number('boot-after', 0);
    if (cues.has('ends-during-boot')) {
      const end = () => this.#end(1, 'Stand-in: the emulator ends during the boot on cue');
      setTimeout(end, cues.number('ends-during-boot', DEFAULT_ENDS_AFTER_MILLISECONDS));
    }
    if (withoutGuest) {
      setTimeout(() => this.#bootWhenAllowed(), bootAfter);
      return;
    }
    this.#guest = startGuest({
      guest,
      imageFolder,
      adbPort: adb,
      bootAfter: cues.has('never-boots') ? undefined : bootAfter,
      onLine: (line) => {
        if (options.flags.has('show-kernel')) {
          process.stdout.write(`${line}\n`);
        }
      },
      onBooted: () => this.#booted(),
      onEnd: (code) => this.#end(code === 0 ? 0 : 1, `The guest's QEMU ended with code ${code}`),
    });
  }

  /** Ends the emulator quietly. */
  stop(why: string): void {
    if (this.#emulator.cues.has('hangs-at-kill')) {
      log('WARNING', `Stand-in: ${why} does nothing on cue`);
      return;
    }
    log('INFO', 'Wait for emulator to shut down completely');
    this.#end(0);
  }

  #bootWhenAllowed(): void {
    if (this.#emulator.cues.has('never-boots')) {
      setTimeout(() => this.#bootWhenAllowed(), 100);
    } else {
      this.#booted();
    }
  }

  #booted(): void {
    this.isBooted = true;
    files.writeBootCompleted(this.#emulator.avd);
    log('INFO', `Boot completed in ${Math.round(performance.now())} ms`);
  }

  #end(code: number, expected?: string): void {
    if (code !== 0 && expected !== undefined) {
      log('FATAL', expected);
    }
    this.#guest?.kill();
    files.removeTraces(this.#emulator.avd);
    process.exit(code);
  }
}

/** Tells an ADB server about this emulator, as the real program does. Nobody listens on that port in most tests. */
function tellAdbServer({ adb }: Ports): void {
  const text = `host:emulator:${adb}`;
  const socket = connect(
    Number(process.env['ANDROID_ADB_SERVER_PORT'] ?? DEFAULT_ADB_SERVER_PORT),
    '127.0.0.1',
    () => socket.end(`${text.length.toString(16).padStart(4, '0')}${text}`),
  );
  socket.on('error', () => undefined);
  socket.resume();
}

/** Starts children in sessions of their own. They outlive the emulator. */
function startCompanions(options: Options, cues: Cues): void {
  for (const [name, isKeptAway] of Object.entries(COMPANIONS)) {
    if (!isKeptAway(options, cues)) {
      spawn('sleep', [LASTING_SECONDS], { argv0: name, detached: true, stdio: 'ignore' }).unref();
    }
  }
}

async function main(self: Self, args: readonly string[]): Promise<void> {
  const options = parseArguments(args);
  if (options.flags.has('version')) {
    process.stdout.write(`${VERSION}\n`);
  } else if (options.flags.has('list-avds')) {
    process.stdout.write(
      listAvds()
        .map((name) => `${name}\n`)
        .join(''),
    );
  } else if (options.flags.has('accel-check')) {
    const isReady = !new Cues(join(self.program, '..')).has('no-acceleration');
    const answer = isReady ? 'KVM (version 12) is installed and usable.' : '/dev/kvm is not found';
    process.stdout.write(`accel:\n${isReady ? 0 : NO_DEVICE_CODE}\n${answer}\naccel\n`);
    process.exitCode = isReady ? 0 : NO_DEVICE_CODE;
  } else {
    await run(prepare(self, options));
  }
}

const [, , program = '', host = '', guest = '', ...args] = process.argv;
try {
  await main({ program, host, guest: guest as GuestArchitecture }, args);
} catch (error) {
  if (!(error instanceof Fatal)) {
    throw error;
  }
  log('FATAL', error.message);
  process.exit(1);
}
