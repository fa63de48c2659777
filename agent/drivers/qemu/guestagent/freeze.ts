/** Freezes the file systems of a guest, by its guest agent, until a copy of its disk has begun. */
import type { GuestAgent } from './guestagent.ts';
import { GuestConnection } from './connection.ts';

/**
 * Time limit of a request to freeze the guest's file systems. The guest first writes its cached data to its disk, and its programs cannot
 * write meanwhile. If the freeze takes longer than this limit, a copy without a freeze is better.
 */
const FREEZE_TIMEOUT_MILLISECONDS = 8_000;
/** Time limit of a request to thaw. The guest agent executes commands one by one, so a thaw sometimes has to wait for a late freeze. */
const THAW_TIMEOUT_MILLISECONDS = 10_000;
/**
 * Largest number of attempts to thaw a guest after a freeze. Each attempt after the first uses a new connection. After an abort there is
 * only one attempt, because a caller waits to stop the guest. A later call of {@link thaw} tries again.
 */
const THAW_ATTEMPTS = 3;
const SILENT = 'The guest agent does not answer, and the file systems of the guest are perhaps frozen';

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
 * Does `work` while the guest's file systems are frozen. If no guest agent answers, or if the freeze fails, `work` is done without a
 * freeze. After a request to freeze, the guest agent always gets a request to thaw before the promise settles, because a late freeze can
 * still succeed. No other code uses the guest agent from the freeze to the thaw.
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
      throw new Error(SILENT);
    }
    await thawOver(connection, agent.folder, 1);
  });
}

async function thawOver(first: GuestConnection, folder: string, attempts: number): Promise<void> {
  let connection: GuestConnection | undefined = first;
  for (let attempt = 1; ; attempt += 1) {
    try {
      if (connection === undefined) {
        throw new Error(SILENT);
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
