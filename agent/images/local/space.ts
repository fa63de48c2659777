/**
 * Manages the room for images: reserves it before a fetch, watches it during the fetch, and removes images without a holder to
 * free it.
 */
import { statfs } from 'node:fs/promises';
import { ReasonedError } from '../../../api/v1alpha1/reasons.ts';
import { Serial } from '../../../base/serial.ts';
import type { Catalog } from './catalog.ts';
import { folderBytes } from '../../disks/diskio.ts';
import type { Layout } from './layout.ts';

/**
 * Interval of checks of the free room in milliseconds. Machines' disks grow during a fetch. In one second, the fastest disk
 * writes less than the smallest reserve of free room.
 */
const WATCH_MILLISECONDS = 1_000;
/** Time in milliseconds after which a fetch without progress is removed. */
const PARTIAL_LIFE_MILLISECONDS = 24 * 3_600_000;

export interface SpaceLimits {
  /** Most bytes that all images together may take. If undefined, only the disk limits them. */
  budget?: number | undefined;
  /** Bytes of the file system that stay free. */
  minimumFree: number;
}

export interface SpaceOptions extends SpaceLimits {
  layout: Layout;
  catalog: Catalog;
  onEviction: () => void;
}

/** Work under way in a folder, and the total bytes that it will need there, as far as known. */
interface Claim {
  readonly folder: string;
  bytes: number;
}

export interface Watched {
  /** Aborts when the disk becomes full despite the reservation. */
  signal: AbortSignal;
  /**
   * Reserves room for the whole work when its total number of bytes becomes known.
   *
   * @throws ReasonedError `DiskFull` when there is too little room.
   */
  need: (bytes: number) => Promise<void>;
}

interface Evictable {
  readonly sizeBytes: number;
  readonly remove: () => Promise<void>;
}

export class Space {
  readonly #options: SpaceOptions;
  readonly #claims = new Set<Claim>();
  /** Queue that makes room for one claim at a time, because two claims must not reserve the same bytes. */
  readonly #making = new Serial();

  constructor(options: SpaceOptions) {
    this.#options = options;
  }

  /**
   * Reserves the room of a claim and then runs `work`.
   *
   * @throws ReasonedError `DiskFull` when there is too little room, before or during the work.
   */
  async within<T>(claim: Claim, signal: AbortSignal, work: (watched: Watched) => Promise<T>): Promise<T> {
    const full = new AbortController();
    const need = async (bytes: number): Promise<void> => {
      await this.#making.run(async () => {
        claim.bytes = bytes;
        await this.#makeRoom(claim);
        this.#claims.add(claim);
      });
    };
    await need(claim.bytes);
    const watch = setInterval(() => void this.#watch(full), WATCH_MILLISECONDS);
    try {
      return await work({ signal: AbortSignal.any([signal, full.signal]), need });
    } catch (error) {
      full.signal.throwIfAborted();
      throw error;
    } finally {
      clearInterval(watch);
      this.#claims.delete(claim);
    }
  }

  /** Frees room as {@link relieve} does. Then removes fetches that nobody has continued for a day. */
  async tidy(): Promise<void> {
    await this.relieve();
    const oldest = Date.now() - PARTIAL_LIFE_MILLISECONDS;
    for (const { folder, usedAt } of await this.#idlePartials()) {
      if (usedAt < oldest) {
        await this.#options.layout.dropPartial(folder);
      }
    }
  }

  /** Removes idle fetches and images without a holder while less room is free than the required minimum. */
  async relieve(): Promise<void> {
    await this.#making.run(() => this.#relieve());
  }

  /** Returns the bytes that images take, including unfinished fetches. */
  async used(): Promise<number> {
    const { catalog, layout } = this.#options;
    const partials = await layout.partials();
    return sum(catalog.all().map(({ metadata }) => metadata.sizeBytes)) + sum(partials.map(sizeOf));
  }

  async #makeRoom(claim: Claim): Promise<void> {
    const { lacking, free } = await this.#lack(claim);
    if (lacking <= 0) {
      return;
    }
    const evictables = await this.#evictables(claim);
    if (sum(evictables.map(sizeOf)) < lacking) {
      throw new ReasonedError(
        'DiskFull',
        `The image needs ${claim.bytes} bytes, but only ${free} are free for images on this host; ${lacking} bytes are missing`,
      );
    }
    let left = lacking;
    for (const { sizeBytes, remove } of evictables) {
      if (left <= 0) {
        break;
      }
      await remove();
      left -= sizeBytes;
    }
  }

  /** Returns the bytes that are missing for a claim and the bytes that are free, both after the reservations of all other claims. */
  async #lack(claim: Claim): Promise<{ lacking: number; free: number }> {
    const { budget = Number.POSITIVE_INFINITY } = this.#options;
    const others = [...this.#claims].filter((other) => other !== claim);
    const promised = await Promise.all(others.map(remaining));
    const byDisk = (await this.#free()) - sum(promised);
    const byBudget = budget - (await this.used()) - sum(promised);
    const free = Math.max(0, Math.min(byDisk, byBudget));
    return { lacking: (await remaining(claim)) - Math.min(byDisk, byBudget), free };
  }

  /** Returns the bytes that may still be written. */
  async #free(): Promise<number> {
    const { layout, minimumFree } = this.#options;
    const { bavail, bsize } = await statfs(layout.root);
    return bavail * bsize - minimumFree;
  }

  async #watch(full: AbortController): Promise<void> {
    try {
      await this.#making.run(async () => {
        if (full.signal.aborted || (await this.#relieve())) {
          return;
        }
        const { minimumFree } = this.#options;
        full.abort(
          new ReasonedError(
            'DiskFull',
            `Less than ${minimumFree} bytes are free on the disk with the images of this host`,
          ),
        );
      });
    } catch (error) {
      full.abort(error);
    }
  }

  /** Frees room until the required minimum is free. Returns false when nothing more can be removed and the minimum is still not free. */
  async #relieve(): Promise<boolean> {
    if ((await this.#free()) >= 0) {
      return true;
    }
    for (const { remove } of await this.#evictables(undefined)) {
      await remove();
      if ((await this.#free()) >= 0) {
        return true;
      }
    }
    return false;
  }

  /** Returns the content that may be removed, in order of removal: idle fetches first, then complete images. */
  async #evictables(claim: Claim | undefined): Promise<Evictable[]> {
    const { catalog, layout, onEviction } = this.#options;
    const partials = (await this.#idlePartials()).filter(({ folder }) => folder !== claim?.folder);
    return [
      ...partials.map(({ folder, sizeBytes }) => ({ sizeBytes, remove: () => layout.dropPartial(folder) })),
      ...catalog.evictable().map((stored) => ({
        sizeBytes: stored.metadata.sizeBytes,
        remove: async () => {
          // A caller may have requested the image in the meantime.
          if (!catalog.evictable().includes(stored)) {
            return;
          }
          onEviction();
          await catalog.discard(stored);
        },
      })),
    ];
  }

  async #idlePartials(): Promise<Awaited<ReturnType<Layout['partials']>>> {
    const busy = new Set([...this.#claims].map(({ folder }) => folder));
    return (await this.#options.layout.partials()).filter(({ folder }) => !busy.has(folder));
  }
}

async function remaining({ folder, bytes }: Claim): Promise<number> {
  return Math.max(0, bytes - (await folderBytes(folder)));
}

function sizeOf({ sizeBytes }: { sizeBytes: number }): number {
  return sizeBytes;
}

function sum(numbers: readonly number[]): number {
  return numbers.reduce((total, one) => total + one, 0);
}
