/**
 * Finds the process of a machine, and notices the end of this process. This also works for a process that the agent started before its own
 * restart.
 */
import { findByArgument, isAlive, type ProcessIdentity } from '../processes/process.ts';
import type { ExitStatus } from './launch.ts';
import { UNREADABLE } from './statefile.ts';

/**
 * Time between two checks whether the process lives. The checks are necessary for a process that the agent started before its restart,
 * because such a process is not a child of the agent.
 */
const LIVENESS_INTERVAL_MILLISECONDS = 1_000;

/**
 * Returns the live process of a machine; undefined if no process of the machine lives. `state` is the content of the machine's state file.
 * If the state file is unreadable or does not contain the process, the function searches for a process that has `mark` among its arguments.
 * The agent might have died before it wrote the process into the file.
 *
 * @throws Error when the state file is unreadable and the host has no /proc. Without /proc, the process cannot be found.
 */
export async function liveProcess(
  state: { live: boolean; process?: ProcessIdentity | undefined } | typeof UNREADABLE | undefined,
  mark: readonly string[],
): Promise<ProcessIdentity | undefined> {
  if (state === UNREADABLE) {
    if (process.platform !== 'linux') {
      throw new Error(
        'The state file of the machine is unreadable, and without /proc the agent cannot find the process. End the process, and remove the folder of the machine',
      );
    }
    return await findByArgument(...mark);
  }
  if (state === undefined || !state.live) {
    return undefined;
  }
  const identity = state.process ?? (await findByArgument(...mark));
  return identity !== undefined && (await isAlive(identity)) ? identity : undefined;
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
