/** From something to fetch to an image in the store: with room for it, taken up where it was cut, checked, then given its place. */
import { isDiskFull } from '../../../base/errors.ts';
import type { RunAs } from '../../machines/users.ts';
import { allocatedBytes } from '../../disks/allocated.ts';
import type { Catalog, Stored } from './catalog.ts';
import type { PullTarget } from '../layouts/pull.ts';
import { inspectImage } from './inspect.ts';
import type { ImageId, Layout, Metadata } from './layout.ts';
import type { ImageMetrics } from './metrics.ts';
import type { Space, Watched } from './space.ts';
import { ImageError, type ImageErrorReason, type ImageFormat } from './types.ts';

/** What was fetched is of no use, or its room is needed; after anything else the fetch is taken up again later. */
const HOPELESS: ReadonlySet<ImageErrorReason> = new Set(['DigestMismatch', 'ImageInvalid', 'DiskFull']);

export interface Job {
  id: ImageId;
  /** Of the place that it is fetched from: the same again finds what an earlier attempt left. */
  key: string;
  /** The same, for people. */
  what: string;
  /** Bytes that it will take at most, as far as that is known beforehand. */
  roomBytes: number;
  format: ImageFormat;
  metadata: Pick<Metadata, 'digest' | 'architecture' | 'names' | 'repositories'>;
  /** Makes `target.disk`. */
  run: (target: PullTarget, watched: Watched) => Promise<void>;
}

export class Making {
  readonly #layout: Layout;
  readonly #catalog: Catalog;
  readonly #space: Space;
  readonly #metrics: ImageMetrics;
  readonly #reader: RunAs | undefined;

  constructor(parts: {
    layout: Layout;
    catalog: Catalog;
    space: Space;
    metrics: ImageMetrics;
    reader: RunAs | undefined;
  }) {
    this.#layout = parts.layout;
    this.#catalog = parts.catalog;
    this.#space = parts.space;
    this.#metrics = parts.metrics;
    this.#reader = parts.reader;
  }

  async make(job: Job, signal: AbortSignal): Promise<Stored> {
    const { folder } = this.#layout.partial(job.key);
    try {
      const stored = await this.#make(job, signal);
      this.#metrics.pulls.inc({ result: 'success' });
      return stored;
    } catch (thrown) {
      this.#metrics.pulls.inc({ result: signal.aborted ? 'cancelled' : 'failure' });
      const error = isDiskFull(thrown) ? new ImageError('DiskFull', `no room for ${job.what}`) : thrown;
      if (error instanceof ImageError && HOPELESS.has(error.reason)) {
        await this.#layout.dropPartial(folder);
      }
      throw error;
    }
  }

  async #make(job: Job, signal: AbortSignal): Promise<Stored> {
    const target = this.#layout.partial(job.key);
    const finished = await this.#layout.finished(target.folder);
    if (finished !== undefined) {
      return await this.#place(job, finished);
    }
    const claim = { folder: target.folder, bytes: job.roomBytes };
    await this.#space.within(claim, signal, async (watched) => {
      await this.#layout.beginPartial(target.folder);
      await job.run(target, watched);
    });
    await this.#layout.letRead(target.disk);
    const inspected = await inspectImage(target.disk, job.format, this.#reader);
    const sizeBytes = await allocatedBytes(target.disk);
    const made = { version: 1 as const, ...job.metadata, ...inspected, urls: [], entries: [] };
    const metadata = { ...made, sizeBytes };
    await this.#layout.finish(target.folder, metadata);
    return await this.#place(job, metadata);
  }

  async #place(job: Job, metadata: Metadata): Promise<Stored> {
    const { folder } = this.#layout.partial(job.key);
    const present = this.#catalog.get(job.id);
    if (present !== undefined) {
      // The same content came from another place meanwhile.
      await this.#layout.dropPartial(folder);
      return present;
    }
    this.#layout.place(folder, job.id);
    const stored = this.#catalog.add(job.id, metadata);
    await this.#layout.settle(job.id);
    return stored;
  }
}
