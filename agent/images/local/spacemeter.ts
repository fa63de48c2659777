/** Measures the disk space for images: what is used, free, and reserved. */
import type { Catalog } from './catalog.ts';
import { type Claim, remaining, sizeOf, sum, totalRemaining } from './claims.ts';
import { folderBytes } from '../../disks/diskio.ts';
import { freeDisk, isDiskPressed } from '../../disks/freedisk.ts';
import type { Layout } from './layout.ts';
import { Shares } from './shares.ts';

export interface SpaceLimits {
  /** Largest number of bytes that all images together may take. If undefined, only the size of the host's disk limits the images. */
  budget?: number | undefined;
  /** Number of bytes of the file system that must stay free. */
  minimumFree: number;
}

interface MeterParts extends SpaceLimits {
  layout: Layout;
  catalog: Catalog;
}

export class SpaceMeter {
  readonly #options: MeterParts;
  readonly #claims: ReadonlySet<Claim>;

  /** `claims` has the reservations of now. */
  constructor(options: MeterParts, claims: ReadonlySet<Claim>) {
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
  async lack(claim: Claim): Promise<{ lacking: number; free: number }> {
    const others = [...this.#claims].filter(({ folder }) => folder !== claim.folder);
    const byDisk = (await this.free()) - (await totalRemaining(others));
    const free = Math.min(byDisk, await this.budgetLeft(claim));
    return { lacking: (await remaining(claim)) - free, free: Math.max(0, free) };
  }

  /**
   * Returns how many bytes of the configured limit for all images (`budget`) are left for a claim. The limit applies only to claims in the
   * folder of the images. Claims of tasks in other folders do not count towards it.
   */
  async budgetLeft(claim: Claim): Promise<number> {
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
  async excessLeft(claim: Claim): Promise<number> {
    const isExceeded = (await folderBytes(claim.folder)) > claim.announced;
    return isExceeded ? await this.budgetLeft(claim) : Number.POSITIVE_INFINITY;
  }

  #isOfImages({ folder }: Claim): boolean {
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
  async sharesWith(claim: Claim): Promise<Shares> {
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
