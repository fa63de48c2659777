/** Commands to a guest agent: shut down, set the clock, and freeze the file systems until a copy of the disk has begun. */
import * as z from 'zod';
import { AGENT_CHARDEV } from '../arguments.ts';
import { beginningOf } from '../lists.ts';
import type { QmpConnection } from '../qmp.ts';
import { GuestConnection } from './connection.ts';
import type { GuestAgent } from './guestagent.ts';

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

export interface FreezeOptions {
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
  /** Errors of the freeze and of the thaw. */
  problems: string[];
}

/**
 * Runs `work` while the guest's file systems are frozen. If no guest agent answers, or if the freeze fails, runs `work` without a freeze.
 * After a request to freeze, the guest agent always gets a request to thaw before the promise settles, because a late freeze can still
 * succeed. No other code uses the guest agent from the freeze to the thaw.
 */
export async function whileFrozen(options: FreezeOptions, work: () => Promise<void>): Promise<Freeze> {
  return await options.agent.urgently(async () => await freezeAround(options, work));
}

async function freezeAround(
  { agent, signal, remember }: FreezeOptions,
  work: () => Promise<void>,
): Promise<Freeze> {
  const connection = await GuestConnection.open(agent.folder, { signal });
  const freeze: Freeze = { frozen: false, problems: [] };
  if (connection === undefined) {
    await work();
    return freeze;
  }
  try {
    await remember(true);
    try {
      const options = { timeoutMilliseconds: FREEZE_TIMEOUT_MILLISECONDS, signal };
      const count = await connection.execute('guest-fsfreeze-freeze', options);
      freeze.frozen = typeof count === 'number' && count > 0;
    } catch (error) {
      signal.throwIfAborted();
      freeze.problems.push(String(error));
    }
    await work();
  } finally {
    try {
      await thawOver(connection, agent.folder, signal.aborted ? 1 : THAW_ATTEMPTS);
      await remember(false);
    } catch (error) {
      freeze.problems.push(String(error));
    }
  }
  return freeze;
}

/**
 * Requests a thaw of the guest's file systems. The request has no effect if the file systems are not frozen. @throws Error when the guest
 * does not confirm the thaw.
 */
export async function thaw(agent: GuestAgent): Promise<void> {
  await agent.urgently(async () => {
    const connection = await GuestConnection.open(agent.folder, {});
    if (connection === undefined) {
      throw new Error(PERHAPS_FROZEN);
    }
    await thawOver(connection, agent.folder, 1);
  });
}

async function thawOver(first: GuestConnection, folder: string, attempts: number): Promise<void> {
  let connection: GuestConnection | undefined = first;
  for (let attempt = 1; ; attempt += 1) {
    try {
      if (connection === undefined) {
        throw new Error(PERHAPS_FROZEN);
      }
      await connection.execute('guest-fsfreeze-thaw', { timeoutMilliseconds: THAW_TIMEOUT_MILLISECONDS });
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
