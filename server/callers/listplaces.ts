/**
 * Places of the lists that are read for callers, and bytes of their items. Callers choose the number and size of objects. So only a few lists
 * are read at once, and the items of all lists have a limit. No user has all places, or all bytes.
 */
import PQueue from 'p-queue';
import { StatusError } from '../http/errors.ts';
import type { CallerClient } from './caller.ts';

const MEBIBYTE = 1024 * 1024;
/** Limit of lists that are read at once. One processor reads no more of them in parallel. */
const LISTS = 8;
/** Limit of lists that are read or wait. Lists of 1,000 VMs wait for some seconds then. */
const PLACES = LISTS + 256;
/** Limit of the lists of one user. A CI system reads some dozens at once, and others still find a place. */
const USER_PLACES = PLACES / 4;
/** Largest list of items in bytes of JSON: some 20,000 VMs. In memory, items may need several times as much. */
const LIST_BYTES = 8 * MEBIBYTE;
/** Limit of the items of all lists of one user, so that others still have as much. */
const USER_BYTES = LIST_BYTES;
/** Limit of the items of all lists. The container of the server has 512 MiB. */
const TOTAL_BYTES = 16 * MEBIBYTE;

/** Counts bytes of items that stay in memory. @throws StatusError 422 when the list is too large, 429 or 503 when others are. */
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
   * Waits for a place, and reads a list there. The items count until the answer of the request is written. If the client is gone before, the
   * list leaves its place.
   *
   * @throws ApiError 401 for strangers, who get no place. @throws StatusError 429 when too many lists wait, 408 when the client is gone.
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
      throw new StatusError(429, `${PLACES} lists are read or wait already. Try again later`);
    }
    if (this.#useOf(user).places >= USER_PLACES) {
      throw new StatusError(
        429,
        `${USER_PLACES} lists of user ${user} are read or wait already. Try again later`,
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
      throw new StatusError(422, 'The list is too large: choose fewer objects by limit or labelSelector');
    }
    if (this.#useOf(user).bytes + more > USER_BYTES) {
      throw new StatusError(
        429,
        `The lists of user ${user} that are read at once are larger than ${USER_BYTES} bytes. Try again later`,
      );
    }
    if (this.#all.bytes + more > TOTAL_BYTES) {
      throw new StatusError(503, 'Too many large lists are read at once: try again later');
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
