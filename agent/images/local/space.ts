/**
 * Manages the disk space for images. Reserves space before a fetch, and watches the free space during the fetch. To free space, removes
 * images that no machine, cache entry or task needs.
 */
import { ReasonedError } from '../../../api/v1alpha1/reasons.ts';
import { Serial } from '../../../base/serial.ts';
import type { Catalog } from './catalog.ts';
import { folderBytes } from '../../disks/diskio.ts';
import { freeDisk, isDiskPressed } from '../../disks/freedisk.ts';
import type { Layout } from './layout.ts';

/**
 * Interval in milliseconds between checks of the free disk space during a fetch. The checks are necessary because the disks of machines
 * grow during a fetch, and because an image can unpack to more bytes than it reserved. The interval is short enough: in one second, even
 * the fastest disk writes less than the smallest reserve of free space.
 */
const WATCH_MILLISECONDS = 1_000;
/** If nobody continues a fetch for this time in milliseconds, the fetch is removed. */
const PARTIAL_LIFE_MILLISECONDS = 24 * 3_600_000;

export interface SpaceLimits {
  /** Largest number of bytes that all images together may take. If undefined, only the size of the host's disk limits the images. */
  budget?: number | undefined;
  /** Number of bytes of the file system that must stay free. */
  minimumFree: number;
}

export interface SpaceOptions extends SpaceLimits {
  layout: Layout;
  catalog: Catalog;
  onEviction: () => void;
}

/**
 * Reservation of disk space for work in a folder. `bytes` is the total number of bytes that the work needs in this folder, as far as known.
 */
interface Claim {
  readonly folder: string;
  bytes: number;
}

export interface Watched {
  /**
   * Signal that aborts when the caller aborts the work, or when the host's disk or the budget becomes full. Both can become full despite
   * the reservation.
   */
  signal: AbortSignal;
  /**
   * Reserves disk space for all bytes of the work. The work calls this function when its total number of bytes becomes known.
   *
   * @throws ReasonedError `DiskFull` when there is too little disk space.
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
  /**
   * Queue of claims. Space is freed and reserved for only one claim at a time, because two claims could otherwise reserve the same bytes.
   */
  readonly #making = new Serial();

  constructor(options: SpaceOptions) {
    this.#options = options;
  }

  /**
   * Reserves the disk space of a claim and then runs `work`.
   *
   * @throws ReasonedError `DiskFull` when there is too little disk space, before or during the work.
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
    const watch = setInterval(() => void this.#watch(claim, full), WATCH_MILLISECONDS);
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

  /**
   * Runs `work`, and protects `folder`, the folder of a fetch. While `work` runs, this folder stays even if disk space is needed. Unlike
   * {@link within}, the function reserves no space.
   */
  async keeping<T>(folder: string, work: () => Promise<T>): Promise<T> {
    const claim = { folder, bytes: 0 };
    // The claim waits in the queue, because a removal that is under way might have chosen this folder already.
    await this.#making.run(() => Promise.resolve(this.#claims.add(claim)));
    try {
      return await work();
    } finally {
      this.#claims.delete(claim);
    }
  }

  /**
   * Removes images that nobody can use. Then removes the same content as {@link relieve}, until enough disk space is free to end disk
   * pressure. Otherwise a host with disk pressure would get no VMs, although it has images that nobody needs. Then removes the fetches that
   * nobody has continued for a day.
   */
  async tidy(): Promise<void> {
    await this.#options.catalog.sweep();
    await this.#making.run(() => this.#relieve(() => this.#isUnpressed()));
    await this.#making.run(() => this.#dropOld());
  }

  /** Removes fetches that are not running, and then images that nobody needs, until at least `minimumFree` bytes are free. */
  async relieve(): Promise<void> {
    await this.#making.run(() => this.#relieve());
  }

  /** Returns the number of bytes that images take on the disk, including unfinished fetches. */
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

  /**
   * Returns how many bytes a claim lacks, and how many bytes are free for it. Bytes that other claims have reserved do not count as free.
   */
  async #lack(claim: Claim): Promise<{ lacking: number; free: number }> {
    const others = [...this.#claims].filter((other) => other !== claim);
    const byDisk = (await this.#free()) - (await totalRemaining(others));
    const free = Math.min(byDisk, await this.#budgetLeft(claim));
    return { lacking: (await remaining(claim)) - free, free: Math.max(0, free) };
  }

  /**
   * Returns how many bytes of the configured limit for all images (`budget`) are left for a claim. The limit applies only to claims in the
   * folder of the images. Claims of tasks in other folders do not count towards it.
   */
  async #budgetLeft(claim: Claim): Promise<number> {
    const { budget } = this.#options;
    if (budget === undefined || !this.#isOfImages(claim)) {
      return Number.POSITIVE_INFINITY;
    }
    const others = [...this.#claims].filter((other) => other !== claim && this.#isOfImages(other));
    return budget - (await this.used()) - (await totalRemaining(others));
  }

  /**
   * Returns the result of {@link #budgetLeft} if the work of this claim has written more bytes than the claim reserved. Otherwise the
   * result is infinite, because a claim must not end when another claim takes too much.
   */
  async #excessLeft(claim: Claim): Promise<number> {
    const isExceeded = (await folderBytes(claim.folder)) > claim.bytes;
    return isExceeded ? await this.#budgetLeft(claim) : Number.POSITIVE_INFINITY;
  }

  #isOfImages({ folder }: Claim): boolean {
    return folder.startsWith(`${this.#options.layout.root}/`);
  }

  /**
   * Returns how many bytes of the file system are free in addition to `minimumFree`. The result is negative if fewer than `minimumFree`
   * bytes are free.
   */
  async #free(): Promise<number> {
    const { layout, minimumFree } = this.#options;
    return (await freeDisk(layout.root)).bytes - minimumFree;
  }

  /** Reports whether disk pressure would end now. */
  async #isUnpressed(): Promise<boolean> {
    const { layout, minimumFree } = this.#options;
    return !isDiskPressed(await freeDisk(layout.root), minimumFree, true);
  }

  async #watch(claim: Claim, full: AbortController): Promise<void> {
    try {
      await this.#making.run(async () => {
        if (full.signal.aborted) {
          return;
        }
        const { minimumFree, budget } = this.#options;
        if (!(await this.#relieve())) {
          const what = `Less than ${minimumFree} bytes are free on the disk with the images of this host`;
          full.abort(new ReasonedError('DiskFull', what));
        } else if (!(await this.#relieve(async () => (await this.#excessLeft(claim)) >= 0))) {
          const what = `The image takes more than the expected ${claim.bytes} bytes, and exceeds the ${budget} bytes for all images on this host`;
          full.abort(new ReasonedError('DiskFull', what));
        }
      });
    } catch (error) {
      full.abort(error);
    }
  }

  /**
   * Removes fetches and images until `isEnough` returns true. By default, it returns true when `minimumFree` bytes are free. Returns false
   * when too little space is free and nothing is left to remove.
   */
  async #relieve(isEnough = async () => (await this.#free()) >= 0): Promise<boolean> {
    if (await isEnough()) {
      return true;
    }
    for (const { remove } of await this.#evictables(undefined)) {
      await remove();
      if (await isEnough()) {
        return true;
      }
    }
    return false;
  }

  async #dropOld(): Promise<void> {
    const oldest = Date.now() - PARTIAL_LIFE_MILLISECONDS;
    for (const { folder, usedAt } of await this.#idlePartials()) {
      if (usedAt < oldest) {
        await this.#options.layout.dropPartial(folder);
      }
    }
  }

  /** Returns the content that may be removed, in order of removal: first fetches that are not running, then complete images. */
  async #evictables(claim: Claim | undefined): Promise<Evictable[]> {
    const { catalog, layout, onEviction } = this.#options;
    const partials = (await this.#idlePartials()).filter(({ folder }) => folder !== claim?.folder);
    return [
      ...partials.map(({ folder, sizeBytes }) => ({ sizeBytes, remove: () => layout.dropPartial(folder) })),
      ...catalog.evictable().map((stored) => ({
        sizeBytes: stored.metadata.sizeBytes,
        remove: async () => {
          // If a caller has requested the image since the list was made, the image stays.
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

async function totalRemaining(claims: readonly Claim[]): Promise<number> {
  return sum(await Promise.all(claims.map(remaining)));
}

function sizeOf({ sizeBytes }: { sizeBytes: number }): number {
  return sizeBytes;
}

function sum(numbers: readonly number[]): number {
  return numbers.reduce((total, one) => total + one, 0);
}
