/**
 * Makes the files of a machine, and reads and writes its state file. The program `tart` finds a machine in `vms/NAME` of its own folder. So the
 * disk, the firmware's variables and the configuration of a machine are there, and the machine's folder has its state and its logs.
 */
import { chmod, constants, copyFile, mkdir, open, rm, stat } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import * as z from 'zod';
import { displayOf, type Machine } from '../../../api/v1alpha1/machine.ts';
import { ReasonedError } from '../../../api/v1alpha1/reasons.ts';
import { isMissing, messageOf, undefinedIf } from '../../../base/errors.ts';
import { sync, writeWhole } from '../../../base/files.ts';
import { type JsonLimits, parseJson } from '../../../base/json.ts';
import { type BaseImage, TART_FILES } from '../../disks/disk.ts';
import type { MachineFolder, VmLaunchPlan, VmPlan } from '../driver.ts';
import { endSchema, processSchema, StateFile } from '../statefile.ts';
import { endInstallation, install, nameOf, type TartProgram } from './program.ts';

/** Name of the state file. It differs from the names of other drivers, so that each driver finds only its own machines. */
export const STATE_FILE = 'tart.json';

const stateSchema = z.object({
  version: z.literal(1),
  /** Operating system in the configuration of the image. A host runs at most two guests with macOS (`darwin`). */
  os: z.enum(['darwin', 'linux']),
  /** Path of the image from which the disk was cloned. */
  base: z.string(),
  /** ECID that was made for this machine. Absent if the machine has that of its image. */
  ecid: z.string().optional(),
  /** Identity that the VM asks for. The hypervisor sets no serial number. */
  hardwareIdentity: z.enum(['Consistent', 'Dynamic']).optional(),
  serialNumber: z.string().optional(),
  /** Position in the log `serial` at which the output of the last start begins. */
  logStart: z.number().int().min(0),
  /** Display of the last start, if its VM asks for one. */
  display: z.object({ width: z.number().int(), height: z.number().int(), dpi: z.number().int() }).optional(),
  /** Whether the hypervisor serves the screen since the last start. */
  screen: z.boolean().optional(),
  /** Filter for the packets of the guest since the last start. Absent if nothing is filtered. */
  filter: z
    .object({ mayReach: z.array(z.string()).readonly(), mayNotReach: z.array(z.string()).readonly() })
    .optional(),
  /** SSH keys of a guest with macOS since its last boot. `user` has got them. `fault` tells why nobody has got them yet. */
  keys: z
    .object({
      wanted: z.array(z.string()).readonly(),
      user: z.string().optional(),
      fault: z.string().optional(),
    })
    .optional(),
  /** State that the agent wants for the machine. `run` means that the agent has begun a start, and has requested no end since then. */
  intent: z.enum(['run', 'stop', 'suspend']),
  /** Identity of the machine's process. Absent while the process is being started, and while there is no process. */
  process: processSchema.optional(),
  /**
   * Whether the machine has a process, as far as the agent knows. True from the beginning of a start until the agent has noticed the end of
   * the process.
   */
  live: z.boolean(),
  end: endSchema.optional(),
});
export type TartState = z.infer<typeof stateSchema>;

export function stateFile(folder: string): StateFile<TartState> {
  return new StateFile(folder, { name: STATE_FILE, schema: stateSchema });
}

/** Names of the files of a machine in the folder of the program, which gives these names. */
const FILES = {
  ...TART_FILES,
  disk: 'disk.img',
  /** Memory of a suspended machine. The next start continues from it and removes it. */
  memory: 'state.vzvmsave',
} as const;

const FOLDER_MODE = 0o700;
const FILE_MODE = 0o600;
/** Limits of an image's configuration. It has a few dozen fields. An image is not trusted, so its configuration is not either. */
const CONFIG_LIMITS: JsonLimits = { bytes: 1024 * 1024, items: 8_192 };
/** Fields of an image's configuration that Berth reads. The first images had no field `os`, and all had macOS. */
const configSchema = z.looseObject({
  os: z.enum(['darwin', 'linux']).default('darwin'),
  ecid: z.string().optional(),
});

/** Returns the folder of a machine in the folder of the program. */
export function bundleOf(home: string, uid: string): string {
  return join(home, 'vms', nameOf(uid));
}

/**
 * Makes the files of a machine from an image. The disk is a copy-on-write copy, where the file system has such copies. `ecid` is that of the
 * same machine before a reset. Returns the content of the state file, which the caller writes. @throws ReasonedError `CreateFailed` when the image or the VM does not fit this driver.
 */
export async function makeFiles(
  bundle: string,
  { guest: { vm } }: VmPlan,
  base: BaseImage | undefined,
  ecid: string | undefined,
): Promise<TartState> {
  const config = await requireConfig(vm.os, base);
  const { path } = config;
  await rm(bundle, { recursive: true, force: true });
  await mkdir(bundle, { recursive: true, mode: FOLDER_MODE });
  await clone(path, join(bundle, FILES.disk));
  await clone(join(dirname(path), FILES.variables), join(bundle, FILES.variables));
  // The configuration comes last, because the program takes a folder without it for no machine.
  const macAddress = vm.hardware.macAddress.toLowerCase();
  const own = { ...config.document, macAddress, ...(ecid !== undefined && { ecid }) };
  await writeWhole(join(bundle, FILES.config), JSON.stringify(own));
  return newState(config.document.os, { vm, base: path, ecid });
}

/** Returns the state of a machine that has never run. */
function newState(
  os: TartState['os'],
  { vm: { hardwareIdentity, serialNumber }, ...known }: Pick<TartState, 'base' | 'ecid'> & { vm: Machine },
): TartState {
  const off = { logStart: 0, intent: 'stop', live: false } as const;
  return { version: 1, os, hardwareIdentity, serialNumber, ...known, ...off };
}

/** Returns whether the machine is made by an installation, and not as a clone. */
export function isInstalled({ guest: { vm } }: VmPlan): boolean {
  return vm.image?.type === 'ipsw';
}

/**
 * Installs macOS on the disk of a machine. Ends the installation of an agent that was killed meanwhile. Returns the content of the state file,
 * which the caller writes. @throws ReasonedError `CreateFailed` with the words of the program when the installation fails; the signal's reason
 * when the signal aborts.
 */
export async function installFiles(
  program: TartProgram,
  { uid, guest }: Pick<MachineFolder, 'uid'> & VmPlan,
  base: BaseImage | undefined,
  signal: AbortSignal | undefined,
): Promise<TartState> {
  const bundle = bundleOf(program.home, uid);
  const path = base?.path ?? '';
  // An installation that has outlived its agent would make the files again.
  await endInstallation(uid);
  await rm(bundle, { recursive: true, force: true });
  try {
    await install(program, uid, { path, gigabytes: gigabytes(guest.diskSizeBytes ?? 0), signal });
  } catch (error) {
    signal?.throwIfAborted();
    throw refuse(`macOS could not be installed: ${messageOf(error)}`);
  }
  const config = join(bundle, FILES.config);
  const document = await readConfig(config);
  const macAddress = guest.vm.hardware.macAddress.toLowerCase();
  await writeWhole(config, JSON.stringify({ ...document, macAddress }));
  return newState('darwin', { vm: guest.vm, base: path, ecid: document?.ecid });
}

/** Returns the ECID in the configuration of a machine. @throws Error when it has none. */
export async function ecidOf(bundle: string): Promise<string> {
  const { ecid } = (await readConfig(join(bundle, FILES.config))) ?? {};
  if (ecid === undefined) {
    throw new Error('The configuration of the machine has no ECID');
  }
  return ecid;
}

async function clone(from: string, to: string): Promise<void> {
  await copyFile(from, to, constants.COPYFILE_FICLONE);
  // Images can only be read.
  await chmod(to, FILE_MODE);
  await sync(to);
}

interface ImageConfig {
  /** Path of the image's disk. */
  path: string;
  document: z.infer<typeof configSchema>;
}

async function requireConfig(
  os: VmPlan['guest']['vm']['os'],
  base: BaseImage | undefined,
): Promise<ImageConfig> {
  const path = base === undefined ? undefined : join(dirname(base.path), FILES.config);
  const document = path === undefined ? undefined : await readConfig(path);
  if (base === undefined || document === undefined || base.format !== 'raw') {
    throw refuse(
      'A host with the driver tart runs only images in the layout of Tart, which have the configuration of a machine beside the disk',
    );
  }
  if (document.os === 'darwin' && os !== 'MacOS') {
    throw refuse(
      'The image has macOS. Create the VM with os: MacOS, because a host may run at most two such guests, and the cluster counts them by this field',
    );
  }
  return { path: base.path, document };
}

async function readConfig(path: string): Promise<ImageConfig['document'] | undefined> {
  const file = await undefinedIf(isMissing, open(path, 'r'));
  if (file === undefined) {
    return undefined;
  }
  try {
    const { size } = await file.stat();
    if (size > CONFIG_LIMITS.bytes) {
      throw new Error(`it has ${size} bytes, and the limit is ${CONFIG_LIMITS.bytes}`);
    }
    return configSchema.parse(parseJson(await file.readFile(), CONFIG_LIMITS));
  } catch (error) {
    throw refuse(`The configuration of the image cannot be used: ${messageOf(error)}`);
  } finally {
    await file.close();
  }
}

function refuse(message: string): ReasonedError {
  return new ReasonedError('CreateFailed', message);
}

/** Returns the path of the machine's disk. */
export function diskOf(bundle: string): string {
  return join(bundle, FILES.disk);
}

/** Returns whether the machine has memory from which its next start continues. */
export async function hasMemory(bundle: string): Promise<boolean> {
  return (await undefinedIf(isMissing, stat(join(bundle, FILES.memory)))) !== undefined;
}

/** Removes the memory of a suspended machine, so that its next start boots the guest. */
export async function forgetMemory(bundle: string): Promise<void> {
  await rm(join(bundle, FILES.memory), { force: true });
}

const MEBIBYTE = 1024 ** 2;
/** The program counts disks in decimal gigabytes. */
const GIGABYTE = 1000 ** 3;

function gigabytes(bytes: number): number {
  return Math.ceil(bytes / GIGABYTE);
}

/**
 * Returns the command that gives the machine the size and the display of its plan. A disk grows to whole gigabytes, and never shrinks.
 * `display` and `bundle` are those of the machine.
 */
export async function settingsOf(uid: string, plan: VmLaunchPlan, bundle: string): Promise<string[]> {
  const { cpu, memoryBytes, guest } = plan;
  const display = displayOf(guest.vm);
  const { size } = await stat(join(bundle, FILES.disk));
  const wanted = guest.diskSizeBytes ?? 0;
  const sized = [
    'set',
    nameOf(uid),
    '--cpu',
    String(cpu),
    '--memory',
    String(Math.floor(memoryBytes / MEBIBYTE)),
  ];
  return [
    ...sized,
    ...(display === undefined ? [] : ['--display', `${display.width}x${display.height}px`]),
    ...(wanted > size ? ['--disk-size', String(gigabytes(wanted))] : []),
  ];
}
