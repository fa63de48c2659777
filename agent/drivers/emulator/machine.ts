/** Controls one emulator: starts, stops, pauses and continues its processes. */
import { hasCode, undefinedIfSync } from '../../../base/errors.ts';
import { logEnd } from '../../console/input.ts';
import { isAlive, type ProcessIdentity, waitForExit } from '../../processes/process.ts';
import type { ExitReason, MachineFolder, RunningState, StopOptions } from '../driver.ts';
import { type ExitStatus, MachineProcess, type ProcessContext, ProcessWatch } from '../machineprocess.ts';
import { UNREADABLE } from '../statefile.ts';
import { processMark } from './arguments.ts';
import { ConsoleClient, connectInside, killByConsole } from './console.ts';
import { type EmulatorState, prepareStart, stateFile } from './files.ts';
import { emulatorLog, type EmulatorStart, launchEmulator, ProcessGroup, START_REASONS } from './processes.ts';

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

export class EmulatorProcess extends MachineProcess<EmulatorState, ProcessWatch> {
  protected override readonly program = 'emulator';
  protected override readonly startReasons = START_REASONS;
  protected override readonly mark: readonly string[];
  readonly #context: ProcessContext;
  readonly #group: ProcessGroup;

  constructor(folder: MachineFolder, context: ProcessContext) {
    super(folder, stateFile(folder.path), context);
    this.mark = processMark(folder.uid);
    this.#context = context;
    this.#group = new ProcessGroup(folder, context.cgroups);
  }

  async start(start: EmulatorStart): Promise<void> {
    const { path } = this.folder;
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
      throw await this.failedStart(error);
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
    this.watched?.expectExit();
    // If the end of the process was noticed earlier, this stop waits until the end is recorded. Otherwise that work could continue after
    // this stop, and end the next process.
    await this.recorded();
    if (identity !== undefined && options.graceMilliseconds > 0 && !paused) {
      await this.#endInOrder(identity, known, options);
    }
    await this.end();
    await this.state.update({ live: false, paused: false, end: undefined, process: undefined });
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

  protected override newWatch(identity: ProcessIdentity, onExit: () => void): ProcessWatch {
    return new ProcessWatch(identity, onExit);
  }

  protected override async inspectLive(
    identity: ProcessIdentity,
    { paused }: EmulatorState,
  ): Promise<RunningState> {
    const isFound = this.watched?.identity.pid !== identity.pid;
    this.adopt(identity);
    if (isFound) {
      // The agent might have died after it wrote the state file and before it paused or continued the processes. So the restarted agent sends
      // the signal, even if the processes already got it.
      await this.#group.signal(identity, paused ? 'SIGSTOP' : 'SIGCONT');
    }
    return { kind: 'running', pid: identity.pid, guestStarted: !paused, paused };
  }

  /** Also ends the processes that have outlived the emulator. */
  protected override async kill(main: ProcessIdentity | undefined): Promise<void> {
    await this.#group.end(main);
  }

  protected override exitReason(status: ExitStatus | undefined): ExitReason {
    return status?.code === 0 ? 'GuestShutdown' : 'Crashed';
  }

  protected override async logLines(): Promise<string> {
    const { logStart = 0 } = (await this.state.read()) ?? {};
    return await emulatorLog(this.folder.path, logStart);
  }

  async #bringUp(start: EmulatorStart): Promise<void> {
    const { identity, exited } = await launchEmulator(this.folder, start, this.#context.cgroups);
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
      throw await this.startError(this.describeExit(await exited));
    } finally {
      console.close();
    }
    this.open(identity).watch(exited);
    this.#context.follow(this.folder, 'started');
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
      const { uid } = this.folder;
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
}
