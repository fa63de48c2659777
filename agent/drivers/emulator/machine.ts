/** Controls one emulator: the state file in its folder, its processes and its console. */
import type { Logger } from 'pino';
import { ReasonedError } from '../../../api/v1alpha1/reasons.ts';
import { hasCode, messageOf, undefinedIfSync } from '../../../base/errors.ts';
import { logEnd } from '../../console/input.ts';
import type { MachineCgroups } from '../../processes/cgroup.ts';
import { isAlive, type ProcessIdentity, waitForExit } from '../../processes/process.ts';
import type { MachineFolder, MachineState, StopOptions } from '../driver.ts';
import { liveProcess, ProcessWatch } from '../processwatch.ts';
import { type StateFile, UNREADABLE } from '../statefile.ts';
import { processMark } from './arguments.ts';
import { ConsoleClient, connectInside, killByConsole } from './console.ts';
import { type EmulatorState, prepareStart, stateFile } from './files.ts';
import {
  describeExit,
  type EmulatorStart,
  exitMessage,
  launchEmulator,
  OUT_OF_MEMORY,
  ProcessGroup,
  startError,
} from './processes.ts';

/**
 * Time limit from the start of the emulator until its console answers. The console opens within seconds, long before the guest has booted.
 */
const START_TIMEOUT_MILLISECONDS = 60_000;
/**
 * Time that the agent waits for the emulator's end after the connection to the console has failed. An emulator that ends closes the
 * connection shortly before its process ends.
 */
const EXIT_NOTICE_MILLISECONDS = 500;
/** Time limit for the connection to the console of a running emulator. */
const CONNECT_SECONDS = 2;
/** Time between two checks of a machine that stops. Each check finds out whether the grace period has ended. It can end early. */
const STEP_MILLISECONDS = 100;

/** Objects that all machines of the driver share. */
export interface EmulatorContext {
  logger: Logger;
  cgroups: MachineCgroups;
  /** Called when the state of a machine might have changed. */
  changed: (uid: string) => void;
  /** Begins to store the log of a running machine. */
  follow: (folder: MachineFolder) => void;
}

export class EmulatorProcess {
  readonly state: StateFile<EmulatorState>;
  readonly #folder: MachineFolder;
  readonly #context: EmulatorContext;
  readonly #group: ProcessGroup;
  #watch: ProcessWatch | undefined;
  #settling: Promise<EmulatorState> | undefined;
  #closed = false;

  constructor(folder: MachineFolder, context: EmulatorContext) {
    this.#folder = folder;
    this.#context = context;
    this.#group = new ProcessGroup(folder, context.cgroups);
    this.state = stateFile(folder.path);
  }

  async inspect(): Promise<MachineState> {
    let state = await this.state.read();
    if (state?.live === true) {
      const identity = await this.process();
      if (identity !== undefined) {
        await this.#adopt(identity, state);
        return { kind: 'running', pid: identity.pid, guestStarted: !state.paused, paused: state.paused };
      }
      state = await this.#settle();
    }
    return state?.end === undefined ? { kind: 'stopped' } : { kind: 'exited', ...state.end };
  }

  /** Returns the machine's live main process, if any. Also finds the process of a machine whose state file is damaged. */
  async process(): Promise<ProcessIdentity | undefined> {
    return await liveProcess(await this.state.readIfPossible(), processMark(this.#folder.uid));
  }

  async start(start: EmulatorStart): Promise<void> {
    const { path } = this.#folder;
    await this.#group.end(undefined);
    const { token } = await this.state.update({
      intent: 'run',
      live: true,
      paused: false,
      process: undefined,
      end: undefined,
      namespace: start.plan.network.path,
      runAs: start.plan.runAs,
      logStart: logEnd(path, 'serial'),
    });
    try {
      await prepareStart(path, token, start.plan.runAs);
      await this.#bringUp(start);
    } catch (error) {
      throw await this.#failedStart(error);
    }
  }

  async stop(options: StopOptions): Promise<void> {
    if (options.ignoresReadErrors === true) {
      this.state.ignoreReadErrors();
    }
    const known = await this.state.readIfPossible();
    if (known === undefined) {
      return;
    }
    if (known === UNREADABLE) {
      return await this.end();
    }
    const { paused } = await this.state.update({ intent: 'stop' });
    const identity = await this.process();
    this.#watch?.expectExit();
    // If the end of the process was noticed earlier, this stop waits until the end is recorded. Otherwise that work could continue after
    // this stop, and end the next process.
    await this.#settling?.catch(() => undefined);
    if (identity !== undefined && options.graceMilliseconds > 0 && !paused) {
      await this.#endInOrder(identity, known, options);
    }
    await this.end();
    await this.state.update({ live: false, paused: false, end: undefined, process: undefined });
  }

  /** Ends all processes of the machine at once, including processes that have outlived the emulator. */
  async end(): Promise<void> {
    const identity = await this.process();
    this.#letGo();
    await this.#group.end(identity);
    await this.#context.cgroups.remove(this.#folder.uid);
  }

  /**
   * Pauses or continues all processes of the machine. The state file is written first. So if the agent dies during the step, the agent
   * completes the step after its restart.
   */
  async setPaused(paused: boolean): Promise<void> {
    await this.state.update({ paused });
    const identity = await this.process();
    if (identity !== undefined) {
      await this.#group.signal(identity, paused ? 'SIGSTOP' : 'SIGCONT');
    }
  }

  /** Permanently stops watching the machine's process. */
  close(): void {
    this.#closed = true;
    this.#letGo();
  }

  async #bringUp(start: EmulatorStart): Promise<void> {
    const { identity, exited } = await launchEmulator(this.#folder, start, this.#context.cgroups);
    await this.state.update({ process: identity });
    const stream = connectInside(start.plan.network.path, START_TIMEOUT_MILLISECONDS / 1000);
    exited.then(
      () => stream.destroy(),
      () => undefined,
    );
    const console = new ConsoleClient(stream);
    try {
      await console.greeted(START_TIMEOUT_MILLISECONDS);
    } catch (error) {
      if (!(await waitForExit(identity, EXIT_NOTICE_MILLISECONDS))) {
        throw error;
      }
      await this.#group.end(identity);
      throw await this.#startError(describeExit(await exited));
    } finally {
      console.close();
    }
    this.#open(identity).watch(exited);
    this.#context.follow(this.#folder);
  }

  /** Ends the processes after a failed start, and returns the error. */
  async #failedStart(cause: unknown): Promise<ReasonedError> {
    await this.end();
    await this.state.update({ intent: 'stop', live: false, process: undefined, end: undefined });
    return cause instanceof ReasonedError ? cause : await this.#startError(messageOf(cause));
  }

  async #startError(what: string): Promise<ReasonedError> {
    const { logStart = 0 } = (await this.state.read()) ?? {};
    return await startError(this.#folder.path, logStart, what);
  }

  /**
   * Asks the emulator to end, by a command to its console. If the console does not accept the command, the emulator gets SIGTERM instead.
   * The agent tries the console first, because the emulator's reaction to SIGTERM is not documented. Resolves when the emulator has ended
   * or the grace period is over.
   */
  async #endInOrder(
    identity: ProcessIdentity,
    { namespace = '', token }: EmulatorState,
    { graceMilliseconds, hurry }: StopOptions,
  ): Promise<void> {
    const over = AbortSignal.any([AbortSignal.timeout(graceMilliseconds), ...(hurry ? [hurry] : [])]);
    const stream = connectInside(namespace, CONNECT_SECONDS);
    const abandon = (): void => void stream.destroy();
    over.addEventListener('abort', abandon, { once: true });
    try {
      await killByConsole(stream, token);
    } catch (error) {
      const { uid } = this.#folder;
      this.#context.logger.debug(
        { uid, err: error },
        'The console of an emulator did not accept the command "kill", so the agent sends SIGTERM',
      );
      await this.#terminate(identity);
    } finally {
      over.removeEventListener('abort', abandon);
    }
    while (!over.aborted && !(await waitForExit(identity, STEP_MILLISECONDS))) {
      // The loop waits for the end of the process in short steps, so that an abort of `hurry` ends the wait.
    }
  }

  async #terminate(identity: ProcessIdentity): Promise<void> {
    if (await isAlive(identity)) {
      undefinedIfSync(hasCode('ESRCH'), () => process.kill(identity.pid, 'SIGTERM'));
    }
  }

  async #adopt(identity: ProcessIdentity, { paused }: EmulatorState): Promise<void> {
    if (this.#watch?.identity.pid === identity.pid) {
      return;
    }
    this.#letGo();
    this.#open(identity);
    this.#context.follow(this.#folder);
    // The agent might have died after it wrote the state file and before it paused or continued the processes. So the restarted agent sends
    // the signal, even if the processes already got it.
    await this.#group.signal(identity, paused ? 'SIGSTOP' : 'SIGCONT');
  }

  #open(identity: ProcessIdentity): ProcessWatch {
    this.#letGo();
    this.#watch = new ProcessWatch(identity, () => this.#background(async () => void (await this.#settle())));
    return this.#watch;
  }

  #letGo(): void {
    this.#watch?.expectExit();
    this.#watch = undefined;
  }

  /**
   * Records that the machine's main process has ended, and why. Also ends the processes that have outlived the main process. If several
   * callers notice the end at the same time, the work is done only once.
   */
  async #settle(): Promise<EmulatorState> {
    this.#settling ??= this.#recordEnd().finally(() => {
      this.#settling = undefined;
    });
    return await this.#settling;
  }

  async #recordEnd(): Promise<EmulatorState> {
    const { uid, path } = this.#folder;
    const status = await this.#watch?.exitStatus();
    const kills = await this.#context.cgroups.memoryKills(uid);
    await this.end();
    const { logStart } = await this.state.update({});
    const message = await exitMessage(path, logStart, kills > 0 ? OUT_OF_MEMORY : describeExit(status));
    const state = await this.state.change(({ live, intent }) => {
      const reason = status?.code === 0 ? ('GuestShutdown' as const) : ('Crashed' as const);
      const end = intent === 'run' ? { end: { reason, message } } : {};
      return live ? { live: false, paused: false, process: undefined, ...end } : {};
    });
    this.#context.changed(uid);
    return state;
  }

  #background(work: () => Promise<void>): void {
    work().catch((error: unknown) => {
      // After `close`, the folder is perhaps deleted already, so errors are ignored.
      if (!this.#closed) {
        const { uid } = this.#folder;
        this.#context.logger.error({ uid, err: error }, 'The agent could not record the end of an emulator');
      }
    });
  }
}
