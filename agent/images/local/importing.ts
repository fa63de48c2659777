/** From something to fetch to an image of this host: with room for it, taken up where it was cut, checked, then given its place. */
import { type Reason, ReasonedError } from '../../../api/v1alpha1/reasons.ts';
import { SingleFlight } from '../../../base/singleflight.ts';
import { allocatedBytes } from '../../disks/diskio.ts';
import type { RunAs } from '../../../base/exec.ts';
import { asReasonedError, type PullTarget } from '../layouts/pull.ts';
import type { Catalog, Stored } from './catalog.ts';
import { type ImageFormat, inspectImage } from './inspect.ts';
import type { ImageId, Layout, Metadata } from './layout.ts';
import type { ImageMetrics } from './metrics.ts';
import type { Space, Watched } from './space.ts';

/** The fetched bytes are of no use, or their room is needed. After any other failure the fetch is taken up again later. */
const HOPELESS: ReadonlySet<Reason> = new Set(['DigestMismatch', 'ImageInvalid', 'DiskFull']);
/** Failures that follow from what the one who fetches has asked with. Others may fare better with their own. */
const OF_THE_ASKER: ReadonlySet<Reason> = new Set(['ImageAccessDenied', 'ImageArchitectureMismatch']);

/** One who waits for a fetch. */
export interface Waiting {
  signal: AbortSignal;
  /** 0–100, of the bytes to fetch. */
  onProgress: (percent: number) => void;
}

/** The part of a request for an image that every source is told. */
export interface ImageRequest extends Waiting {
  architecture: 'amd64' | 'arm64';
  format: ImageFormat;
  /** Does `work` while the asker holds the image. */
  holding: (id: ImageId, work: () => Promise<Stored>) => Promise<Stored>;
}

export interface Import {
  id: ImageId;
  /** The content and its source, for people. */
  what: string;
  /** Bytes that it will take at most, as far as that is known beforehand. */
  roomBytes: number;
  format: ImageFormat;
  metadata: Pick<Metadata, 'digest' | 'architecture'>;
  /** Makes `target.disk`. */
  run: (target: PullTarget, watched: Watched) => Promise<void>;
}

export interface ImportingParts {
  layout: Layout;
  catalog: Catalog;
  space: Space;
  metrics: ImageMetrics;
  /** Who reads what strangers made, where the agent is root. */
  reader: RunAs | undefined;
}

export class Importing {
  readonly #parts: ImportingParts;
  readonly #flights = new SingleFlight<Stored>();

  constructor(parts: ImportingParts) {
    this.#parts = parts;
  }

  /**
   * Imports what `plan` says, once for all who ask with the same key at the same time. `key` names content and source: the same
   * again finds what an earlier attempt left. Who waits for another's import begins one of his own when that one fails
   * for what the other has asked with.
   *
   * @throws ReasonedError, or the reason of the signal.
   */
  async ensure(
    key: string,
    waiting: Waiting,
    plan: (signal: AbortSignal, onProgress: Waiting['onProgress']) => Promise<Import>,
  ): Promise<Stored> {
    for (;;) {
      let isOwn = false;
      try {
        const { result } = await this.#flights.join(key, waiting, async (signal, onProgress) => {
          isOwn = true;
          return await this.#import(key, await plan(signal, onProgress), signal);
        });
        return result;
      } catch (error) {
        const isTheirs = error instanceof ReasonedError && OF_THE_ASKER.has(error.reason);
        if (isOwn || !isTheirs) {
          throw error;
        }
      }
    }
  }

  async #import(key: string, wanted: Import, signal: AbortSignal): Promise<Stored> {
    const { layout, metrics } = this.#parts;
    const target = layout.partial(key);
    try {
      const metadata = (await layout.finished(target.folder)) ?? (await this.#fetch(target, wanted, signal));
      const stored = await this.#place(target.folder, wanted.id, metadata);
      metrics.pulls.inc({ result: 'success' });
      return stored;
    } catch (thrown) {
      metrics.pulls.inc({ result: signal.aborted ? 'cancelled' : 'failure' });
      const error = asReasonedError(thrown, wanted.what);
      if (error instanceof ReasonedError && HOPELESS.has(error.reason)) {
        await layout.dropPartial(target.folder);
      }
      throw error;
    }
  }

  async #fetch(target: PullTarget, wanted: Import, signal: AbortSignal): Promise<Metadata> {
    const { layout, space, reader } = this.#parts;
    const claim = { folder: target.folder, bytes: wanted.roomBytes };
    await space.within(claim, signal, async (watched) => {
      await layout.beginPartial(target.folder);
      await wanted.run(target, watched);
    });
    await layout.letRead(target.disk);
    const inspected = await inspectImage(target.disk, wanted.format, reader);
    const sizeBytes = await allocatedBytes(target.disk);
    const nobodys = { names: [], repositories: [], urls: [], entries: [] };
    const metadata = { version: 1 as const, ...wanted.metadata, ...inspected, ...nobodys, sizeBytes };
    await layout.finish(target.folder, metadata);
    return metadata;
  }

  async #place(folder: string, id: ImageId, metadata: Metadata): Promise<Stored> {
    const { layout, catalog } = this.#parts;
    const present = catalog.get(id);
    if (present !== undefined) {
      // The same content came from another source meanwhile.
      await layout.dropPartial(folder);
      return present;
    }
    layout.place(folder, id);
    const stored = catalog.add(id, metadata);
    await layout.tidy(id);
    return stored;
  }
}
