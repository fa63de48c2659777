/**
 * Gives access to the guest agent of one machine, and has its commands: shut down, set the clock, and freeze the file systems until a copy of
 * the disk has begun. QEMU serves one client at a time, and the guest agent executes commands one by one. So all work with the guest agent is
 * done in turn. Urgent work comes before all other work. A question whether the guest agent answers is asked only when there is no other
 * work.
 */
import * as z from 'zod';
import { undefinedIf } from '../../../base/errors.ts';
import { StreamRefused } from '../driver.ts';
import { AGENT_CHARDEV } from './arguments.ts';
import { GuestAgentRefusal, GuestConnection } from './guestconnection.ts';
import { beginningOf, type QmpConnection } from './qmp.ts';

/**
 * Time after which urgent work interrupts running work. An honest guest answers most commands at once, and sends the longest output in 5 s.
 * Without this limit, a hostile guest could delay a stop or a copy of its VM by more than a minute with each command.
 */
const PATIENCE_MILLISECONDS = 5_000;
const INTERRUPTED =
  'The host no longer waits for the command, because a stop or copy of the VM began. Check in the guest whether the command still runs';

/** Work with a guest agent. The connection is undefined if no guest agent answers. */
type Work<T> = (connection: GuestConnection | undefined, signal: AbortSignal) => Promise<T>;

export interface UseOptions {
  signal?: AbortSignal | undefined;
  receiveLimitBytes?: number;
}

export class GuestAgent {
  readonly folder: string;
  readonly #end = new AbortController();
  /** Whether any work with the guest agent is under way. */
  #busy = false;
  /** Each function in this queue starts one piece of urgent work. The functions in `#waiting` start the other waiting work. */
  readonly #urgent: (() => void)[] = [];
  readonly #waiting: (() => void)[] = [];
  #question: AbortController | undefined;
  /**
   * Controller whose abort interrupts the work that is under way. Undefined if the work under way is urgent or a question, or if no work is
   * under way.
   */
  #interrupt: AbortController | undefined;

  constructor(folder: string) {
    this.folder = folder;
  }

  /**
   * Runs `work` as urgent work, before all waiting work that is not urgent. Earlier urgent work is done first. A question that is under way
   * is interrupted at once. Other work that is not urgent is interrupted after 5 s. `work` makes its own connections, so that it can
   * connect again if a connection is lost.
   */
  async urgently<T>(work: () => Promise<T>): Promise<T> {
    this.#question?.abort();
    const timer = setTimeout(
      () => this.#interrupt?.abort(new StreamRefused(INTERRUPTED)),
      PATIENCE_MILLISECONDS,
    );
    return await this.#enqueue(this.#urgent, async () => {
      clearTimeout(timer);
      return await work();
    });
  }

  /**
   * Runs `work` over one connection when all earlier work has ended.
   *
   * @throws the signal's reason when the signal aborted; StreamRefused when urgent work interrupts `work`, or after {@link close}.
   */
  async use<T>({ signal, receiveLimitBytes }: UseOptions, work: Work<T>): Promise<T> {
    return await this.#enqueue(this.#waiting, async () => {
      const interrupt = new AbortController();
      this.#interrupt = interrupt;
      const signals = [interrupt.signal, this.#end.signal, ...(signal === undefined ? [] : [signal])];
      try {
        return await this.#connected(AbortSignal.any(signals), work, receiveLimitBytes);
      } finally {
        this.#interrupt = undefined;
      }
    });
  }

  /**
   * Runs `work`, a short question to the guest agent, over one connection. Returns `busy` if other work is under way, or if `work` is
   * interrupted.
   */
  async ask<T>(signal: AbortSignal, work: Work<T>): Promise<T | 'busy'> {
    if (this.#busy) {
      return 'busy';
    }
    const question = new AbortController();
    this.#question = question;
    const any = AbortSignal.any([signal, question.signal, this.#end.signal]);
    try {
      return await this.#enqueue(this.#waiting, async () => await this.#connected(any, work));
    } catch (error) {
      if (any.aborted) {
        return 'busy';
      }
      throw error;
    } finally {
      this.#question = undefined;
    }
  }

  /** Ends all work except urgent work. This function is called when the agent ends or the machine's process has ended. */
  close(): void {
    this.#end.abort(new StreamRefused('The connection to the machine was closed'));
  }

  /** Waits in `queue` until no other work is under way, runs `work`, and then lets the next waiting work begin. Urgent work comes first. */
  async #enqueue<T>(queue: (() => void)[], work: () => Promise<T>): Promise<T> {
    if (this.#busy) {
      await new Promise<void>((resolve) => queue.push(resolve));
    }
    this.#busy = true;
    try {
      return await work();
    } finally {
      const next = this.#urgent.shift() ?? this.#waiting.shift();
      if (next === undefined) {
        this.#busy = false;
      } else {
        next();
      }
    }
  }

  async #connected<T>(signal: AbortSignal, work: Work<T>, receiveLimitBytes?: number): Promise<T> {
    const limit = receiveLimitBytes === undefined ? {} : { receiveLimitBytes };
    const connection = await GuestConnection.open(this.folder, { signal, ...limit });
    try {
      return await work(connection, signal);
    } finally {
      connection?.close();
    }
  }
}

/**
 * Time within which a guest agent can refuse a shutdown. The guest agent refuses if the guest's own shutdown command fails, and otherwise
 * gives no answer. The shutdown command ends within a second, even in an emulated guest.
 */
const REFUSAL_MILLISECONDS = 5_000;
/** Time limit to set the clock. The guest also writes its hardware clock, which takes up to two seconds. */
const CLOCK_TIMEOUT_MILLISECONDS = 15_000;
const NANOSECONDS_PER_MILLISECOND = 1_000_000;
/**
 * Time limit of a request to freeze the guest's file systems. The guest first writes its cached data to its disk, and its programs cannot
 * write meanwhile. If the freeze takes longer than this limit, a copy without a freeze is better.
 */
const FREEZE_TIMEOUT_MILLISECONDS = 8_000;
/** Time limit of a request to thaw. The guest agent executes commands one by one, so a thaw sometimes has to wait for a late freeze. */
const THAW_TIMEOUT_MILLISECONDS = 10_000;
/**
 * Largest number of attempts to thaw a guest that was frozen for a copy of its disk. Each attempt after the first uses a new connection. If
 * the copy was aborted, there is only one attempt, because another step, for example a stop, perhaps waits until the copy has ended. A
 * later call of {@link thaw} tries again.
 */
const THAW_ATTEMPTS = 3;
const PERHAPS_FROZEN =
  'The guest agent does not answer, and the file systems of the guest are perhaps frozen';

const chardevsSchema = beginningOf(z.object({ label: z.string(), 'frontend-open': z.boolean() }));

/**
 * Returns whether a program in the guest has opened the guest agent's port. This check is fast, because it needs only one QMP command.
 * Without the check, an attempt to connect to a missing guest agent would last until the end of a time limit.
 */
export async function hasGuestAgent(qmp: QmpConnection): Promise<boolean> {
  const chardevs = await qmp.ask('query-chardev', chardevsSchema);
  return chardevs.some((one) => one.label === AGENT_CHARDEV && one['frontend-open']);
}

/**
 * Makes the guest power off. The guest agent answers this request only to refuse it, so the promise resolves when no refusal has come in
 * time. @throws Error when the guest agent refuses, or when the guest has no guest agent that answers.
 */
export async function shutDown(agent: GuestAgent, signal: AbortSignal): Promise<void> {
  await agent.urgently(async () => {
    const connection = await GuestConnection.open(agent.folder, { signal });
    if (connection === undefined) {
      throw new Error('The guest agent does not answer');
    }
    try {
      await connection.tryExecute('guest-shutdown', {
        timeoutMilliseconds: REFUSAL_MILLISECONDS,
        arguments: { mode: 'powerdown' },
        signal,
      });
    } finally {
      connection.close();
    }
  });
}

/** Sets the guest's clock to the host's time. @throws Error when the guest agent refuses or does not answer. */
export async function setTime(connection: GuestConnection | undefined, signal: AbortSignal): Promise<void> {
  if (connection === undefined) {
    throw new Error('The guest agent does not answer');
  }
  const time = Date.now() * NANOSECONDS_PER_MILLISECOND;
  const timeoutMilliseconds = CLOCK_TIMEOUT_MILLISECONDS;
  await connection.execute('guest-set-time', { timeoutMilliseconds, arguments: { time }, signal });
}

interface FreezeOptions {
  agent: GuestAgent;
  signal: AbortSignal;
  /**
   * Called with true before a guest is asked to freeze, and with false when the guest has confirmed the thaw. Without the second call, the
   * guest's file systems are perhaps frozen and need {@link thaw}.
   */
  remember: (mayBeFrozen: boolean) => Promise<void>;
}

export interface Freeze {
  /** Whether the guest confirmed, before the work began, that its file systems were frozen. */
  frozen: boolean;
  /** Whether the guest confirmed the request to freeze. A guest without file systems on its disks confirms it, too. */
  confirmed: boolean;
  /** Errors of the freeze and of the thaw. */
  problems: string[];
}

/** Work that is done while a guest is frozen, if it can be. The parameter tells whether the guest has confirmed it. */
export type FrozenWork = (freeze: Readonly<Freeze>) => Promise<void>;

/** Runs `take` while the guest agent `agent` has frozen the file systems of its guest, if it can. */
export type Freezing = (agent: GuestAgent, take: FrozenWork) => Promise<Freeze>;

/**
 * Runs `work` while the guest's file systems are frozen. If no guest agent answers, or if the freeze fails, runs `work` without a freeze.
 * After a request to freeze, the guest agent always gets a request to thaw before the promise settles, because a late freeze can still
 * succeed. No other code uses the guest agent from the freeze to the thaw.
 */
export async function whileFrozen(options: FreezeOptions, work: FrozenWork): Promise<Freeze> {
  return await options.agent.urgently(async () => await freezeAround(options, work));
}

async function freezeAround({ agent, signal, remember }: FreezeOptions, work: FrozenWork): Promise<Freeze> {
  const connection = await GuestConnection.open(agent.folder, { signal });
  const freeze: Freeze = { frozen: false, confirmed: false, problems: [] };
  if (connection === undefined) {
    await work(freeze);
    return freeze;
  }
  try {
    await remember(true);
    try {
      const options = { timeoutMilliseconds: FREEZE_TIMEOUT_MILLISECONDS, signal };
      const count = await connection.execute('guest-fsfreeze-freeze', options);
      freeze.confirmed = typeof count === 'number';
      freeze.frozen = freeze.confirmed && count !== 0;
    } catch (error) {
      signal.throwIfAborted();
      freeze.problems.push(String(error));
    }
    await work(freeze);
  } finally {
    try {
      await thawOver(connection, agent.folder, { attempts: signal.aborted ? 1 : THAW_ATTEMPTS });
      await remember(false);
    } catch (error) {
      freeze.problems.push(String(error));
    }
  }
  return freeze;
}

/**
 * Freezes the guest's file systems, and leaves them so, because the guest is saved in this state. @throws Error when the guest does not confirm
 * it.
 */
export async function freeze(agent: GuestAgent, signal: AbortSignal): Promise<void> {
  const options = { timeoutMilliseconds: FREEZE_TIMEOUT_MILLISECONDS, signal };
  await agent.use({ signal }, async (connection) => {
    if (connection === undefined) {
      throw new Error('The guest agent does not answer');
    }
    await connection.execute('guest-fsfreeze-freeze', options);
  });
}

/**
 * Requests a thaw of the guest's file systems. The request has no effect if the file systems are not frozen. @throws Error when the guest
 * does not confirm the thaw; the signal's reason when the signal aborts.
 */
export async function thaw(agent: GuestAgent, signal?: AbortSignal): Promise<void> {
  await agent.urgently(async () => {
    const connection = await openForThaw(agent, signal);
    await thawOver(connection, agent.folder, { attempts: 1, signal });
  });
}

async function openForThaw(
  { folder }: GuestAgent,
  signal: AbortSignal | undefined,
): Promise<GuestConnection> {
  const connection = await GuestConnection.open(folder, signal === undefined ? {} : { signal });
  if (connection === undefined) {
    throw new Error(PERHAPS_FROZEN);
  }
  return connection;
}

/**
 * Thaws the guest's file systems, unless the guest agent says that they are not frozen. Returns whether they were thawed. A needless thaw would
 * take a tenth of a second in an emulated guest, because it runs the guest's hooks. @throws Error when the guest does not answer, or does not
 * confirm the thaw; the signal's reason when the signal aborts.
 */
export async function thawIfFrozen(agent: GuestAgent, signal: AbortSignal): Promise<boolean> {
  return await agent.urgently(async () => {
    const connection = await openForThaw(agent, signal);
    try {
      const options = { timeoutMilliseconds: THAW_TIMEOUT_MILLISECONDS, signal };
      const status = await undefinedIf(isRefusal, connection.execute('guest-fsfreeze-status', options));
      if (status === 'thawed') {
        return false;
      }
      await connection.execute('guest-fsfreeze-thaw', options);
      return true;
    } finally {
      connection.close();
    }
  });
}

function isRefusal(error: unknown): boolean {
  return error instanceof GuestAgentRefusal;
}

async function thawOver(
  first: GuestConnection,
  folder: string,
  { attempts, signal }: { attempts: number; signal?: AbortSignal | undefined },
): Promise<void> {
  let connection: GuestConnection | undefined = first;
  for (let attempt = 1; ; attempt += 1) {
    try {
      if (connection === undefined) {
        throw new Error(PERHAPS_FROZEN);
      }
      const options = { timeoutMilliseconds: THAW_TIMEOUT_MILLISECONDS, signal };
      await connection.execute('guest-fsfreeze-thaw', options);
      return;
    } catch (error) {
      if (attempt === attempts) {
        throw error;
      }
    } finally {
      connection?.close();
    }
    connection = await GuestConnection.open(folder, {});
  }
}
