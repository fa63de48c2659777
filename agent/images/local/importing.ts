/**
 * Imports images to this host. An import reserves disk space, fetches the image or resumes its fetch, checks the disk, and moves it to its
 * final folder.
 */
import type { Logger } from 'pino';
import { type Reason, ReasonedError } from '../../../api/v1alpha1/reasons.ts';
import { SingleFlight } from '../../../base/concurrency.ts';
import { allocatedBytes } from '../../disks/diskio.ts';
import type { RunAs } from '../../../base/exec.ts';
import { FairQueue } from '../../disks/fairqueue.ts';
import { asReasonedError, memoryIn, type PullTarget } from '../layouts/pull.ts';
import type { Catalog, ImageRequest, CatalogEntry, WaitingCaller } from './catalog.ts';
import type { Holders } from './holders.ts';
import { inspectImage } from './inspect.ts';
import { type ImageId, type StoreLayout, type ImageMetadata, newMetadata } from './layout.ts';
import type { ImageMetrics } from './metrics.ts';
import type { Space, Watched } from './space.ts';

/**
 * Number of images that a host fetches at the same time. Each fetch can keep several decompression windows of 64 MiB in memory, and its source
 * decides how long it lasts. So without a limit, the Pods of one namespace could use all memory of the agent.
 */
const FETCHES_AT_ONCE = 6;
/**
 * Reasons of failures after which the fetched bytes are removed, because they are useless or their disk space is needed. After other
 * failures, the bytes stay, and a later import continues with them.
 */
const HOPELESS: ReadonlySet<Reason> = new Set(['DigestMismatch', 'ImageInvalid', 'DiskFull']);
/**
 * Reasons of failures that depend on the requester's own credentials or architecture. After such a failure, the same import can succeed for
 * another requester.
 */
const OF_THE_ASKER: ReadonlySet<Reason> = new Set(['ImageAccessDenied', 'ImageArchitectureMismatch']);

export interface Import {
  id: ImageId;
  /** Text that names the content and its source in messages. */
  what: string;
  /** Disk space in bytes that the import needs, as far as it is known in advance. */
  roomBytes: number;
  metadata: Pick<ImageMetadata, 'digest' | 'architecture' | 'memory' | 'untrustedMemory'>;
  /** Fetches and writes `target.disk`. If `metadata` has memory, also writes the files with the memory. */
  run: (target: PullTarget, watched: Watched) => Promise<void>;
}

/** The image that a request asks for, as its source knows it. */
export interface SourceImage {
  /** Names under which later requests find the image in the store. */
  readonly names: readonly string[];
  /**
   * Returns the image of the store, or fetches it. Records from the beginning that the holder of the request needs the image, so that the
   * store keeps it.
   *
   * @throws ReasonedError when the image cannot be used.
   */
  ensure: () => Promise<CatalogEntry>;
}

/** Parts of the store that every source of images needs. */
export interface SourceParts {
  catalog: Catalog;
  holders: Holders;
  importing: Importing;
  metrics: ImageMetrics;
  logger: Logger;
}

/** Fields of the request that began an import. The signal is that of the import. */
type OfImport = Pick<ImageRequest, 'format' | 'tenant' | 'signal'>;

interface ImportingParts {
  layout: StoreLayout;
  catalog: Catalog;
  space: Space;
  metrics: ImageMetrics;
  /** User under which programs read untrusted content. Undefined if the agent does not run as root. */
  reader: RunAs | undefined;
}

export class Importing {
  readonly #parts: ImportingParts;
  readonly #flights = new SingleFlight<CatalogEntry>();
  readonly #queue = new FairQueue({
    atOnce: FETCHES_AT_ONCE,
    work: { one: 'fetch of an image', many: 'fetches of images' },
  });

  constructor(parts: ImportingParts) {
    this.#parts = parts;
  }

  /**
   * Runs the import that `plan` returns. Callers that use the same source and state the same format at the same time share one import.
   * `source` is a text that names the content and its origin. By this text, a later call finds the files of an earlier attempt. A shared
   * import can fail because of the credentials or architecture of the caller that began it. In this case, each waiting caller tries again.
   *
   * @throws ReasonedError when the import fails, or the signal's reason when the signal aborts.
   */
  async ensure(
    source: string,
    request: WaitingCaller & Pick<ImageRequest, 'format' | 'tenant' | 'onWait'>,
    plan: (signal: AbortSignal, onProgress: WaitingCaller['onProgress']) => Promise<Import>,
  ): Promise<CatalogEntry> {
    const { format, tenant, signal: stop, onWait } = request;
    // If the content does not have the stated format, the import fails. So callers that state another format have an import of their own.
    const key = format === 'Auto' ? source : `${format} ${source}`;
    for (;;) {
      let isOwn = false;
      try {
        const join = async (): Promise<{ result: CatalogEntry }> =>
          await this.#flights.join(key, request, async (signal, onProgress) => {
            isOwn = true;
            return await this.#import(key, await plan(signal, onProgress), { format, tenant, signal });
          });
        const { result } = this.#flights.isRunning(key)
          ? await join()
          : await this.#inPlace(key, { namespace: tenant, signal: stop, onWait }, join);
        return result;
      } catch (error) {
        const isTheirs = error instanceof ReasonedError && OF_THE_ASKER.has(error.reason);
        if (isOwn || !isTheirs) {
          throw error;
        }
      }
    }
  }

  /**
   * Runs `join` when there is a place for one more import. Only a caller that begins an import needs a place. It waits before the import
   * exists. Otherwise other namespaces that need the same image would wait for the places of this caller's namespace. The import keeps the
   * place until its end, also if this caller no longer waits for it. Otherwise others who have joined could run imports without a place.
   */
  async #inPlace<T>(
    key: string,
    queued: Parameters<FairQueue['take']>[0],
    join: () => Promise<T>,
  ): Promise<T> {
    const joined = Promise.withResolvers<T>();
    const hold = async (): Promise<void> => {
      const joining = join();
      joined.resolve(joining);
      await Promise.allSettled([joining]);
      await this.#flights.ended(key);
    };
    this.#queue.take(queued, hold).catch(joined.reject);
    return await joined.promise;
  }

  async #import(key: string, planned: Import, request: OfImport): Promise<CatalogEntry> {
    const { layout, space, metrics } = this.#parts;
    const target = layout.partial(key);
    try {
      const stored = await space.keeping(target.folder, async () => {
        const metadata =
          (await layout.finished(target.folder)) ?? (await this.#fetch(target, planned, request));
        return await this.#place(target.folder, planned.id, metadata);
      });
      metrics.pulls.inc({ result: 'success' });
      return stored;
    } catch (thrown) {
      metrics.pulls.inc({ result: request.signal.aborted ? 'cancelled' : 'failure' });
      const error = asReasonedError(thrown, planned.what);
      if (error instanceof ReasonedError && HOPELESS.has(error.reason)) {
        await layout.dropPartial(target.folder);
      }
      throw error;
    }
  }

  async #fetch(
    target: PullTarget,
    planned: Import,
    { format, tenant, signal }: OfImport,
  ): Promise<ImageMetadata> {
    const { layout, space, reader } = this.#parts;
    const claim = { folder: target.folder, bytes: planned.roomBytes, tenant };
    await space.within(claim, signal, async (watched) => {
      await layout.beginPartial(target.folder);
      await planned.run(target, watched);
    });
    await layout.letRead(target.disk);
    const inspected = await inspectImage(target.disk, format, reader);
    const memory = planned.metadata.memory === undefined ? [] : Object.values(memoryIn(target.folder));
    const sizeBytes = await allocatedBytes(target.disk, ...memory);
    const metadata = newMetadata({ ...planned.metadata, ...inspected, sizeBytes });
    await layout.finish(target.folder, metadata);
    return metadata;
  }

  async #place(folder: string, id: ImageId, metadata: ImageMetadata): Promise<CatalogEntry> {
    const { layout, catalog } = this.#parts;
    if (catalog.get(id) === undefined) {
      // The image can have files with damaged metadata. They are removed, because the new files have the same content.
      await layout.discard(id);
    }
    const present = catalog.get(id);
    if (present !== undefined) {
      // Another import has stored the same content in the meantime, so the content of this import is not needed.
      await layout.dropPartial(folder);
      return present;
    }
    layout.place(folder, id);
    const stored = catalog.add(id, metadata);
    await layout.tidy(id);
    return stored;
  }
}
