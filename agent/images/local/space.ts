/**
 * Manages the disk space for images. Reserves space in steps while the bytes of a fetch arrive, and watches the free space during the
 * fetch. To free space, removes images that no machine, cache entry or task needs. The size that a source announces removes nothing, because
 * a source can announce any size and send nothing.
 */
import type { Logger } from 'pino';
import { ReasonedError } from '../../../api/v1alpha1/reasons.ts';
import { Serial } from '../../../base/serial.ts';
import type { Catalog } from './catalog.ts';
import { type Claim, type Need, sizeOf, stepOf, sum, remaining, totalRemaining } from './claims.ts';
import { type Evictable, evictablesOf } from './evictables.ts';
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
  logger: Logger;
  onEviction: () => void;
}

export interface Watched {
  /**
   * Signal that aborts when the caller aborts the work, or when the host's disk or the budget becomes full. Both can become full despite
   * the reservation.
   */
  signal: AbortSignal;
  /**
   * Announces the total number of bytes of the work, when this number becomes known. The function removes no image for these bytes.
   *
   * @throws ReasonedError `DiskFull` when the bytes do not fit, even without all images that nobody needs.
   */
  need: (bytes: number) => Promise<void>;
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
   * Runs `work`, and reserves disk space in steps while the work writes. The announced bytes only refuse work that can never fit.
   *
   * @throws ReasonedError `DiskFull` when there is too little disk space, before or during the work.
   */
  async within<T>(
    { folder, bytes }: Need,
    signal: AbortSignal,
    work: (watched: Watched) => Promise<T>,
  ): Promise<T> {
    const full = new AbortController();
    const claim: Claim = { folder, announced: 0, reserved: 0 };
    const need = async (announced: number): Promise<void> => {
      await this.#making.run(async () => {
        claim.announced = announced;
        await this.#requireFit(claim);
        await this.#reserve(claim, stepOf(claim, await folderBytes(folder)));
        this.#claims.add(claim);
      });
    };
    await need(bytes);
    const watch = setInterval(() => void this.#watch(claim, full), WATCH_MILLISECONDS);
    try {
      const result = await work({ signal: AbortSignal.any([signal, full.signal]), need });
      // Fast work can write more between two checks than was reserved.
      await this.#making.run(async () => await this.#reserve(claim, await folderBytes(folder)));
      return result;
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
    const claim = { folder, announced: 0, reserved: 0 };
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

  /** @throws ReasonedError `DiskFull` when the announced bytes do not fit, even without the content that may be removed. */
  async #requireFit(claim: Claim): Promise<void> {
    const { lacking, free } = await this.#lack({ ...claim, reserved: claim.announced });
    if (lacking > sum((await this.#evictables(claim)).map(sizeOf))) {
      throw this.#full(claim, { lacking, free });
    }
  }

  /** Reserves space for `bytes` bytes, of which a part may be written already. Removes content if that is necessary. */
  async #reserve(claim: Claim, bytes: number): Promise<void> {
    if (bytes <= claim.reserved) {
      return;
    }
    claim.reserved = bytes;
    const { lacking, free } = await this.#lack(claim);
    if (lacking <= 0) {
      return;
    }
    const evictables = await this.#evictables(claim);
    if (sum(evictables.map(sizeOf)) < lacking) {
      throw this.#full(claim, { lacking, free });
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

  /** Returns the error for a claim without space. The numbers of the host are only in its log, because tenants see the message. */
  #full({ folder, announced, reserved }: Claim, numbers: { lacking: number; free: number }): ReasonedError {
    this.#options.logger.warn(
      { folder, announced, reserved, ...numbers },
      'An image has too little disk space',
    );
    const needed = Math.max(announced, reserved);
    return new ReasonedError(
      'DiskFull',
      `The image needs ${needed} bytes, and this host has too little disk space for it`,
    );
  }

  /**
   * Returns how many bytes a claim lacks, and how many bytes are free for it. Bytes that other claims have reserved do not count as free.
   */
  async #lack(claim: Claim): Promise<{ lacking: number; free: number }> {
    const others = [...this.#claims].filter(({ folder }) => folder !== claim.folder);
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
    const others = [...this.#claims].filter(
      (other) => other.folder !== claim.folder && this.#isOfImages(other),
    );
    return budget - (await this.used()) - (await totalRemaining(others));
  }

  /**
   * Returns the result of {@link #budgetLeft} if the work of this claim has written more bytes than it announced. Otherwise the
   * result is infinite, because a claim must not end when another claim takes too much.
   */
  async #excessLeft(claim: Claim): Promise<number> {
    const isExceeded = (await folderBytes(claim.folder)) > claim.announced;
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
        if (!(await this.#relieve())) {
          full.abort(this.#full(claim, { lacking: 0, free: await this.#free() }));
          return;
        }
        await this.#reserve(claim, stepOf(claim, await folderBytes(claim.folder)));
        if (!(await this.#relieve(async () => (await this.#excessLeft(claim)) >= 0))) {
          const free = await this.#budgetLeft(claim);
          this.#full(claim, { lacking: -free, free });
          const what = `The image takes more than the expected ${claim.announced} bytes, and this host has too little disk space for images`;
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
    const partials = (await this.#idlePartials()).filter(({ folder }) => folder !== claim?.folder);
    return evictablesOf(partials, this.#options);
  }

  async #idlePartials(): Promise<Awaited<ReturnType<Layout['partials']>>> {
    const busy = new Set([...this.#claims].map(({ folder }) => folder));
    return (await this.#options.layout.partials()).filter(({ folder }) => !busy.has(folder));
  }
}
