/** Runs a reconcile function over the keys of a queue, as controller-runtime does. */
import { randomUUID } from 'node:crypto';
import PQueue from 'p-queue';
import type { Logger } from 'pino';
import type { Registry } from 'prom-client';
import { waitAfter } from '../base/backoff.ts';
import { beginSlice, isSliceOver } from '../base/time.ts';
import { isConflict, isProgrammingError, TerminalError } from './errors.ts';
import { runtimeMetrics } from './metrics.ts';
import { refOf } from './objects.ts';
import { type Ready, WorkQueue } from './queue.ts';

/** First wait in milliseconds after an error. Each further error doubles the wait. controller-runtime has the same first wait. */
const BACKOFF_FIRST_MILLISECONDS = 5;
/**
 * Longest wait in milliseconds after an error. It is shorter than the 1000 s of controller-runtime. Otherwise a person who has fixed a
 * fault could wait a quarter of an hour for the next attempt.
 */
const BACKOFF_CAP_MILLISECONDS = 60_000;
/**
 * Number of conflicts, one after the other, that are usual for an object. Another program changed the object at the same time, and the next
 * attempt works with its change. More of them can mean that two programs undo each other's changes.
 */
const USUAL_CONFLICTS = 5;
/**
 * Wait in milliseconds before the controller checks again whether the cache contains the last change by this process. A watch usually
 * reports a change within a few milliseconds. The controllers of Cluster API have the same wait.
 */
const STALE_WAIT_MILLISECONDS = 100;
/**
 * Time in milliseconds after which a reconcile counts as too long in the metrics. The reconcile is not aborted, because each of its
 * requests has a time limit of 30 s or 36 s.
 */
const RECONCILE_LIMIT_MILLISECONDS = 120_000;

/** Result of a reconcile. If it is undefined, the controller does nothing for the key until something changes. */
export type Result = { requeueAfterMilliseconds?: number | undefined } | undefined;

export interface ReconcileContext {
  /** Logger with the key and the id of this reconcile. It is created when it is first used, because most reconciles log nothing. */
  readonly logger: Logger;
}

export interface ControllerOptions {
  /** Name of the controller in the labels of metrics. It is unique in the process. */
  name: string;
  workers: number;
  /** Reconciles one key. After an error the key is tried again with back-off. A TerminalError is only counted and logged. */
  reconcile: (key: string, context: ReconcileContext) => Promise<Result>;
  logger: Logger;
  metrics: Registry;
  /** Returns false if a cache lacks this process's last change for the key. The controller then checks the key again after 100 ms. */
  ready?: (key: string) => boolean;
  /** Returns false if no cache has an object for the key. Before its start, the controller drops such keys. Otherwise a standby keeps them. */
  exists?: (key: string) => boolean;
}

type Outcome = 'success' | 'error' | 'requeue' | 'requeue_after';

export class Controller {
  readonly #options: ControllerOptions;
  readonly #logger: Logger;
  readonly #metrics: ReturnType<typeof controllerMetrics>;
  readonly #queue: WorkQueue;
  /** Number of consecutive errors of each key. */
  readonly #failures = new Map<string, number>();
  /** The key of each running reconcile, and the time when this reconcile began, in milliseconds as `performance.now()` returns it. */
  readonly #running = new Map<string, number>();
  readonly #drainedResolvers = Promise.withResolvers<void>();
  readonly #workers: PQueue;
  #signal: AbortSignal | undefined;
  #isPumpScheduled = false;

  constructor(options: ControllerOptions) {
    this.#options = options;
    this.#workers = new PQueue({ concurrency: options.workers });
    this.#logger = options.logger.child({ controller: options.name });
    this.#metrics = controllerMetrics(options.metrics, options.name, options.workers);
    this.#queue = new WorkQueue(() => this.#schedulePump());
    runtimeMetrics(options.metrics).beforeScrape.add(() => this.#observeQueue());
  }

  /**
   * Adds a key. Urgent keys are usually handled before other keys. Callers set `urgent` if a step might have finished, so that the
   * controller reports finished steps before it begins other steps.
   */
  enqueue(key: string, options: { urgent?: boolean } = {}): void {
    if (this.#signal === undefined && this.#options.exists?.(key) === false) {
      this.#queue.drop(key);
    } else if (!this.#stopped) {
      this.#metrics.adds.inc();
      this.#queue.add(key, options);
    }
  }

  /** Adds a key after a delay. If a key is added with several delays, the earliest applies. */
  enqueueAfter(key: string, milliseconds: number): void {
    if (!this.#stopped) {
      this.#metrics.adds.inc();
      this.#queue.addAfter(key, milliseconds);
    }
  }

  /** Starts the workers. Keys can be added before this call. When the signal aborts, no further reconcile begins. */
  start(signal: AbortSignal): void {
    this.#signal = signal;
    signal.addEventListener('abort', () => this.#stop(), { once: true });
    this.#pump();
  }

  /** Resolves when the signal has aborted and the last reconcile has ended. */
  drained(): Promise<void> {
    return this.#drainedResolvers.promise;
  }

  get #stopped(): boolean {
    return this.#signal?.aborted === true;
  }

  #stop(): void {
    this.#queue.clear();
    if (this.#running.size === 0) {
      this.#drainedResolvers.resolve();
    }
  }

  /**
   * Starts the next reconciles after a microtask, for two reasons. First, a cache calls its handlers before it stores the resourceVersion
   * of a change. After the microtask, the version is stored. Without the microtask, the controller would delay the key of an object that
   * this process changed, because the cache would seem to lack this change. Second, several changes of one object cause only one reconcile.
   */
  #schedulePump(): void {
    if (!this.#isPumpScheduled) {
      this.#isPumpScheduled = true;
      // A reconcile that sends no request never waits. Without a pause, thousands of them would delay the renewal of the Lease for seconds.
      const schedule = isSliceOver() ? setImmediate : queueMicrotask;
      schedule(() => {
        this.#isPumpScheduled = false;
        this.#pump();
      });
    }
  }

  #pump(): void {
    beginSlice();
    while (
      this.#signal !== undefined &&
      !this.#stopped &&
      !this.#isPumpScheduled &&
      this.#workers.pending < this.#workers.concurrency
    ) {
      const ready = this.#queue.take();
      if (ready === undefined) {
        return;
      }
      if (this.#options.ready?.(ready.key) === false) {
        this.#metrics.staleSkips.inc();
        this.#queue.done(ready.key);
        this.#queue.addAfter(ready.key, STALE_WAIT_MILLISECONDS);
      } else {
        void this.#workers.add(() => this.#work(ready)).then(() => this.#schedulePump());
        if (isSliceOver()) {
          this.#schedulePump();
        }
      }
    }
  }

  async #work({ key, since }: Ready): Promise<void> {
    const began = performance.now();
    this.#running.set(key, began);
    this.#metrics.queueDuration.observe((began - since) / 1000);
    const outcome = await this.#reconcile(key);
    const seconds = (performance.now() - began) / 1000;
    this.#metrics.results[outcome].inc();
    this.#metrics.reconcileTime.observe(seconds);
    this.#metrics.workDuration.observe(seconds);
    this.#running.delete(key);
    this.#queue.done(key);
    if (this.#stopped) {
      this.#stop();
    }
  }

  async #reconcile(key: string): Promise<Outcome> {
    const context = new Context(this.#logger, key);
    const timer = setTimeout(() => this.#metrics.timeouts.inc(), RECONCILE_LIMIT_MILLISECONDS);
    try {
      const result = await this.#options.reconcile(key, context);
      return this.#succeeded(key, result);
    } catch (error) {
      return this.#failed(key, error, context.logger);
    } finally {
      clearTimeout(timer);
    }
  }

  #succeeded(key: string, result: Result): Outcome {
    this.#failures.delete(key);
    if (result?.requeueAfterMilliseconds === undefined) {
      return 'success';
    }
    this.enqueueAfter(key, result.requeueAfterMilliseconds);
    return 'requeue_after';
  }

  #failed(key: string, error: unknown, logger: Logger): Outcome {
    this.#metrics.errors.inc();
    if (error instanceof TerminalError) {
      this.#failures.delete(key);
      this.#metrics.terminalErrors.inc();
      logger.error({ err: error }, 'reconcile failed and is not tried again');
      return 'error';
    }
    const failures = (this.#failures.get(key) ?? 0) + 1;
    const waitMilliseconds = waitAfter(failures, BACKOFF_FIRST_MILLISECONDS, BACKOFF_CAP_MILLISECONDS);
    this.#failures.set(key, failures);
    this.#metrics.retries.inc();
    this.enqueueAfter(key, waitMilliseconds);
    if (isProgrammingError(error)) {
      this.#metrics.panics.inc();
      logger.error({ err: error, waitMilliseconds }, 'reconcile failed because of a fault of the program');
    } else {
      const isUsual = isConflict(error) && failures <= USUAL_CONFLICTS;
      logger[isUsual ? 'debug' : 'warn']({ err: error, waitMilliseconds }, 'reconcile failed');
    }
    return 'error';
  }

  #observeQueue(): void {
    const now = performance.now();
    const seconds = [...this.#running.values()].map((began) => (now - began) / 1000);
    this.#metrics.depth.set(this.#queue.depth);
    this.#metrics.activeWorkers.set(this.#running.size);
    this.#metrics.longestRunning.set(Math.max(0, ...seconds));
    this.#metrics.unfinishedWork.set(seconds.reduce((sum, one) => sum + one, 0));
  }
}

class Context implements ReconcileContext {
  readonly #parent: Logger;
  readonly #key: string;
  #logger: Logger | undefined;

  constructor(parent: Logger, key: string) {
    this.#parent = parent;
    this.#key = key;
  }

  get logger(): Logger {
    this.#logger ??= this.#parent.child({ ...refOf(this.#key), reconcileID: randomUUID() });
    return this.#logger;
  }
}

/**
 * Returns the metrics of one controller. Counters and histograms start at 0, so that Prometheus computes a rate from the first error on.
 */
function controllerMetrics(registry: Registry, controller: string, workers: number) {
  const all = runtimeMetrics(registry);
  const queue = { name: controller, controller };
  const result = (name: Outcome) => started(all.reconciles.labels({ controller, result: name }));
  all.maximumReconciles.set({ controller }, workers);
  return {
    results: {
      success: result('success'),
      error: result('error'),
      requeue: result('requeue'),
      requeue_after: result('requeue_after'),
    },
    errors: started(all.reconcileErrors.labels({ controller })),
    terminalErrors: started(all.terminalErrors.labels({ controller })),
    panics: started(all.panics.labels({ controller })),
    timeouts: started(all.timeouts.labels({ controller })),
    staleSkips: started(all.staleSkips.labels({ controller })),
    retries: started(all.queueRetries.labels(queue)),
    adds: started(all.queueAdds.labels(queue)),
    reconcileTime: histogram(all.reconcileTime, { controller }),
    queueDuration: histogram(all.queueDuration, queue),
    workDuration: histogram(all.workDuration, queue),
    depth: all.queueDepth.labels({ ...queue, priority: '0' }),
    activeWorkers: all.activeWorkers.labels({ controller }),
    unfinishedWork: all.unfinishedWork.labels(queue),
    longestRunning: all.longestRunning.labels(queue),
  };
}

function started<T extends { inc(by: number): void }>(counter: T): T {
  counter.inc(0);
  return counter;
}

function histogram<L extends string>(
  all: {
    zero(labels: Record<L, string>): void;
    labels(labels: Record<L, string>): { observe(n: number): void };
  },
  labels: Record<L, string>,
) {
  all.zero(labels);
  return all.labels(labels);
}
