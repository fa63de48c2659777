/**
 * Starts the processes of an emulator in its network namespace, as the machine's own user. Also sends signals to these processes, ends them,
 * and finds the lines of their log that tell why they have ended.
 */
import { EMULATOR_MEMORY_OVERHEAD_BYTES } from '../../../api/v1alpha1/emulatormachine.ts';
import { hasCode, undefinedIfSync } from '../../../base/errors.ts';
import { pause } from '../../../base/time.ts';
import { logsWritten, logWriterPid, withLogWriter } from '../../console/logwriter.ts';
import { logTail } from '../../console/input.ts';
import type { MachineCgroups, MachineLimits } from '../../processes/cgroup.ts';
import { identify, isAlive, type ProcessIdentity } from '../../processes/process.ts';
import type { EmulatorLaunchPlan, MachineFolder } from '../driver.ts';
import { launch, type Launched, type StartReasons } from '../machineprocess.ts';
import { args, commandLine, environment, FOLDERS } from './arguments.ts';
import { MACHINE_PLACE } from './files.ts';

/**
 * Largest number of threads of all processes of an emulator, in addition to one thread for each virtual processor. An emulator has some
 * hundreds of threads.
 */
const THREADS = 1024;

/**
 * Size of an emulator's file system /dev/shm. The /dev/shm of a container usually has the same size. This file system is in memory, so its
 * used part counts as memory of the machine.
 */
const SHARED_MEMORY = '64m';

/** Time limit for the end of all processes after SIGKILL. A process that exists 20 s after SIGKILL is stuck in the kernel. */
const KILL_TIMEOUT_MILLISECONDS = 20_000;
const KILL_INTERVAL_MILLISECONDS = 10;
/**
 * Largest number of times that the agent looks for processes and sends them a signal. Each time, it sends the signal only to new processes.
 * Once is not enough, because a process can start another process before it gets the signal.
 */
const ROUNDS = 10;

/**
 * Source code of a Perl program that prepares the mounts of a machine. It uses no Perl modules. The program runs in a separate mount
 * namespace, so that no other process sees its mounts. It mounts the machine's folder at another path. All users of the host can write in
 * /tmp, /var/tmp and /dev/shm. So the program covers these folders with the machine's own mounts. Without the mounts, the machine's files
 * there would outlive the machine, and other machines could see them. The files would also not count toward any quota. After that, the
 * program executes the command in its arguments.
 */
const PLACE = String.raw`
my ($folder, $place, $temporary, $shared, @command) = @ARGV;
-d $place or mkdir($place, 0755) or -d $place or die "$place: $!\n";
sub place { system('mount', @_) == 0 or die "$_[-1] cannot be mounted for the machine\n"; }
place('--bind', $folder, $place);
place('--bind', "$place/$temporary", $_) for '/tmp', '/var/tmp';
place('-t', 'tmpfs', '-o', "nosuid,nodev,mode=1777,size=$shared", 'tmpfs', '/dev/shm');
chdir $place or die "$place: $!\n";
exec { $command[0] } @command or die "$command[0]: $!\n";
`;

export interface EmulatorStart {
  plan: EmulatorLaunchPlan;
  program: string;
  sdk: string;
  /** Linux groups that the emulator needs to use the processor's virtualization. Undefined if it cannot use virtualization. */
  accelerationGroups: readonly number[] | undefined;
  /** Whether the agent runs in a container. If true, the emulator runs in the host's own file system, because the SDK is there. */
  isContained: boolean;
}

export async function launchEmulator(
  folder: MachineFolder,
  start: EmulatorStart,
  cgroups: MachineCgroups,
): Promise<Launched> {
  const { plan, sdk } = start;
  const options = {
    name: 'emulator',
    command: enclosed(folder, start),
    environment: environment(MACHINE_PLACE, sdk),
    limits: limitsOf(plan),
  };
  return await launch(folder, options, cgroups);
}

/**
 * Returns the whole command. Each program of the command executes the next program by `exec`, so the process id stays the same. With
 * `--propagation slave`, mounts that the host removes also disappear from the machine's mount namespace. Without this option, the mount
 * namespace would keep network namespaces of other machines alive.
 */
function enclosed(folder: MachineFolder, start: EmulatorStart): [string, ...string[]] {
  const { plan, program, accelerationGroups, isContained } = start;
  const { cpu, memoryBytes, network } = plan;
  const own = commandLine({
    program,
    uid: folder.uid,
    cpu,
    memoryBytes,
    isAccelerated: accelerationGroups !== undefined,
    dnsServer: network.dnsServer,
  });
  return [
    'nsenter',
    `--net=${network.path}`,
    ...(isContained ? ['--mount=/proc/1/ns/mnt'] : []),
    ...args('--', 'unshare', '--ipc', '--mount', '--propagation', 'slave', '--'),
    ...args('perl', '-e', PLACE, folder.path, MACHINE_PLACE, FOLDERS.temporary, SHARED_MEMORY),
    ...withLogWriter([...asUser(plan.runAs, accelerationGroups ?? []), ...own], 'serial'),
  ];
}

function asUser(runAs: EmulatorLaunchPlan['runAs'], groups: readonly number[]): string[] {
  if (runAs === undefined) {
    return [];
  }
  return [
    ...args('setpriv', `--reuid=${runAs.uid}`, `--regid=${runAs.gid}`),
    groups.length === 0 ? '--clear-groups' : `--groups=${groups.join(',')}`,
    ...args('--inh-caps=-all', '--bounding-set=-all', '--no-new-privs', '--'),
  ];
}

function limitsOf({ cpu, memoryBytes }: EmulatorLaunchPlan): MachineLimits {
  return { cpu, memoryBytes: memoryBytes + EMULATOR_MEMORY_OVERHEAD_BYTES, processes: THREADS + cpu };
}

/**
 * Ends all processes of a machine, or sends a signal to all of them. These are the main process, and all processes that the main process
 * started. A started process can outlive the main process, and can leave the process group of the main process. But no process can leave
 * the machine's control group.
 */
export class ProcessGroup {
  readonly #folder: MachineFolder;
  readonly #cgroups: MachineCgroups;

  constructor(folder: MachineFolder, cgroups: MachineCgroups) {
    this.#folder = folder;
    this.#cgroups = cgroups;
  }

  /**
   * Ends all processes, even if the main process `main` has already ended. The log writer ends last, so that it stores the last output.
   *
   * @throws Error when the kernel has not ended a process after 20 s.
   */
  async end(main: ProcessIdentity | undefined): Promise<void> {
    const { uid, path } = this.#folder;
    await this.#cgroups.forbidForks(uid);
    const writer = await logWriterPid(path);
    await this.#kill(main, writer);
    await logsWritten(path);
    await this.#kill(main, undefined);
  }

  /** Sends a signal to all processes except the log writer. */
  async signal(main: ProcessIdentity, signal: 'SIGSTOP' | 'SIGCONT'): Promise<void> {
    const writer = await logWriterPid(this.#folder.path);
    const reached = new Set<number>();
    for (let round = 0; round < ROUNDS; round += 1) {
      const pids = (await this.#members(main, writer)).filter((pid) => !reached.has(pid));
      if (pids.length === 0) {
        return;
      }
      for (const pid of pids) {
        send(pid, signal);
        reached.add(pid);
      }
    }
  }

  async #kill(main: ProcessIdentity | undefined, except: number | undefined): Promise<void> {
    const deadline = performance.now() + KILL_TIMEOUT_MILLISECONDS;
    for (;;) {
      const pids = await this.#members(main, except);
      if (pids.length === 0) {
        return;
      }
      if (performance.now() >= deadline) {
        throw new Error(`The processes ${pids.join(', ')} did not end after SIGKILL`);
      }
      pids.forEach((pid) => send(pid, 'SIGKILL'));
      await pause(KILL_INTERVAL_MILLISECONDS);
    }
  }

  /**
   * Returns the ids of the machine's live processes except the process `except`. The caller passes the ids to `kill`. The control group
   * also lists processes that have ended but whose parents have not read their exit status. So the function checks each listed process.
   */
  async #members(main: ProcessIdentity | undefined, except: number | undefined): Promise<number[]> {
    const listed = new Set(await this.#cgroups.processes(this.#folder.uid));
    listed.delete(except ?? 0);
    const found: number[] = [];
    for (const pid of listed) {
      if ((await identify(pid)) !== undefined) {
        found.push(pid);
      }
    }
    // Without control groups, `listed` is empty. In this case, `kill` gets the process group of the main process, as a negative number.
    const isOutside = main !== undefined && !listed.has(main.pid) && (await isAlive(main));
    return isOutside ? [...found, -main.pid] : found;
  }
}

function send(pid: number, signal: NodeJS.Signals): void {
  undefinedIfSync(hasCode('ESRCH'), () => process.kill(pid, signal));
}

/**
 * Number of bytes at the end of the log in which the agent looks for errors. The number is large, because many lines of the guest's kernel
 * can follow an error.
 */
const TAIL_BYTES = 64 * 1024;
/**
 * Limits of the log lines in a message: the number of characters, and the number of lines. With these limits, the lines and other text fit
 * into the message of a Pod's container, which can have at most 4096 characters.
 */
const SHOWN_CHARACTERS = 2048;
const PROBLEM_LINES = 12;
/** Largest number of log lines in a message if no line of the log names an error. */
const OTHER_LINES = 4;

/**
 * Largest number of characters of a line. The rest of a longer line is cut off, because the time to search for ADB keys grows with the
 * square of the line's length.
 */
const LINE_CHARACTERS = 4 * 1024;

/** Pattern of a log line in which the emulator or the guest's kernel reports an error. */
const PROBLEM = /^\s*(FATAL|ERROR|PANIC)\b|Kernel panic/;
/** Pattern of a line that might contain an ADB key. Messages contain no such line, because users show messages to other people. */
const KEY = /adb[\w.-]*key|PRIVATE KEY|QAAAA[A-Za-z0-9+/]{16}/i;
const UNPRINTABLE = /[^\x20-\x7e\u00a0-\uffff]/g;

/** Returns the lines of an emulator's output that explain best why the emulator ended. */
export function chooseLines(output: string): string {
  const lines = output
    .split('\n')
    .map((line) => line.replaceAll(UNPRINTABLE, ' ').trim().slice(0, LINE_CHARACTERS))
    .filter((line) => line !== '' && !KEY.test(line));
  const problems = lines.filter((line) => PROBLEM.test(line)).slice(-PROBLEM_LINES);
  const shown = problems.length > 0 ? problems : lines.slice(-OTHER_LINES);
  return shown.join('\n').slice(-SHOWN_CHARACTERS);
}

/**
 * Returns the lines that explain best why the emulator ended, from its output since its last start. `from` is the log position at which
 * this output begins. Call this function when the emulator has ended.
 */
export async function emulatorLog(folder: string, from: number): Promise<string> {
  // The emulator writes to the log `serial`. The programs that start the emulator write to the log `hypervisor`.
  const [own, starter] = await Promise.all([
    logTail(folder, 'serial', TAIL_BYTES, from),
    logTail(folder, 'hypervisor', TAIL_BYTES),
  ]);
  return chooseLines(`${starter}\n${own}`);
}

/** Patterns of the emulator's error messages, each with the reason of the failed start. */
export const START_REASONS: StartReasons = [
  [
    /requires hardware acceleration|acceleration is not|KVM (is )?required|\/dev\/kvm/i,
    'AccelerationMissing',
  ],
  [/AVD system path|system image|kernel-ranchu|ramdisk\.img/i, 'SystemImageMissing'],
  [
    /too many emulator instances|address already in use|port.{0,40}(in use|taken|bound)|could not bind/i,
    'PortTaken',
  ],
  [/cannot allocate memory|cannot set up guest memory/i, 'OutOfMemory'],
];
