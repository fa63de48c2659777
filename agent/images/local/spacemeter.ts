/**
 * Measures the disk space for images: what is used, free, and reserved, and the share of each tenant. A tenant is a namespace. It can use
 * free space without a limit, but more than half of the space only as long as nobody else needs it.
 */

import type { Catalog } from './catalog.ts';
import { folderBytes } from '../../disks/diskio.ts';
import { freeDisk, isDiskPressed } from '../../disks/freedisk.ts';
import type { StoreLayout } from './layout.ts';

/**
 * Smallest and largest number of bytes that are reserved ahead of a fetch. Between them, a fetch has as many bytes ahead as have arrived. So
 * a source that sends little takes little from others, and a fast source seldom waits for a removal.
 */
const LEAST_AHEAD_BYTES = 1024 ** 2;
const MOST_AHEAD_BYTES = 64 * 1024 ** 2;

/** Disk space that work needs in a folder. `bytes` is the total number of bytes that the work announces, as far as known. */
export interface Need {
  readonly folder: string;
  /** Another folder in which the work writes a part of its bytes. The bytes that both folders have count as written. */
  readonly beside?: string | undefined;
  /** Namespace for which the work is done. */
  readonly tenant: string;
  readonly bytes: number;
  /** What needs the space, at the beginning of a message. The default is "The image". */
  readonly what?: string;
  /**
   * Whether all bytes are reserved before the work begins. By default, they are reserved as they arrive, because a source can announce any
   * size. Only for work whose bytes the host knows, and writes faster than anybody watches.
   */
  readonly isAtOnce?: boolean;
}

/** Reservation of disk space for work in a folder. */
export interface SpaceClaim {
  readonly folder: string;
  readonly beside?: string | undefined;
  /** Namespace for which the work is done. It is undefined if the work reserves no space of its own. */
  readonly tenant: string | undefined;
  /** Ends the work with this reason. */
  readonly end: (reason: Error) => void;
  readonly what?: string | undefined;
  readonly isAtOnce?: boolean | undefined;
  /** Total number of bytes that the work needs, as far as somebody has announced it. */
  announced: number;
  /** Number of bytes for which space is reserved, including the bytes that the work has already written. */
  reserved: number;
}

/** Returns for how many bytes a claim should have space when its work has written `written` bytes. */
export function stepOf({ announced, isAtOnce }: SpaceClaim, written: number): number {
  if (isAtOnce === true) {
    return announced;
  }
  const ahead = Math.min(MOST_AHEAD_BYTES, Math.max(LEAST_AHEAD_BYTES, written));
  return Math.min(announced, written + ahead);
}

/** Returns the number of bytes that the work of a claim has on the disk. */
export async function writtenBytes({ folder, beside }: SpaceClaim): Promise<number> {
  return (await folderBytes(folder)) + (beside === undefined ? 0 : await folderBytes(beside));
}

async function remaining(claim: SpaceClaim): Promise<number> {
  return Math.max(0, claim.reserved - (await writtenBytes(claim)));
}

async function totalRemaining(claims: readonly SpaceClaim[]): Promise<number> {
  return sum(await Promise.all(claims.map(remaining)));
}

export function sizeOf({ sizeBytes }: { sizeBytes: number }): number {
  return sizeBytes;
}

export function sum(numbers: readonly number[]): number {
  return numbers.reduce((total, one) => total + one, 0);
}

/** Part of the space for images that one tenant can have while others need space. */
const TENANT_SHARE = 1 / 2;

/** Content on the disk, or space that is reserved for it. */
export interface Use {
  /** Namespaces whose Pods asked for the content. It counts in full for each of them. Empty if nobody knows them any more. */
  readonly tenants: readonly string[];
  readonly sizeBytes: number;
}

/** What all tenants use. */
export class Shares {
  readonly #used = new Map<string, number>();
  readonly #share: number;

  /** `capacityBytes` is the space for all images, used and free. */
  constructor(uses: readonly Use[], capacityBytes: number) {
    this.#share = capacityBytes * TENANT_SHARE;
    for (const { tenants, sizeBytes } of uses) {
      for (const tenant of tenants) {
        this.#used.set(tenant, (this.#used.get(tenant) ?? 0) + sizeBytes);
      }
    }
  }

  /** Returns the number of bytes that the tenant uses in excess of its share. */
  excess(tenant: string): number {
    return Math.max(0, (this.#used.get(tenant) ?? 0) - this.#share);
  }

  /**
   * Returns the content that may be removed for `tenant`, in the order of removal. `content` is in the order in which it would be removed if
   * there were no shares. Content of tenants with an excess comes first. A tenant with an excess removes nothing of tenants without one.
   */
  removable<T extends Use>(tenant: string, content: readonly T[]): T[] {
    const isOver = this.excess(tenant) > 0;
    return content
      .map((one) => ({ one, excess: this.#leastExcess(one, tenant) }))
      .filter(({ excess }) => !isOver || excess > 0)
      .toSorted((a, b) => b.excess - a.excess)
      .map(({ one }) => one);
  }

  /**
   * Returns the least excess of the tenants of this content. Content of nobody, and of `tenant` alone, belongs to no other tenant, so it
   * counts as the smallest excess.
   */
  #leastExcess({ tenants }: Use, tenant: string): number {
    const others = tenants.filter((one) => one !== tenant);
    const excesses = others.map((one) => this.excess(one));
    return others.length === 0 ? Number.MIN_VALUE : Math.min(...excesses);
  }
}

/** Returns the message for work of a tenant that ends because another tenant needs the space. */
export function overShare(tenant: string | undefined): string {
  return `Namespace ${tenant} uses more than half of the space for images of this host, and another namespace needs space`;
}

export interface SpaceLimits {
  /** Largest number of bytes that all images together may take. If undefined, only the size of the host's disk limits the images. */
  budget?: number | undefined;
  /** Number of bytes of the file system that must stay free. */
  minimumFree: number;
}

interface MeterParts extends SpaceLimits {
  layout: StoreLayout;
  catalog: Catalog;
}

export class SpaceMeter {
  readonly #options: MeterParts;
  readonly #claims: ReadonlySet<SpaceClaim>;

  /** `claims` has the reservations of now. */
  constructor(options: MeterParts, claims: ReadonlySet<SpaceClaim>) {
    this.#options = options;
    this.#claims = claims;
  }

  /** Returns the number of bytes that images take on the disk, including unfinished fetches. */
  async used(): Promise<number> {
    const { catalog, layout } = this.#options;
    const partials = await layout.partials();
    return sum(catalog.all().map(({ metadata }) => metadata.sizeBytes)) + sum(partials.map(sizeOf));
  }

  /**
   * Returns how many bytes a claim lacks, and how many bytes are free for it. Bytes that other claims have reserved do not count as free.
   */
  async lack(claim: SpaceClaim): Promise<{ lacking: number; free: number }> {
    const others = [...this.#claims].filter(({ folder }) => folder !== claim.folder);
    const byDisk = (await this.free()) - (await totalRemaining(others));
    const free = Math.min(byDisk, await this.budgetLeft(claim));
    return { lacking: (await remaining(claim)) - free, free: Math.max(0, free) };
  }

  /**
   * Returns how many bytes of the configured limit for all images (`budget`) are left for a claim. The limit applies only to claims in the
   * folder of the images. Claims of tasks in other folders do not count towards it.
   */
  async budgetLeft(claim: SpaceClaim): Promise<number> {
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
   * Returns the result of {@link budgetLeft} if the work of this claim has written more bytes than it announced. Otherwise the
   * result is infinite, because a claim must not end when another claim takes too much.
   */
  async excessLeft(claim: SpaceClaim): Promise<number> {
    const isExceeded = (await writtenBytes(claim)) > claim.announced;
    return isExceeded ? await this.budgetLeft(claim) : Number.POSITIVE_INFINITY;
  }

  #isOfImages({ folder }: SpaceClaim): boolean {
    return folder.startsWith(`${this.#options.layout.root}/`);
  }

  /**
   * Returns how many bytes of the file system are free in addition to `minimumFree`. The result is negative if fewer than `minimumFree`
   * bytes are free.
   */
  async free(): Promise<number> {
    const { layout, minimumFree } = this.#options;
    return (await freeDisk(layout.root)).bytes - minimumFree;
  }

  /** Reports whether disk pressure would end now. */
  async isUnpressed(): Promise<boolean> {
    const { layout, minimumFree } = this.#options;
    return !isDiskPressed(await freeDisk(layout.root), minimumFree, true);
  }

  /** Returns the shares of all tenants. `claim` replaces the reservation in its folder. */
  async sharesWith(claim: SpaceClaim): Promise<Shares> {
    const { budget = Number.POSITIVE_INFINITY, catalog } = this.#options;
    const others = [...this.#claims].filter(({ folder }) => folder !== claim.folder);
    const claims = [...others, claim].map(({ tenant, reserved }) => ({
      tenants: tenant === undefined ? [] : [tenant],
      sizeBytes: reserved,
    }));
    const capacity = Math.min(budget, (await this.used()) + Math.max(0, await this.free()));
    return new Shares([...catalog.all().map(({ metadata }) => metadata), ...claims], capacity);
  }
}
