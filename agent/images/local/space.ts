/** Room for images: asked for before a fetch, watched while it goes on, and made by removing what nobody holds. */
import { statfs } from 'node:fs/promises';
import { ReasonedError } from '../../../api/v1alpha1/reasons.ts';
import { Serial } from '../../../base/serial.ts';
import type { Catalog } from './catalog.ts';
import { folderBytes } from '../../disks/diskio.ts';
import type { Layout } from './layout.ts';

/** Machines' disks grow at the same time; in a second the fastest disk writes less than the least that is kept free. */
const WATCH_MILLISECONDS = 1_000;
/** A fetch that nobody has gone on with for so long is given up. */
const PARTIAL_LIFE_MILLISECONDS = 24 * 3_600_000;

export interface SpaceLimits {
  /** Bytes that all images together may take; undefined: what the disk holds. */
  budget?: number | undefined;
  /** Bytes of the file system that stay free. */
  minimumFree: number;
}

export interface SpaceOptions extends SpaceLimits {
  layout: Layout;
  catalog: Catalog;
  onEviction: () => void;
}

/** Work under way in a folder, and the room that it will need there in all, as far as is known yet. */
interface Claim {
  readonly folder: string;
  bytes: number;
}

export interface Watched {
  /** Aborts when the disk gets full all the same. */
  signal: AbortSignal;
  /** It is found that the work needs so many bytes in all. @throws ReasonedError `DiskFull` */
  need: (bytes: number) => Promise<void>;
}

interface Evictable {
  readonly sizeBytes: number;
  readonly remove: () => Promise<void>;
}

export class Space {
  readonly #options: SpaceOptions;
  readonly #claims = new Set<Claim>();
  /** One at a time makes room, or two would reckon with the same bytes. */
  readonly #making = new Serial();

  constructor(options: SpaceOptions) {
    this.#options = options;
  }

  /** Does `work` in `folder`, for which there is room of `bytes` when it begins. @throws ReasonedError `DiskFull` */
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

  /** Removes fetches that were given up, and what nobody holds when less is free than is to stay so. */
  async tidy(): Promise<void> {
    await this.relieve();
    const oldest = Date.now() - PARTIAL_LIFE_MILLISECONDS;
    for (const { folder, usedAt } of await this.#idlePartials()) {
      if (usedAt < oldest) {
        await this.#options.layout.dropPartial(folder);
      }
    }
  }

  /** Removes what nobody holds while less is free than is to stay so. */
  async relieve(): Promise<void> {
    await this.#making.run(() => this.#relieve());
  }

  /** Bytes that images take, the unfinished ones among them. */
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
        `the image needs ${claim.bytes} bytes, and ${free} are free for images on this host; ${lacking} bytes too few`,
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

  /** How many bytes are too few for it, beside all that others were promised. */
  async #lack(claim: Claim): Promise<{ lacking: number; free: number }> {
    const { budget = Number.POSITIVE_INFINITY } = this.#options;
    const others = [...this.#claims].filter((other) => other !== claim);
    const promised = await Promise.all(others.map(remaining));
    const byDisk = (await this.#free()) - sum(promised);
    const byBudget = budget - (await this.used()) - sum(promised);
    const free = Math.max(0, Math.min(byDisk, byBudget));
    return { lacking: (await remaining(claim)) - Math.min(byDisk, byBudget), free };
  }

  /** Bytes that may still be written. */
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
            `less than ${minimumFree} bytes are free on the disk of this host's images`,
          ),
        );
      });
    } catch (error) {
      full.abort(error);
    }
  }

  /** False when more has to stay free than does, with nothing left to remove. */
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

  /** Fetches that nobody goes on with before images that are whole. */
  async #evictables(claim: Claim | undefined): Promise<Evictable[]> {
    const { catalog, layout, onEviction } = this.#options;
    const partials = (await this.#idlePartials()).filter(({ folder }) => folder !== claim?.folder);
    return [
      ...partials.map(({ folder, sizeBytes }) => ({ sizeBytes, remove: () => layout.dropPartial(folder) })),
      ...catalog.evictable().map((stored) => ({
        sizeBytes: stored.metadata.sizeBytes,
        remove: async () => {
          // Somebody may have asked for it since.
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
