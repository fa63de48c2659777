/**
 * The process of a machine: starts it, finds it, watches it, records its end and explains this end to users. The process continues to run when
 * the agent ends, so everything but the start also works for a process that the agent started before its own restart.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { open, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { Logger } from 'pino';
import { type Reason, ReasonedError } from '../../api/v1alpha1/reasons.ts';
import { hasCode, messageOf, undefinedIf, withoutPaths } from '../../base/errors.ts';
import { ProgramError, run } from '../../base/exec.ts';
import type { MachineCgroups, MachineLimits } from '../processes/cgroup.ts';
import { findByArgument, identify, isAlive, type ProcessIdentity } from '../processes/process.ts';
import type { ExitReason, InspectOptions, MachineFolder, MachineState, RunningState } from './driver.ts';
import { type StateChange, type StateFile, UNREADABLE } from './statefile.ts';
import { forgetLastOutput, logsWritten, segmentName, withLogWriter } from '../console/logwriter.ts';
import { makeTerminal } from '../console/terminal.ts';

/**
 * Time between two checks whether the process lives. The checks are necessary for a process that the agent started before its restart,
 * because such a process is not a child of the agent.
 */
const LIVENESS_INTERVAL_MILLISECONDS = 1_000;

/** Folders in which the log writer's interpreter is searched, on each host. */
const PROGRAM_FOLDERS = '/usr/sbin:/usr/bin:/sbin:/bin';
/**
 * Time limit for checking whether the log writer's interpreter works. The check normally takes 3 ms, but can take seconds on an overloaded
 * host.
 */
const INTERPRETER_TIMEOUT_MILLISECONDS = 30_000;

/**
 * Checks that the machines' log writer can run. The agent calls this function when it starts, so that an error appears before the first
 * machine starts. @throws Error when the log writer cannot run.
 */
export async function requireLogWriter(): Promise<void> {
  const [interpreter] = withLogWriter([]);
  try {
    const environment = { PATH: PROGRAM_FOLDERS, LC_ALL: 'C' };
    await run(interpreter, ['-e', '1'], {
      environment,
      timeoutMilliseconds: INTERPRETER_TIMEOUT_MILLISECONDS,
    });
  } catch (error) {
    const why = `The program that writes the logs of machines cannot run: ${messageOf(error)}`;
    const advice = `Install ${interpreter} in one of the folders ${PROGRAM_FOLDERS}`;
    throw new Error(`${why}. ${advice}`, { cause: error });
  }
}

/** Exit status of a machine's process. If the agent restarts while the process runs, the agent never gets the exit status. */
export interface ExitStatus {
  code: number | null;
  signal: NodeJS.Signals | null;
}

export interface Launched {
  identity: ProcessIdentity;
  exited: Promise<ExitStatus>;
}

export interface LaunchOptions {
  /** Name of the program in messages: `hypervisor` or `emulator`. */
  name: string;
  /**
   * The whole command line, which includes the command line from `withLogWriter`. Each program of this command line must start the next
   * program by `exec`, so that the first process itself becomes the machine's process.
   */
  command: readonly [string, ...string[]];
  environment: NodeJS.ProcessEnv;
  limits: MachineLimits;
}

/** Reasons that the error of a failed start can have. The error's message can contain the last lines of the program's log. */
type StartReason = Extract<
  Reason,
  | 'StartFailed'
  | 'OutOfMemory'
  | 'PortTaken'
  | 'DiskInvalid'
  | 'SystemImageMissing'
  | 'AccelerationMissing'
  | 'MacOSLimit'
>;

/** Reasons of a failed start, each with a pattern. The first pattern that matches the last lines of the log determines the reason. */
export type StartReasons = readonly (readonly [RegExp, StartReason])[];

/** Returns the text `what`, followed by lines of the program's log. */
export function withLog(what: string, lines: string): string {
  return lines === '' ? what : `${what}: ${lines}`;
}

/**
 * Returns the error of a failed start. The error's message is `what` and lines of the program's log. Only these lines determine the error's
 * reason. `what` does not determine the reason, because `what` can be the program's answer to a command that failed only temporarily.
 */
export function startErrorOf(what: string, lines: string, reasons: StartReasons): ReasonedError {
  const reason = reasons.find(([pattern]) => pattern.test(lines))?.[1] ?? 'StartFailed';
  // The cause says that the message has the words of a program, which can name files of the host.
  const cause = new ProgramError(what, { lastOutput: lines });
  return new ReasonedError(reason, withLog(what, lines), { cause });
}

/** Fields that the state files of all drivers have. */
interface ProcessState {
  intent: 'run' | 'stop' | 'suspend';
  process?: ProcessIdentity | undefined;
  live: boolean;
  paused?: boolean | undefined;
  suspended?: boolean | undefined;
  renewing?: boolean | undefined;
  end?: { reason: ExitReason; message: string } | undefined;
}

/** Objects that all machines of a driver share. */
export interface ProcessContext {
  logger: Logger;
  cgroups: MachineCgroups;
  /** Called with the uid of a machine whose state might have changed. */
  changed: (uid: string) => void;
  /**
   * Begins to store the log of a running machine. `found` means that the machine was already running when the agent restarted.
   */
  follow: (folder: MachineFolder, how: 'started' | 'found') => void;
}

/**
 * Starts a process with a session, a process group, a control group and a log writer of its own. @throws ReasonedError when the process
 * does not start.
 */
export async function launch(
  folder: MachineFolder,
  { name, command: [program, ...parameters], environment, limits }: LaunchOptions,
  cgroups: MachineCgroups,
): Promise<Launched> {
  await logsWritten(folder.path);
  await Promise.all([forgetLastOutput(folder.path), makeTerminal(folder.path)]);
  // The started process writes its output into this file until the log writer runs. The log writer then appends to the same file.
  const log = await open(join(folder.path, segmentName('hypervisor', 0)), 'a', 0o600);
  try {
    const child = spawn(program, parameters, {
      cwd: folder.path,
      detached: true,
      stdio: ['pipe', log.fd, log.fd],
      env: environment,
    });
    // The new process waits for a line feed on its standard input. If the process has already ended, writing the line feed causes an error.
    // This listener ignores the error, because the caller notices that the process does not answer.
    child.stdin?.on('error', () => undefined);
    const exited = new Promise<ExitStatus>((resolve) => {
      child.once('exit', (code, signal) => resolve({ code, signal }));
    });
    const pid = await pidOf(child, name);
    const identity = await identify(pid);
    if (identity === undefined) {
      throw new ReasonedError('StartFailed', `The ${name} ended at once`);
    }
    await Promise.all([cgroups.add(folder.uid, pid, limits), forgetOomScore(pid)]);
    child.stdin?.end('\n');
    child.unref();
    return { identity, exited };
  } finally {
    await log.close();
  }
}

async function pidOf(child: ChildProcess, name: string): Promise<number> {
  return await new Promise((resolve, reject) => {
    child.once('error', (error) =>
      reject(new ReasonedError('StartFailed', `The ${name} cannot be executed: ${error.message}`)),
    );
    child.once('spawn', () => resolve(child.pid ?? 0));
  });
}

/**
 * Sets the OOM score adjustment of the process to 0. Otherwise the process would keep the agent's value, which is higher if the agent runs
 * in a container. With a higher value, the kernel would kill machines first when the host lacks memory.
 */
async function forgetOomScore(pid: number): Promise<void> {
  if (process.platform !== 'linux') {
    return;
  }
  // The score cannot be written if the agent is not root and has no right to lower it, or if the process has just ended. Both errors are
  // ignored. The caller notices an ended process, because this process does not answer.
  await undefinedIf(
    hasCode('EACCES', 'EPERM', 'ENOENT', 'ESRCH'),
    writeFile(`/proc/${pid}/oom_score_adj`, '0'),
  );
}

export class ProcessWatch {
  readonly identity: ProcessIdentity;
  readonly #onExit: () => void;
  readonly #timer: NodeJS.Timeout;
  #exitStatus: Promise<ExitStatus> | undefined;
  #isOver = false;

  /** `onExit` is called once, when the process has ended. */
  constructor(identity: ProcessIdentity, onExit: () => void) {
    this.identity = identity;
    this.#onExit = onExit;
    this.#timer = setInterval(() => this.check(), LIVENESS_INTERVAL_MILLISECONDS);
    this.#timer.unref();
  }

  /** Watches a process that this agent started. `exited` resolves with the process's exit status. */
  watch(exited: Promise<ExitStatus>): void {
    this.#exitStatus = exited;
    exited.then(
      () => this.#exited(),
      () => this.#exited(),
    );
  }

  /**
   * Stops watching the process, because the caller will end the process and record its end. Without this call, a late report of the end
   * could count as the end of the machine's next process.
   */
  expectExit(): void {
    this.#isOver = true;
    clearInterval(this.#timer);
  }

  /** Stops watching the process, and closes all connections to it. */
  close(): void {
    this.expectExit();
  }

  /** Returns the exit status of an ended process; undefined for a process that the agent started before its restart. */
  async exitStatus(): Promise<ExitStatus | undefined> {
    return await this.#exitStatus;
  }

  /** Checks now whether the process lives. */
  check(): void {
    if (this.#isOver) {
      return;
    }
    isAlive(this.identity).then(
      (alive) => {
        if (!alive) {
          this.#exited();
        }
      },
      // If the process's state cannot be read now, the check is repeated at the next interval.
      () => undefined,
    );
  }

  #exited(): void {
    if (this.#isOver) {
      return;
    }
    this.expectExit();
    this.#onExit();
  }
}

/** Base class of the classes that control one machine each: the state file in the machine's folder, and its process. */
export abstract class MachineProcess<State extends ProcessState, Watch extends ProcessWatch> {
  readonly state: StateFile<State>;
  protected readonly folder: MachineFolder;
  #watched: Watch | undefined;
  /** Resolves when the end of the process is recorded. Before that, no new process may start, because the end would count for it. */
  #recording: Promise<State> | undefined;
  #closed = false;
  readonly #context: ProcessContext;

  constructor(folder: MachineFolder, state: StateFile<State>, context: ProcessContext) {
    this.folder = folder;
    this.state = state;
    this.#context = context;
  }

  /** Name of the program in messages. */
  protected abstract readonly program: 'hypervisor' | 'emulator';
  protected abstract readonly startReasons: StartReasons;
  /** Arguments by which the agent finds the machine's process among all processes. */
  protected abstract readonly mark: readonly string[];

  /** Begins to watch a process. `onExit` must be called once, when the process has ended. */
  protected abstract newWatch(identity: ProcessIdentity, onExit: () => void): Watch;

  /**
   * Returns the state of the machine, whose process lives; undefined if the process has ended meanwhile. Also completes or cancels a step
   * that the agent had begun when it died.
   */
  protected abstract inspectLive(
    identity: ProcessIdentity,
    state: State,
    options: InspectOptions,
  ): Promise<RunningState | undefined>;

  /** Ends all processes of the machine at once. `main` is its main process, if that process lives. */
  protected abstract kill(main: ProcessIdentity | undefined): Promise<void>;

  /** Returns why the main process ended without a request. `lines` are those of {@link logLines}. */
  protected abstract exitReason(status: ExitStatus | undefined, lines: string): ExitReason;

  /** Returns the lines of the program's log that explain best why the program ended. Call this function when the program has ended. */
  protected abstract logLines(): Promise<string>;

  async inspect(options: InspectOptions = { isDiscarded: false }): Promise<MachineState> {
    await this.recorded();
    let state = await this.state.read();
    if (state?.live === true) {
      const identity = await this.process();
      const running = identity && (await this.inspectLive(identity, state, options));
      if (running !== undefined) {
        return running;
      }
      state = await this.#recordEnd();
    }
    if (state?.suspended === true) {
      return { kind: 'suspended' };
    }
    return state?.end === undefined ? { kind: 'stopped' } : { kind: 'exited', ...state.end };
  }

  /**
   * Returns the machine's live main process; undefined if there is none. If the state file is unreadable or does not contain the process, the
   * function searches for a process that has the machine's mark among its arguments. The agent might have died before it wrote the process
   * into the file.
   */
  async process(): Promise<ProcessIdentity | undefined> {
    const state = await this.state.readIfPossible();
    if (state === UNREADABLE) {
      return await findByArgument(...this.mark);
    }
    if (state === undefined || !state.live) {
      return undefined;
    }
    const identity = state.process ?? (await findByArgument(...this.mark));
    return identity !== undefined && (await isAlive(identity)) ? identity : undefined;
  }

  /**
   * The process that the agent watches; undefined if the agent watches none. This property never makes the agent watch a process, so any step
   * may read it.
   */
  get watched(): Watch | undefined {
    return this.#watched;
  }

  /** Ends all processes of the machine at once. The caller then records the end. */
  async end(): Promise<void> {
    const identity = await this.process();
    this.#letGo();
    await this.kill(identity);
    await this.forgetProcess();
  }

  /** Permanently stops watching the machine's process. The agent ignores later events of the process. */
  close(): void {
    this.#closed = true;
    this.#letGo();
  }

  /** Watches a process that the agent has found. */
  protected adopt(identity: ProcessIdentity): Watch {
    if (this.#watched?.identity.pid === identity.pid) {
      return this.#watched;
    }
    const watch = this.open(identity);
    this.#context.follow(this.folder, 'found');
    return watch;
  }

  /** Watches a process instead of the process that the agent has watched before. */
  protected open(identity: ProcessIdentity): Watch {
    this.#letGo();
    this.#watched = this.newWatch(identity, () =>
      this.background(async () => void (await this.#recordEnd())),
    );
    return this.#watched;
  }

  /** Runs work that no caller waits for. An error is only logged. */
  protected background(work: () => Promise<void>): void {
    work().catch((error: unknown) => {
      // After `close`, the folder is perhaps deleted already, so errors are ignored.
      if (!this.#closed) {
        const { uid } = this.folder;
        this.#context.logger.error({ uid, err: error }, 'The agent could not handle an event of a machine');
      }
    });
  }

  /** Waits until an end of the process that was noticed is recorded. */
  protected async recorded(): Promise<void> {
    await this.#recording?.catch(() => undefined);
  }

  /** Ends the watch of an ended process, and removes its control group. The caller then records the end of the process. */
  protected async forgetProcess(): Promise<void> {
    this.#letGo();
    await this.recorded();
    await this.#context.cgroups.remove(this.folder.uid);
  }

  /** Ends the processes after a failed start, and returns the error. Afterwards the machine is stopped, or still suspended. */
  protected async failedStart(cause: unknown): Promise<ReasonedError> {
    await this.end();
    // Perhaps the exit of the process has already been recorded as a crash. This change of the state removes the record of the crash.
    await this.#change(() => ({ intent: 'stop', live: false, process: undefined, end: undefined }));
    return cause instanceof ReasonedError ? cause : await this.startError(messageOf(cause));
  }

  protected async startError(what: string): Promise<ReasonedError> {
    return startErrorOf(what, await this.logLines(), this.startReasons);
  }

  /** Describes the end of the program by its exit status. */
  protected describeExit(status: ExitStatus | undefined): string {
    if (status?.signal) {
      return `The ${this.program} was ended by ${status.signal}`;
    }
    return typeof status?.code === 'number'
      ? `The ${this.program} ended with code ${status.code}`
      : `The ${this.program} ended`;
  }

  #letGo(): void {
    this.#watched?.close();
    this.#watched = undefined;
  }

  /** Records the end of the machine's process. If several callers notice the end at the same time, the work is done only once. */
  async #recordEnd(): Promise<State> {
    this.#recording ??= this.#findEnd().finally(() => (this.#recording = undefined));
    return await this.#recording;
  }

  /**
   * Records the end of the machine's process, and the reason, in the state file. Also ends the processes that have outlived the main process.
   */
  async #findEnd(): Promise<State> {
    const { uid } = this.folder;
    const status = await this.#watched?.exitStatus();
    const kills = await this.#context.cgroups.memoryKills(uid);
    await this.kill(await this.process());
    const what =
      kills > 0
        ? `The ${this.program} reached the memory limit of its machine, and the kernel of the host ended it`
        : this.describeExit(status);
    const lines = await this.logLines();
    const end = { reason: this.exitReason(status, lines), message: withoutPaths(withLog(what, lines)) };
    const state = await this.#change((known) => changeAtEnd(known, end));
    this.#letGo();
    await this.#context.cgroups.remove(uid);
    this.#context.changed(uid);
    return state;
  }

  async #change(decide: (state: State) => StateChange<ProcessState>): Promise<State> {
    // The state of each driver has the fields of a process.
    return await this.state.change(decide as (state: State) => StateChange<State>);
  }
}

/**
 * Returns the change to write into the state file after the machine's process has ended. If the agent has not requested the end and knows no
 * other reason, the machine has ended as `end` says.
 */
function changeAtEnd(known: ProcessState, end: NonNullable<ProcessState['end']>): StateChange<ProcessState> {
  if (!known.live) {
    return {};
  }
  const isBooting = known.suspended === true || known.renewing === true;
  const isUnexpected = known.intent === 'run' && known.end === undefined && !isBooting;
  return {
    live: false,
    paused: false,
    process: undefined,
    ...(isUnexpected && { end }),
  };
}
