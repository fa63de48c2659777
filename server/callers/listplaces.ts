/**
 * Limits the memory for lists that the server reads for callers. Callers choose the number and size of objects. Therefore only a few lists
 * are read at the same time, and a list has a place while it waits or is read. The number of places is limited. The bytes of all items are
 * also limited. A single user cannot use all places or all bytes.
 */
import PQueue from 'p-queue';
import { StatusError } from '../http/errors.ts';
import type { CallerClient } from './caller.ts';

const MEBIBYTE = 1024 * 1024;
/** Largest number of lists that are read at the same time. One processor cannot read more of them in parallel. */
const LISTS = 8;
/** Largest number of lists that are read or wait. When so many wait, a list of 1,000 VMs waits for some seconds. */
const PLACES = LISTS + 256;
/**
 * Largest number of lists of one user that are read or wait. A CI system reads some dozens of lists at the same time, and other users must
 * get places, too.
 */
const USER_PLACES = PLACES / 4;
/** Largest list of items, in bytes of JSON. It fits about 20,000 VMs. In memory, the items can need several times this number of bytes. */
const LIST_BYTES = 8 * MEBIBYTE;
/** Limit in bytes for the items of all lists of one user. The same amount remains for the other users. */
const USER_BYTES = LIST_BYTES;
/** Limit in bytes for the items of all lists. The container of the server has 512 MiB of memory. */
const TOTAL_BYTES = 16 * MEBIBYTE;

/**
 * Counts bytes of items that stay in memory. @throws StatusError 422 when this list is too large; 429 or 503 when it does not fit beside
 * the other lists of the user or of all users
 */
export type Hold = (bytes: number) => void;

interface Use {
  places: number;
  bytes: number;
}

export class ListPlaces {
  readonly #queue = new PQueue({ concurrency: LISTS });
  readonly #all: Use = { places: 0, bytes: 0 };
  readonly #users = new Map<string, Use>();

  /**
   * Takes a place, waits for its turn, and then reads a list. The items count for the limits until the answer to the request is sent. If
   * the client closes the connection earlier, the place becomes free.
   *
   * @throws ApiError 401 for unknown callers, who get no place. @throws StatusError 429 when too many lists wait, 408 when the client has
   * closed the connection.
   */
  async run<T>(
    caller: Pick<CallerClient, 'username' | 'ended'>,
    read: (hold: Hold) => Promise<T>,
  ): Promise<T> {
    const user = await caller.username();
    const { ended } = caller;
    ended.throwIfAborted();
    this.#refuse(user);
    this.#count(user, { places: 1, bytes: 0 });
    try {
      return await this.#queue.add(async () => await read(this.#holdFor(user, ended)), { signal: ended });
    } finally {
      this.#count(user, { places: -1, bytes: 0 });
    }
  }

  #refuse(user: string): void {
    if (this.#all.places >= PLACES) {
      throw new StatusError(429, `The limit of ${PLACES} requests for lists is reached. Try again later`);
    }
    if (this.#useOf(user).places >= USER_PLACES) {
      throw new StatusError(
        429,
        `The limit of ${USER_PLACES} requests for lists of user ${user} is reached. Try again later`,
      );
    }
  }

  #holdFor(user: string, ended: AbortSignal): Hold {
    let held = 0;
    ended.addEventListener('abort', () => this.#count(user, { places: 0, bytes: -held }), { once: true });
    return (bytes) => {
      ended.throwIfAborted();
      this.#refuseBytes(user, held + bytes, bytes);
      held += bytes;
      this.#count(user, { places: 0, bytes });
    };
  }

  #refuseBytes(user: string, list: number, more: number): void {
    if (list > LIST_BYTES) {
      throw new StatusError(422, 'The list is too large. Use limit or labelSelector to select fewer objects');
    }
    if (this.#useOf(user).bytes + more > USER_BYTES) {
      throw new StatusError(
        429,
        `The lists that user ${user} reads at the same time have more than ${USER_BYTES} bytes. Try again later`,
      );
    }
    if (this.#all.bytes + more > TOTAL_BYTES) {
      throw new StatusError(503, 'Too many large lists are being read at the same time. Try again later');
    }
  }

  #useOf(user: string): Use {
    return this.#users.get(user) ?? { places: 0, bytes: 0 };
  }

  #count(user: string, { places, bytes }: Use): void {
    const own = this.#useOf(user);
    for (const use of [own, this.#all]) {
      use.places += places;
      use.bytes += bytes;
    }
    if (own.places === 0 && own.bytes === 0) {
      this.#users.delete(user);
    } else {
      this.#users.set(user, own);
    }
  }
}
