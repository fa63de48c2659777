/**
 * Manages the disk space for images. Reserves space in steps while the bytes of a fetch arrive, and watches the free space during the
 * fetch. To free space, removes images that no machine, cache entry or task needs. The size that a source announces removes nothing, because
 * a source can announce any size and send nothing.
 */
import type { Logger } from 'pino';
import { ReasonedError } from '../../../api/v1alpha1/reasons.ts';
import { Serial } from '../../../base/concurrency.ts';
import type { Catalog, CatalogEntry } from './catalog.ts';
import {
  type SpaceClaim,
  type Need,
  overShare,
  type Shares,
  sizeOf,
  type SpaceLimits,
  SpaceMeter,
  stepOf,
  sum,
  type Use,
  writtenBytes,
} from './spacemeter.ts';
import type { StoreLayout } from './layout.ts';

/**
 * Time in milliseconds after its last use for which an image counts as wanted by its tenants. Afterwards everybody may remove it. Otherwise the
 * images of a tenant that no longer uses the host would keep space from the others for ever. A day lets an image outlast a night.
 */
const WANTED_MILLISECONDS = 24 * 3_600_000;

interface Evictable extends Use {
  readonly remove: () => Promise<void>;
}

interface EvictableParts {
  catalog: Catalog;
  layout: StoreLayout;
  onEviction: () => void;
}

/** Returns these fetches that are not running, and then the images that nobody needs, the least recently used image first. */
function evictablesOf(
  partials: Awaited<ReturnType<StoreLayout['partials']>>,
  { catalog, layout, onEviction }: EvictableParts,
): Evictable[] {
  return [
    ...partials.map(({ folder, sizeBytes }) => ({
      tenants: [],
      sizeBytes,
      remove: () => layout.dropPartial(folder),
    })),
    ...catalog.evictable().map((stored) => ({
      tenants: isWanted(stored) ? stored.metadata.tenants : [],
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

function isWanted({ usedAt }: CatalogEntry): boolean {
  return Date.now() - usedAt < WANTED_MILLISECONDS;
}

/**
 * Interval in milliseconds between checks of the free disk space during a fetch. The checks are necessary because the disks of machines
 * grow during a fetch, and because an image can unpack to more bytes than it reserved. The interval is short enough: in one second, even
 * the fastest disk writes less than the smallest reserve of free space.
 */
const WATCH_MILLISECONDS = 1_000;
/** If nobody continues a fetch for this time in milliseconds, the fetch is removed. */
const PARTIAL_LIFE_MILLISECONDS = 24 * 3_600_000;

interface SpaceOptions extends SpaceLimits {
  layout: StoreLayout;
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
  readonly #claims = new Set<SpaceClaim>();
  /**
   * Queue of claims. Space is freed and reserved for only one claim at a time, because two claims could otherwise reserve the same bytes.
   */
  readonly #making = new Serial();
  readonly #meter: SpaceMeter;

  constructor(options: SpaceOptions) {
    this.#options = options;
    this.#meter = new SpaceMeter(options, this.#claims);
  }

  /**
   * Runs `work`, and reserves disk space in steps while the work writes. The announced bytes only refuse work that can never fit.
   *
   * @throws ReasonedError `DiskFull` when there is too little disk space, before or during the work.
   */
  async within<T>(
    { bytes, ...need }: Need,
    signal: AbortSignal,
    work: (watched: Watched) => Promise<T>,
  ): Promise<T> {
    const full = new AbortController();
    const end = (reason: Error): void => full.abort(reason);
    const claim: SpaceClaim = { ...need, end, announced: 0, reserved: 0 };
    const announce = async (announced: number): Promise<void> => {
      await this.#making.run(async () => {
        claim.announced = announced;
        await this.#requireFit(claim);
        await this.#reserve(claim, stepOf(claim, await writtenBytes(claim)));
        this.#claims.add(claim);
      });
    };
    await announce(bytes);
    const watch = setInterval(() => void this.#watch(claim, full), WATCH_MILLISECONDS);
    try {
      const result = await work({ signal: AbortSignal.any([signal, full.signal]), need: announce });
      // Fast work can write more between two checks than was reserved.
      await this.#making.run(async () => await this.#reserve(claim, await writtenBytes(claim)));
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
    const claim = { folder, tenant: undefined, end: () => undefined, announced: 0, reserved: 0 };
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
    await this.#making.run(() => this.#relieve(() => this.#meter.isUnpressed()));
    await this.#making.run(() => this.#dropOld());
  }

  /** Removes fetches that are not running, and then images that nobody needs, until at least `minimumFree` bytes are free. */
  async relieve(): Promise<void> {
    await this.#making.run(() => this.#relieve());
  }

  /** Returns how many bytes of the disk are free beside `minimumFree`, at least 0. */
  async free(): Promise<number> {
    return Math.max(0, await this.#meter.free());
  }

  /** Returns the number of bytes that images take on the disk, including unfinished fetches. */
  async used(): Promise<number> {
    return await this.#meter.used();
  }

  /** @throws ReasonedError `DiskFull` when the announced bytes do not fit, even without the content that may be removed. */
  async #requireFit(claim: SpaceClaim): Promise<void> {
    const announced = { ...claim, reserved: claim.announced };
    await this.#findRoom(announced, await this.#meter.lack(announced));
  }

  /** Reserves space for `bytes` bytes, of which a part may be written already. Removes content if that is necessary. */
  async #reserve(claim: SpaceClaim, bytes: number): Promise<void> {
    if (bytes <= claim.reserved) {
      return;
    }
    claim.reserved = bytes;
    const lack = await this.#meter.lack(claim);
    let left = lack.lacking;
    for (const { sizeBytes, remove } of await this.#findRoom(claim, lack)) {
      if (left <= 0) {
        break;
      }
      await remove();
      left -= sizeBytes;
    }
  }

  /**
   * Returns the content that may be removed for this claim, in the order of removal. The result is empty if nothing is lacking.
   *
   * @throws ReasonedError `DiskFull` when all of it is too little.
   */
  async #findRoom(claim: SpaceClaim, lack: { lacking: number; free: number }): Promise<Evictable[]> {
    if (lack.lacking <= 0) {
      return [];
    }
    const shares = await this.#meter.sharesWith(claim);
    const removable = [
      ...shares.removable(claim.tenant ?? '', await this.#evictables(claim)),
      ...this.#keptInExcess(claim, shares),
    ];
    if (sum(removable.map(sizeOf)) < lack.lacking) {
      this.#endExcess(claim, shares);
      throw this.#full(claim, lack);
    }
    return removable;
  }

  /**
   * Returns images that only cache entries need, of tenants that use more than their share, if the tenant of the claim uses less. Otherwise
   * the entries of one namespace could fill a host.
   */
  #keptInExcess({ tenant = '' }: SpaceClaim, shares: Shares): Evictable[] {
    const { catalog, onEviction } = this.#options;
    const isInExcess = ({ tenants }: CatalogEntry['metadata']): boolean =>
      tenants.length > 0 && tenants.every((one) => shares.excess(one) > 0);
    const kept = shares.excess(tenant) > 0 ? [] : catalog.kept();
    return kept
      .filter(({ metadata }) => isInExcess(metadata))
      .map((stored) => ({
        tenants: stored.metadata.tenants,
        sizeBytes: stored.metadata.sizeBytes,
        remove: async () => {
          if (catalog.kept().includes(stored)) {
            onEviction();
            await catalog.discard(stored);
          }
        },
      }));
  }

  /**
   * Ends the largest fetch of a tenant that uses more than its share, if the tenant of the claim uses less. The claim itself fails, and finds
   * the space at its next attempt.
   */
  #endExcess(claim: SpaceClaim, shares: Shares): void {
    const excessOf = ({ tenant }: SpaceClaim): number => (tenant === undefined ? 0 : shares.excess(tenant));
    const largest = [...this.#claims]
      .filter((other) => other.folder !== claim.folder && excessOf(other) > 0)
      .toSorted((a, b) => b.reserved - a.reserved)[0];
    if (largest !== undefined && excessOf(claim) === 0) {
      largest.end(new ReasonedError('DiskFull', overShare(largest.tenant)));
    }
  }

  /** Returns the error for a claim without space. The numbers of the host are only in its log, because tenants see the message. */
  #full(
    { folder, announced, reserved, what = 'The image' }: SpaceClaim,
    numbers: { lacking: number; free: number },
  ): ReasonedError {
    this.#options.logger.warn(
      { folder, announced, reserved, ...numbers },
      'The disk has too little space for an image or a snapshot',
    );
    const needed = Math.max(announced, reserved);
    return new ReasonedError(
      'DiskFull',
      `${what} needs ${needed} bytes, and this host has too little disk space for it`,
    );
  }

  async #watch(claim: SpaceClaim, full: AbortController): Promise<void> {
    try {
      await this.#making.run(async () => {
        if (full.signal.aborted) {
          return;
        }
        if (!(await this.#relieve())) {
          full.abort(this.#full(claim, { lacking: 0, free: await this.#meter.free() }));
          return;
        }
        await this.#reserve(claim, stepOf(claim, await writtenBytes(claim)));
        if (!(await this.#relieve(async () => (await this.#meter.excessLeft(claim)) >= 0))) {
          const free = await this.#meter.budgetLeft(claim);
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
  async #relieve(isEnough = async () => (await this.#meter.free()) >= 0): Promise<boolean> {
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
  async #evictables(claim: SpaceClaim | undefined): Promise<Evictable[]> {
    const partials = (await this.#idlePartials()).filter(({ folder }) => folder !== claim?.folder);
    return evictablesOf(partials, this.#options);
  }

  async #idlePartials(): Promise<Awaited<ReturnType<StoreLayout['partials']>>> {
    const busy = new Set([...this.#claims].map(({ folder }) => folder));
    return (await this.#options.layout.partials()).filter(({ folder }) => !busy.has(folder));
  }
}
