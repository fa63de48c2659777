/**
 * Starts a QEMU process, which continues to run when the agent ends. Also finds the lines of its log that tell why the process has ended.
 */
import type { RunAs } from '../../../base/exec.ts';
import { logTail } from '../../console/input.ts';
import { withLogWriter } from '../../console/logwriter.ts';
import type { MachineLimits } from '../../processes/cgroup.ts';
import type { OwnRoot } from '../../processes/ownroot.ts';
import type { MachineFolder, VmLaunchPlan } from '../driver.ts';
import { type Launched, launch, type ProcessContext, type StartReasons } from '../machineprocess.ts';
import { type CommandLine, commandLine, type DevicePlan } from './arguments.ts';
import { giveDisk, requireOwnDisk } from './files.ts';
import type { GuestPlatform } from './platform.ts';
import { diskFile, type MachineFile } from './state.ts';

/** Objects and settings that all machines of this driver share. */
export interface MachineContext extends ProcessContext {
  /** Root directory of the machines' processes, if they do not share the agent's root directory. */
  ownRoot: OwnRoot | undefined;
  /** Whether the agent is root. If true, QEMU starts as root, and changes to another user when it has opened its files and sockets. */
  isRoot: boolean;
  /**
   * Linux group (gid) with the right to read images. Programs that read a machine's disk get this group, because the disk is based on an
   * image. Undefined if the agent is not root.
   */
  readers: number | undefined;
  /** Number of bytes of the file system that a merge of layers leaves free. */
  minimumFree: number;
}

/**
 * Environment variables of QEMU. They need not contain the folder of QEMU's modules (accelerators, displays), because the path of this
 * folder is built into QEMU.
 */
const ENVIRONMENT = { PATH: '/usr/sbin:/usr/bin:/sbin:/bin', LC_ALL: 'C' };
export interface MachineStart {
  plan: DevicePlan & Pick<VmLaunchPlan, 'cpu' | 'memoryBytes'>;
  state: MachineFile;
  platform: GuestPlatform;
  /** Whether the process waits after its start until the agent sends the memory of the suspended machine. */
  incoming: boolean;
  memory?: CommandLine['memory'];
}

/**
 * Checks the machine's disk, makes the machine's user the owner of the disk, and starts the process. @throws ReasonedError when the check
 * refuses the disk or the process does not start.
 */
export async function launchMachine(
  folder: MachineFolder,
  start: MachineStart,
  context: Pick<MachineContext, 'cgroups' | 'ownRoot'>,
): Promise<Launched> {
  const { plan, state, platform, incoming, memory } = start;
  const { cpu, memoryBytes } = state.launched ?? plan;
  // The memory of a suspended machine fits only the accelerator with which the machine was started. Since then, the host can have found
  // another one, for example because somebody has corrected the rights of /dev/kvm.
  const accelerator = state.launched?.accelerator ?? platform.accelerator;
  const started = { ...platform, accelerator };
  const { runAs } = plan;
  const { uid, path } = folder;
  await prepareDisk(path, state, runAs);
  const sizes = { cpu, memoryBytes };
  const parameters = commandLine({ uid, plan, state, platform: started, ...sizes, runAs, incoming, memory });
  const hasScreen = state.launched?.screen?.card !== undefined;
  const limits = limitsOf({ cpu, memoryBytes, accelerator, hasScreen });
  const logged = withLogWriter([platform.binary, ...parameters]);
  const command = context.ownRoot?.enclose({ folder: path, files: imagesOf(start) }, logged) ?? logged;
  const options = { name: 'hypervisor', command, environment: ENVIRONMENT, limits };
  return await launch(folder, options, context.cgroups);
}

/** Returns the paths of the files outside of the machine's folder that its process opens. */
function imagesOf({ plan, state, memory }: MachineStart): string[] {
  // A memory file that the process writes is in the machine's folder.
  const paths = [
    state.base?.path,
    plan.guest.iso?.path,
    memory?.isShared === false ? memory.path : undefined,
  ];
  return paths.filter((path) => path !== undefined);
}

async function prepareDisk(folder: string, state: MachineFile, runAs: RunAs | undefined): Promise<void> {
  if (state.diskBytes !== undefined) {
    await requireOwnDisk(folder, state);
  }
  if (runAs !== undefined) {
    await giveDisk(folder, runAs, diskFile(state));
  }
}

const MEBIBYTE = 1024 ** 2;
/** Memory in bytes that QEMU uses for its code, devices, screen and disk cache. The measurement is in docs/develop/performance.md. */
const PROCESS_BYTES = 256 * MEBIBYTE;
/** Memory that QEMU uses for the stacks and the state of one virtual processor, in bytes. */
const PROCESSOR_BYTES = 16 * MEBIBYTE;
/**
 * Memory that QEMU uses for each byte of the guest's memory, in bytes. Page tables need 1/512, and each bitmap of written pages needs
 * 1/32768. The rest is a safety margin.
 */
const MEMORY_SHARE = 1 / 64;
/**
 * Largest memory in bytes that a guest can use in its graphics card. The number is QEMU's default (`max_hostmem`), and is enough for
 * several screens of 3840×2160.
 */
const SCREEN_BYTES = 256 * MEBIBYTE;
/**
 * Memory that QEMU uses for translated code when it emulates the processor, in bytes. QEMU keeps at most 1 GiB of such code (`tb-size`).
 */
const TRANSLATION_BYTES = 1024 * MEBIBYTE;
/**
 * Largest number of QEMU's threads in addition to one thread for each virtual processor. Up to 64 threads are for the disk, and other
 * threads are for screen, timers and copies.
 */
const THREADS = 128;

/** Returns the limits of memory, processes and CPU for the process of one machine on its host. */
function limitsOf(launched: {
  cpu: number;
  memoryBytes: number;
  accelerator: string;
  hasScreen: boolean;
}): MachineLimits {
  const { cpu, memoryBytes, accelerator, hasScreen } = launched;
  const own = PROCESS_BYTES + cpu * PROCESSOR_BYTES + Math.ceil(memoryBytes * MEMORY_SHARE);
  const overhead = own + (accelerator === 'tcg' ? TRANSLATION_BYTES : 0) + (hasScreen ? SCREEN_BYTES : 0);
  return { memoryBytes: memoryBytes + overhead, processes: THREADS + cpu, cpu };
}

/**
 * Limits of the log lines in a message: the number of bytes, and the number of lines. With these limits, the lines and other text fit into
 * the message of a Pod's container, which can have at most 4096 characters.
 */
const TAIL_BYTES = 2048;
const TAIL_LINES = 12;
/** Timestamp before each line of QEMU's log, for example `2026-11-21T12:00:00.000000Z `. */
const TIMESTAMP = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z /;

/** Returns the last lines of the hypervisor's output; empty if there is no output. Call this function when the hypervisor has ended. */
export async function hypervisorLog(folder: string): Promise<string> {
  const tail = await logTail(folder, 'hypervisor', TAIL_BYTES);
  return tail
    .split('\n')
    .map((line) => line.replace(TIMESTAMP, '').trimEnd())
    .filter((line) => line !== '')
    .slice(-TAIL_LINES)
    .join('\n');
}

const SIGNAL = /terminating on signal \d+/;

/** Returns whether the log of an ended hypervisor says that a signal ended it. */
export async function wasEndedBySignal(folder: string): Promise<boolean> {
  return SIGNAL.test(await hypervisorLog(folder));
}

/** Patterns of QEMU's error messages, each with the reason of the failed start. They match the messages of QEMU 7.2 to 10. */
export const START_REASONS: StartReasons = [
  [/Could not set up host forwarding rule|Address already in use/, 'PortTaken'],
  [/Cannot allocate memory|cannot set up guest memory/, 'OutOfMemory'],
  [
    /Image is not in qcow2 format|Could not open '|qcow2: |Could not read|Image is corrupt|Failed to get "write" lock/,
    'DiskInvalid',
  ],
];
