/**
 * Controls one machine of the program `tart`. There is no daemon: the process of `tart run` is the machine, so it outlives the agent. What the
 * program prints and its exit code only explain an end. Whether a machine runs is told by its process, and whether it is suspended by the file
 * with its memory.
 */
import { displayOf } from '../../../api/v1alpha1/machine.ts';
import { MACOS_ACCELERATOR } from '../../../api/v1alpha1/names.ts';
import { ProgramError } from '../../../base/exec.ts';
import { pause } from '../../../base/time.ts';
import { logEnd, logTail } from '../../console/input.ts';
import { logsWritten, withLogWriter } from '../../console/logwriter.ts';
import { endRelay, withPortRelay } from '../../network/portrelay.ts';
import { killForCertain, type ProcessIdentity, isAlive, waitForExit } from '../../processes/process.ts';
import {
  type DisplayState,
  type ExitReason,
  type InspectOptions,
  type MachineFolder,
  type MachineState,
  NO_SCREEN,
  NOT_RUNNING,
  type RunningState,
  type StopOptions,
  type VmLaunchPlan,
} from '../driver.ts';
import {
  type ExitStatus,
  launch,
  type Launched,
  MachineProcess,
  type ProcessContext,
  ProcessWatch,
  type StartReasons,
  withLog,
} from '../machineprocess.ts';
import { UNREADABLE } from '../statefile.ts';
import { runArguments } from './arguments.ts';
import { bundleOf, forgetMemory, hasMemory, settingsOf, stateFile, type TartState } from './files.ts';
import { TartGuest } from './guest.ts';
import { identityState } from './identity.ts';
import { giveKeys, KeyTries, keysState } from './keys.ts';
import { environment, nameOf, saysRunning, signal, suspend, tart, type TartProgram } from './program.ts';
import { SCREEN_SECRET, TartScreen } from './screen.ts';

/** Time limit of a start, until the program says that the machine runs. A resume reads the whole memory from the disk before. */
const START_MILLISECONDS = 120_000;
/** Time between two questions whether the machine runs. Each question starts a program. */
const QUESTION_MILLISECONDS = 500;
/** Time limit for writing the memory of a suspended guest. 32 GiB take two minutes on a slow disk. */
const SUSPEND_MILLISECONDS = 300_000;
/** Time that the process gets to end after the power was taken away. A killed process may leave its slot of the hypervisor taken. */
const POWER_OFF_MILLISECONDS = 5_000;
/** Time between two checks of a machine that stops. Each check finds out whether the grace period has ended. It can end early. */
const STEP_MILLISECONDS = 100;

/** The only pixel density of a display whose size is in pixels, in dots per inch. It is a constant of the program. */
const FIXED_DPI = 72;

/** Limits of the lines in a message, which must fit into the message of a Pod's container. */
const TAIL = { bytes: 2048, lines: 12 };
const UNPRINTABLE = /[^\x20-\x7e\u00a0-\uffff]/g;

/** Words of the program for a guest that has shut down, and for a hypervisor that has failed. Both end with code 0. */
const SHUT_DOWN = /guest has stopped the virtual machine/;
const FAILED = /due to error/;
/** Words of the hypervisor if it runs as many guests with macOS as it may. */
const LIMIT = /exceeds the system limit/;

const START_REASONS: StartReasons = [
  [/^port \d+: Address already in use/m, 'PortTaken'],
  [LIMIT, 'MacOSLimit'],
  [/not enough memory|cannot allocate memory/i, 'OutOfMemory'],
];

/** Message about a guest that ended while it was to be suspended. */
const LOST =
  'The memory of the guest was not written while it was suspended, so the guest ended as without power';

/** Why guests with Linux run on. The program has no way to suspend them. */
export const NO_SUSPENSION = 'The hypervisor of this host suspends only guests with macOS';

/** Memory in bytes that the processes of a machine need in addition to the memory of the guest, with a margin. */
const OVERHEAD_BYTES = 1024 ** 3;
const THREADS = 512;

/** A network without reserved ports. */
const NO_PORTS = { hostAddress: '0.0.0.0', ports: [] } as const;

/** Why a machine has no screen although its VM asks for one. */
const NO_SCREENS =
  'The VM runs on a host with the driver tart, which serves no screens. Use the screen sharing of the guest (port 5900), or ask for machines.screens in the configuration of the host';

export interface TartContext extends ProcessContext {
  program: TartProgram;
  /** Whether the hypervisor may serve screens. */
  screens: boolean;
}

export class TartMachine extends MachineProcess<TartState, ProcessWatch> {
  protected override readonly program = 'hypervisor';
  protected override readonly startReasons = START_REASONS;
  protected override readonly mark: readonly string[];
  /** Folder of the machine in the folder of the program. */
  readonly bundle: string;
  readonly screen: TartScreen;
  readonly guest: TartGuest;
  readonly #context: TartContext;
  #keyTries = new KeyTries();

  constructor(folder: MachineFolder, context: TartContext) {
    super(folder, stateFile(folder.path), context);
    this.mark = ['run', nameOf(folder.uid)];
    this.bundle = bundleOf(context.program.home, folder.uid);
    this.#context = context;
    this.guest = new TartGuest(this.bundle, async () => (await this.process()) !== undefined);
    this.screen = new TartScreen(folder.path, async () => await this.#whyNoScreen());
  }

  override close(): void {
    super.close();
    this.screen.close();
  }

  override async inspect(options?: InspectOptions): Promise<MachineState> {
    const state = await super.inspect(options);
    // After a repeated suspend has failed, the end of a suspended guest is recorded as a crash. So its memory decides.
    const isOff = state.kind === 'stopped' || (state.kind === 'exited' && (await hasMemory(this.bundle)));
    return isOff ? await this.#inspectOff() : state;
  }

  /** Boots the guest. @throws the signal's reason when it aborts before the machine runs. */
  async start(plan: VmLaunchPlan, signal?: AbortSignal): Promise<void> {
    await forgetMemory(this.bundle);
    await tart(this.#context.program, await settingsOf(this.folder.uid, plan, this.bundle));
    const { sshAuthorizedKeys: wanted } = plan.guest.vm;
    await this.state.change(({ os }) => ({
      keys: os === 'darwin' && wanted.length > 0 ? { wanted } : undefined,
    }));
    this.#keyTries = new KeyTries();
    await this.#run(plan, signal);
  }

  /**
   * Continues the guest from its memory, with the size that it had. After an error, the machine is suspended as before.
   *
   * @throws the signal's reason when it aborts before the machine runs.
   */
  async resume(plan: VmLaunchPlan, signal?: AbortSignal): Promise<void> {
    await this.#run(plan, signal);
  }

  /**
   * Gives the SSH keys of its VM to the guest by its guest agent, if it needs them and a try is due.
   *
   * @throws the signal's reason when the signal aborts.
   */
  async giveKeys(signal: AbortSignal): Promise<void> {
    const { keys } = (await this.state.read()) ?? {};
    if (keys === undefined || keys.user !== undefined || !this.#keyTries.begin()) {
      return;
    }
    const given = await giveKeys(keys.wanted, async (command) => await this.guest.execute(command), signal);
    // The guest may have booted meanwhile.
    await this.state.change(({ keys: now, live }) => (live && now ? { keys: { ...keys, ...given } } : {}));
    this.#context.changed(this.folder.uid);
  }

  async stop(options: StopOptions): Promise<void> {
    const known = await this.state.readIfPossible();
    if (known === undefined) {
      return;
    }
    if (known !== UNREADABLE) {
      await this.state.update({ intent: 'stop' });
    }
    const identity = await this.process();
    this.watched?.expectExit();
    // If the end of the process was noticed earlier, this stop waits until the end is recorded. Otherwise that work could end the next
    // process.
    await this.recorded();
    if (identity !== undefined && options.graceMilliseconds > 0) {
      await this.#shutDown(identity, known === UNREADABLE ? undefined : known.os, options);
    }
    await this.end();
    // If the state file is unreadable, the memory of a suspended machine stays with the disk, because people can need both.
    if (known !== UNREADABLE) {
      await forgetMemory(this.bundle);
      await this.state.update({ live: false, end: undefined, process: undefined });
    }
  }

  /**
   * Suspends the guest. The program writes the memory of the guest and ends. If it fails after it has begun, it ends too, and the guest is lost.
   */
  async suspend(): Promise<void> {
    const identity = await this.process();
    if (identity === undefined) {
      throw new Error('Only a running machine can be suspended');
    }
    await this.state.update({ intent: 'suspend' });
    try {
      await suspend(this.#context.program, this.folder.uid);
    } catch (error) {
      await this.state.change(({ live }) => (live ? { intent: 'run' } : {}));
      throw error;
    }
    if (!(await waitForExit(identity, SUSPEND_MILLISECONDS))) {
      throw new Error(`The memory was not written within ${SUSPEND_MILLISECONDS / 1000} s`);
    }
    const state = await this.inspect();
    if (state.kind !== 'suspended') {
      throw new Error(state.kind === 'exited' ? state.message : 'The machine was not suspended');
    }
  }

  protected override newWatch(identity: ProcessIdentity, onExit: () => void): ProcessWatch {
    return new ProcessWatch(identity, onExit);
  }

  protected override async inspectLive(identity: ProcessIdentity, state: TartState): Promise<RunningState> {
    const { display, os } = state;
    const keys = keysState(state);
    this.adopt(identity);
    return {
      kind: 'running',
      pid: identity.pid,
      guestStarted: true,
      paused: false,
      accelerator: MACOS_ACCELERATOR,
      identity: identityState(state),
      ...(display && { display: displayState(display) }),
      ...(keys && { keys }),
      ...(os === 'linux' && { cannotSuspend: NO_SUSPENSION }),
    };
  }

  /** Takes the power away, and kills the process only if it does not end soon. */
  protected override async kill(main: ProcessIdentity | undefined): Promise<void> {
    if (main !== undefined) {
      await signal(main, 'SIGINT');
      await waitForExit(main, POWER_OFF_MILLISECONDS);
      await killForCertain(main);
    }
    const { uid, path } = this.folder;
    await Promise.all([logsWritten(path), endRelay(uid, path), this.screen.forget()]);
  }

  protected override exitReason(_: ExitStatus | undefined, lines: string): ExitReason {
    return SHUT_DOWN.test(lines) && !FAILED.test(lines) ? 'GuestShutdown' : 'Crashed';
  }

  protected override async logLines(): Promise<string> {
    const known = await this.state.readIfPossible();
    const from = known === UNREADABLE ? 0 : (known?.logStart ?? 0);
    // The log of the hypervisor has only what comes before the program itself, for example about a port that is taken.
    const before = await logTail(this.folder.path, 'hypervisor', TAIL.bytes, 0);
    const text = await logTail(this.folder.path, 'serial', TAIL.bytes, from);
    return `${before}\n${text}`
      .split('\n')
      .map((line) => line.replaceAll(UNPRINTABLE, ' ').trim())
      .filter((line) => line !== '')
      .slice(-TAIL.lines)
      .join('\n');
  }

  /**
   * Returns the state of a machine without a process. If its guest was to be suspended and there is no memory, the guest has shut down
   * meanwhile, or it was lost. That is recorded, a loss as a crash.
   */
  async #inspectOff(): Promise<MachineState> {
    const known = await this.state.read();
    if (await hasMemory(this.bundle)) {
      // From now on, missing memory is no longer a lost guest, because a start removes it.
      const isNews = known?.intent === 'suspend' || known?.end !== undefined;
      await (isNews && this.state.update({ intent: 'stop', end: undefined }));
      return { kind: 'suspended' };
    }
    if (known?.intent !== 'suspend') {
      return { kind: 'stopped' };
    }
    const lines = await this.logLines();
    const reason = this.exitReason(undefined, lines);
    const what = reason === 'GuestShutdown' ? this.describeExit(undefined) : LOST;
    const end = { reason, message: withLog(what, lines) };
    await this.state.update({ intent: 'stop', end });
    return { kind: 'exited', ...end };
  }

  /**
   * Lets the guest shut down within its grace period. macOS may show a dialog when the hypervisor asks it, so its guest agent is asked first.
   */
  async #shutDown(
    identity: ProcessIdentity,
    os: TartState['os'] | undefined,
    { graceMilliseconds, hurry }: StopOptions,
  ): Promise<void> {
    const over = AbortSignal.any([AbortSignal.timeout(graceMilliseconds), ...(hurry ? [hurry] : [])]);
    if (os !== 'darwin' || !(await this.guest.shutDown(over))) {
      await signal(identity, 'SIGUSR2');
    }
    while (!over.aborted && !(await waitForExit(identity, STEP_MILLISECONDS))) {
      // Each step checks the process and the signal.
    }
  }

  /** Returns why the machine has no screen now; undefined if it has one. */
  async #whyNoScreen(): Promise<string | undefined> {
    const state = await this.state.read();
    if ((await this.process()) === undefined || state === undefined) {
      return NOT_RUNNING;
    }
    if (state.screen === true) {
      return undefined;
    }
    return this.#context.screens ? NO_SCREEN : NO_SCREENS;
  }

  async #run(plan: VmLaunchPlan, signal: AbortSignal | undefined): Promise<void> {
    await this.screen.forget();
    await this.state.update({
      intent: 'run',
      live: true,
      process: undefined,
      end: undefined,
      display: displayOf(plan.guest.vm),
      screen: this.#context.screens && plan.guest.vm.vnc.enabled,
      filter: plan.network.kind === 'user' ? plan.network.filter : undefined,
      logStart: logEnd(this.folder.path, 'serial'),
    });
    try {
      await this.#bringUp(plan, signal);
    } catch (error) {
      const failure = await this.failedStart(error);
      signal?.throwIfAborted();
      throw failure;
    }
  }

  async #bringUp(plan: VmLaunchPlan, signal: AbortSignal | undefined): Promise<void> {
    const { program, cgroups } = this.#context;
    const { cpu, memoryBytes } = plan;
    const parameters = runArguments(this.folder, plan, await this.state.read());
    const launched = await launch(
      this.folder,
      {
        name: this.program,
        command: withPortRelay(
          this.folder.uid,
          withLogWriter([program.path, ...parameters], 'serial', SCREEN_SECRET),
          plan.network.kind === 'user' ? plan.network : NO_PORTS,
        ),
        environment: environment(program),
        limits: { cpu, memoryBytes: memoryBytes + OVERHEAD_BYTES, processes: THREADS + cpu },
      },
      cgroups,
    );
    const { identity, exited } = launched;
    await this.state.update({ process: identity });
    await this.#waitUntilRunning(launched, signal);
    this.open(identity).watch(exited);
    this.#context.follow(this.folder, 'started');
  }

  /** Waits until the program says that the machine runs. @throws the signal's reason when it aborts before. */
  async #waitUntilRunning({ identity, exited }: Launched, signal: AbortSignal | undefined): Promise<void> {
    const deadline = performance.now() + START_MILLISECONDS;
    for (;;) {
      const obstacle = await whyNotRunning(this.#context.program, this.folder.uid);
      if (obstacle === undefined) {
        return;
      }
      if (!(await isAlive(identity))) {
        throw await this.startError(this.describeExit(await exited));
      }
      if (performance.now() >= deadline) {
        const late = `The machine does not run after ${START_MILLISECONDS / 1000} s`;
        throw await this.startError(`${late} (${obstacle})`);
      }
      await pause(QUESTION_MILLISECONDS, signal);
    }
  }
}

/**
 * Asks whether the machine runs. Returns undefined if it does, and otherwise the answer. An error of the program is an answer too, because a
 * question can fail on a busy host.
 */
async function whyNotRunning(program: TartProgram, uid: string): Promise<string | undefined> {
  try {
    return (await saysRunning(program, uid)) ? undefined : 'tart says that it does not run';
  } catch (error) {
    if (error instanceof ProgramError) {
      return error.message;
    }
    throw error;
  }
}

function displayState({ width, height, dpi }: NonNullable<TartState['display']>): DisplayState {
  const size = `The display has ${width}x${height} pixels`;
  return dpi === FIXED_DPI
    ? { ready: true, reason: 'DisplaySet', message: size }
    : {
        ready: false,
        reason: 'NoDPI',
        message: `${size}, but this hypervisor sets no density: ${FIXED_DPI} DPI instead of ${dpi}`,
      };
}
