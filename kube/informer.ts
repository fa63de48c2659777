/** Keeps a cache with the same objects as the API server. It reads all objects, then watches for changes. A watch that ends is resumed. */
import { addAbortListener } from 'node:events';
import type { Logger } from 'pino';
import { Backoff } from '../base/backoff.ts';
import { LineSplitter } from '../base/lines.ts';
import { type Cache, type IndexFunctions, Store } from './cache.ts';
import { type KubeClient, query } from './client.ts';
import { ApiError, apiErrorFrom } from './errors.ts';
import { parseWithoutManagedFields } from './json.ts';
import { compareResourceVersions, type KubeObject, keyOf, pathOf, type Resource } from './objects.ts';
import { rest } from '../base/time.ts';
import {
  endsInitialEvents,
  LINE_LIMIT_BYTES,
  relistReasonOf,
  SILENCE_MILLISECONDS,
  type WatchEvent,
} from './follow.ts';

/**
 * The first wait and the longest wait between attempts, in milliseconds. client-go's reflector has the same values. The jitter at most
 * doubles a wait.
 */
const BACKOFF = { firstMilliseconds: 800, capMilliseconds: 30_000, jitter: 1 } as const;
/** Duration of a watch: random, 5 to 10 minutes, as in client-go. Random durations spread the watches over several API servers. */
const WATCH_SECONDS = { least: 300, spread: 300 } as const;
/** Time limit in milliseconds for a watch to report a change that this process made. A working watch is faster. */
export const BEHIND_MILLISECONDS = 5_000;
/** Shortest duration of a normal watch in milliseconds. If a watch ends earlier without an event, the next watch begins after a wait. */
const SHORT_WATCH_MILLISECONDS = 1_000;

export interface InformerOptions<T extends KubeObject> {
  namespace?: string;
  labelSelector?: string;
  fieldSelector?: string;
  /** Function that removes fields that nobody reads. It is called before an object is stored, and is allowed to change the object. */
  transform?: (object: T) => T;
  indexes?: IndexFunctions<T>;
}

/** Error with which this process ends a watch on purpose. The watch is then resumed. */
class CutError extends Error {
  override readonly name = 'CutError';
  readonly reason: 'silent' | 'behind';

  constructor(reason: 'silent' | 'behind') {
    super(`the watch was cut: ${reason}`);
    this.reason = reason;
  }
}

/**
 * Reads all objects, and then watches for changes. The read uses WatchList, which sends the objects one by one. If the server has no
 * WatchList, the read uses pages. When the connection ends, the watch continues at the last resourceVersion. After status 410 and other
 * refusals, all objects are read again, with back-off. They are also read again if a resumed watch sends nothing. The number of attempts
 * has no limit.
 */
export class Informer<T extends KubeObject> {
  readonly cache: Cache<T>;
  /** Resolves when all objects have been read for the first time. Rejects when the informer is stopped before that. */
  readonly synced: Promise<void>;
  /** Time by `performance.now()` when the last complete read of all objects began. The cache contains all changes from before this time. */
  readSince = Number.NEGATIVE_INFINITY;

  readonly #store: Store<T>;
  readonly #client: KubeClient;
  readonly #type: Resource<T>;
  readonly #options: InformerOptions<T>;
  readonly #logger: Logger;
  readonly #label: string;
  readonly #syncedResolvers = Promise.withResolvers<void>();
  readonly #backoff = new Backoff(BACKOFF);
  #watchListSupported = true;
  #cut: ((reason: 'silent' | 'behind') => void) | undefined;
  /** Time by `performance.now()` when the watch began, or when its read of all objects ended. */
  #followingSince = 0;
  #relistReason: string | undefined = 'start';
  /** Number of objects that this informer has added to the metric. Other informers of the same type add their objects to it, too. */
  #counted = 0;

  constructor(client: KubeClient, type: Resource<T>, options: InformerOptions<T> & { logger: Logger }) {
    this.#client = client;
    this.#type = type;
    this.#options = options;
    const group = type.apiVersion.split('/').at(-2);
    this.#label = group === undefined ? type.plural : `${type.plural}.${group}`;
    this.#logger = options.logger.child({ informer: this.#label });
    this.#store = new Store<T>(this.#logger, options.indexes, options.transform);
    this.cache = this.#store;
    this.synced = this.#syncedResolvers.promise;
    // `synced` can reject while no caller waits for it. This line handles the rejection. Callers that wait for `synced` still get it.
    this.synced.catch((error: unknown) =>
      this.#logger.debug({ err: error }, 'the informer was stopped before its first read'),
    );
  }

  start(signal: AbortSignal): void {
    void this.#run(signal);
  }

  /**
   * If the cache has not yet reached `resourceVersion`, ends and resumes the watch. Does nothing while all objects are being read, because
   * the read would have to begin again. Does nothing if the watch began, or its read of all objects ended, less than 5 s ago.
   */
  cutIfStale(resourceVersion: string): void {
    const behind = compareResourceVersions(this.#store.resourceVersion, resourceVersion) < 0;
    const isReading = this.#relistReason !== undefined;
    if (behind && !isReading && performance.now() - this.#followingSince > BEHIND_MILLISECONDS) {
      this.#cut?.('behind');
    }
  }

  get #metrics() {
    return this.#client.transport.metrics;
  }

  async #run(signal: AbortSignal): Promise<void> {
    while (!signal.aborted) {
      try {
        await this.#readAndWatch(signal);
      } catch (error) {
        if (!signal.aborted) {
          await this.#recover(signal, error);
        }
      }
    }
    this.#syncedResolvers.reject(signal.reason);
  }

  async #recover(signal: AbortSignal, error: unknown): Promise<void> {
    if (error instanceof CutError) {
      this.#metrics.cuts.inc({ resource: this.#label, reason: error.reason });
      // An API server without progress notifications of etcd sends nothing about a kind that nobody changes. This is no fault. If the server
      // is away, the next watch fails, and that is a warning.
      const level = error.reason === 'silent' ? 'debug' : 'warn';
      this.#logger[level]({ reason: error.reason }, 'watch cut and resumed');
      return;
    }
    const asked = error instanceof ApiError ? error.retryAfterMilliseconds : undefined;
    const wait = Math.max(this.#backoff.next(), asked ?? 0);
    this.#relistReason ??= relistReasonOf(error);
    this.#logger.warn({ err: error, waitMilliseconds: Math.round(wait) }, 'watch failed, trying again');
    await rest(wait, signal);
  }

  async #readAndWatch(signal: AbortSignal): Promise<void> {
    const reason = this.#relistReason;
    if (reason !== undefined) {
      this.#metrics.relists.inc({ resource: this.#label, reason });
      if (this.#watchListSupported) {
        return await this.#watchList(signal);
      }
      await this.#readPages(signal);
    }
    await this.#watch(signal, { resourceVersion: this.#store.resourceVersion });
  }

  async #watchList(signal: AbortSignal): Promise<void> {
    try {
      await this.#watch(signal, {
        sendInitialEvents: true,
        resourceVersionMatch: 'NotOlderThan',
      });
    } catch (error) {
      const refused = error instanceof ApiError && (error.status === 422 || error.status === 400);
      if (!refused || this.#relistReason === undefined) {
        throw error;
      }
      this.#logger.info({ err: error }, 'the server has no WatchList, so the informer lists in pages');
      this.#watchListSupported = false;
    }
  }

  async #readPages(signal: AbortSignal): Promise<void> {
    const { namespace, labelSelector, fieldSelector } = this.#options;
    const options = { namespace, labelSelector, fieldSelector, signal };
    const began = performance.now();
    const seen = new Set<string>();
    let resourceVersion = '';
    for await (const page of this.#client.pages(this.#type, options)) {
      resourceVersion = page.resourceVersion;
      for (const object of page.items) {
        seen.add(keyOf(object));
        this.#store.put(object);
      }
    }
    this.#finishRead(seen, resourceVersion, began);
  }

  #finishRead(seen: ReadonlySet<string>, resourceVersion: string, began: number): void {
    this.#store.retain(seen);
    this.#relistReason = undefined;
    this.readSince = began;
    this.#followingSince = performance.now();
    this.#advance(resourceVersion);
    this.#syncedResolvers.resolve();
  }

  async #watch(signal: AbortSignal, parameters: Record<string, string | boolean | undefined>): Promise<void> {
    const began = performance.now();
    const end = new AbortController();
    using _listener = addAbortListener(signal, () => end.abort(signal.reason));
    const silence = setTimeout(() => this.#cut?.('silent'), SILENCE_MILLISECONDS);
    /** Whether the watch is open, but has not sent anything yet. */
    let isMute = false;
    this.#cut = (reason) => {
      if (isMute) {
        // After a restore of etcd, the position of the watch can be in the future, and the API server sends nothing until then.
        this.#relistReason ??= reason;
      }
      end.abort(new CutError(reason));
    };
    this.#followingSince = began;
    try {
      const stream = await this.#client.transport.stream(this.#watchPath(parameters), end.signal);
      isMute = true;
      const events = await this.#consume(stream, began, () => {
        isMute = false;
        silence.refresh();
      });
      if (this.#relistReason !== undefined) {
        throw new Error('the server ended the watch before all objects had arrived');
      }
      if (events === 0 && performance.now() - began < SHORT_WATCH_MILLISECONDS) {
        throw new Error('the server ended the watch at once');
      }
    } finally {
      this.#cut = undefined;
      clearTimeout(silence);
    }
  }

  #watchPath(parameters: Record<string, string | boolean | undefined>): string {
    const { namespace, labelSelector, fieldSelector } = this.#options;
    const collection = pathOf(this.#type, namespace === undefined ? {} : { namespace });
    return (
      collection +
      query({
        watch: true,
        allowWatchBookmarks: true,
        timeoutSeconds: WATCH_SECONDS.least + Math.floor(Math.random() * WATCH_SECONDS.spread),
        labelSelector,
        fieldSelector,
        ...parameters,
      })
    );
  }

  /**
   * Reads events until the stream ends, and returns their number. While this process handles events, it reads nothing from the stream.
   * Therefore the server cannot send events faster than this process handles them.
   */
  async #consume(stream: AsyncIterable<Buffer>, began: number, onEvent: () => void): Promise<number> {
    const splitter = new LineSplitter(LINE_LIMIT_BYTES);
    let seen = this.#relistReason === undefined ? undefined : new Set<string>();
    let count = 0;
    for await (const chunk of stream) {
      onEvent();
      for (const line of splitter.push(chunk)) {
        count += 1;
        const event = parseWithoutManagedFields(line) as WatchEvent<T>;
        if (seen !== undefined && endsInitialEvents(event)) {
          this.#finishRead(seen, event.object.metadata.resourceVersion ?? '', began);
          seen = undefined;
        } else {
          this.#handle(event, seen);
        }
      }
      if (seen === undefined) {
        this.#backoff.reset();
      }
      this.#metrics.lastEvent.set({ resource: this.#label }, Date.now() / 1000);
    }
    return count;
  }

  /** Handles one event. During a read of all objects by WatchList, `seen` collects the keys of the objects. */
  #handle({ type, object }: WatchEvent<T>, seen: Set<string> | undefined): void {
    if (type === 'ERROR') {
      throw apiErrorFrom(object);
    }
    if (type === 'DELETED') {
      seen?.delete(keyOf(object));
      this.#store.delete(keyOf(object), object);
    } else if (type !== 'BOOKMARK') {
      seen?.add(keyOf(object));
      this.#store.put(object);
    }
    // The initial events of WatchList do not come in the order of their resourceVersions, so the cache's version does not advance yet.
    if (seen === undefined) {
      this.#advance(object.metadata.resourceVersion ?? '');
    }
  }

  #advance(resourceVersion: string): void {
    this.#store.resourceVersion = resourceVersion;
    this.#metrics.storeVersion.set({ resource: this.#label }, Number(resourceVersion));
    this.#metrics.storeObjects.inc({ resource: this.#label }, this.#store.size - this.#counted);
    this.#counted = this.#store.size;
  }
}
