/** Limits the memory of answers. Each answer, for example a long list, stays in memory until its client has read it. */
import type { ServerResponse } from 'node:http';
import { UserShares } from './shares.ts';
import { StatusError } from './errors.ts';

/**
 * Size in bytes up to which an answer does not count in the limits of unread answers. Usually, only the OpenAPI document and lists of
 * several hundred VMs or more are longer.
 */
const FREE_BYTES = 64 * 1024;
/** Limit in bytes for all unread answers longer than {@link FREE_BYTES}. The container of the server has 512 MiB of memory. */
const TOTAL_BYTES = 96 * 1024 * 1024;
/**
 * Limit in bytes for the unread answers of one user. Three of the longest lists fit. The rest of {@link TOTAL_BYTES} is for other users.
 */
const OWNER_BYTES = TOTAL_BYTES / 4;
/**
 * Time in milliseconds in which a client must read an answer longer than {@link FREE_BYTES}. A client with 1.2 Mbit/s gets the longest list
 * in this time. For a list of 10,000 VMs, half of this speed is enough.
 */
const ANSWER_MILLISECONDS = 60_000;

export class UnreadAnswers {
  readonly #shares = new UserShares({
    user: OWNER_BYTES,
    total: TOTAL_BYTES,
    refuseUser: () =>
      new StatusError(
        429,
        'Clients of this user have too many unread long answers. Read these answers or close their connections, or try again later',
      ),
    refuseAll: () => new StatusError(503, 'Clients have too many unread long answers. Try again later'),
  });

  /**
   * Counts an answer until it is sent or its client has closed the connection. A client that reads too slowly is disconnected. `ownerOf`
   * returns the name of the user. It is called only if the answer is counted.
   *
   * @throws StatusError 429 while too many bytes wait for clients of the same user, and 503 while too many bytes wait for all clients
   */
  async add(response: ServerResponse, payload: unknown, ownerOf: () => Promise<string>): Promise<void> {
    const bytes = typeof payload === 'string' ? Buffer.byteLength(payload) : 0;
    if (bytes <= FREE_BYTES) {
      return;
    }
    const owner = await ownerOf();
    this.#shares.take(owner, bytes);
    limitReading(response, ANSWER_MILLISECONDS, () => this.#shares.release(owner, bytes));
  }
}

/**
 * Calls `release` when the answer is sent or its client has closed the connection. A client that does not read the answer in time is
 * disconnected.
 */
export function limitReading(response: ServerResponse, milliseconds: number, release: () => void): void {
  // If the response is already closed, the event `close` does not come again. Therefore `release` is called now.
  if (response.destroyed) {
    release();
    return;
  }
  const limit = setTimeout(() => response.destroy(), milliseconds);
  response.once('close', () => {
    clearTimeout(limit);
    release();
  });
}
