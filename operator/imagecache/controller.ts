/**
 * Reconciles ImageCacheEntries: finalizer → the plan (pure) → status → Jobs that go → Jobs that come. Facts that a restarted
 * operator needs are stored before what rests on them is done; the rest of the status may wait for the next write.
 */
import { soonest } from '../../base/time.ts';
import type { ImageCacheEntry } from '../../api/v1alpha1/imagecacheentry.ts';
import type { SaidReason } from '../../api/v1alpha1/reasons.ts';
import type { KubeClient } from '../../kube/client.ts';
import type { Consistency } from '../../kube/consistency.ts';
import type { Result } from '../../kube/controller.ts';
import type { EventRecorder } from '../../kube/events.ts';
import { mergeDiff } from '../objects/mergepatch.ts';
import { recordTransition } from './events.ts';
import { Executor } from './executor.ts';
import { buildJob } from './job.ts';
import type { CacheMetrics } from './metrics.ts';
import { CACHE_FINALIZER } from './names.ts';
import { observe, type Sources } from './observe.ts';
import type { Observed } from './observed.ts';
import { type Plan, plan } from './plan.ts';
import { bringsFacts } from './status.ts';

/** How long a change is held back that follows from the world anyway: hosts end their work one by one. */
const FOLD_MILLISECONDS = 1_000;

export interface CacheControllerOptions extends Sources {
  readonly client: KubeClient;
  readonly consistency: Consistency;
  readonly recorder: EventRecorder<SaidReason>;
  readonly metrics: CacheMetrics;
}

export class ImageCacheReconciler {
  readonly #options: CacheControllerOptions;
  readonly #executor: Executor;
  /** Since when a change of an entry's status has been held back, in milliseconds. */
  readonly #heldSince = new Map<string, number>();

  constructor(options: CacheControllerOptions) {
    const { client, consistency, entries, jobs, config } = options;
    this.#options = options;
    this.#executor = new Executor({
      client,
      consistency,
      entries,
      jobs,
      namespace: config.namespaces.system,
    });
  }

  /** One look at one entry. `key` is its name. */
  async reconcile(key: string): Promise<Result> {
    const entry = this.#options.entries.cache.get(key);
    if (entry === undefined) {
      this.#heldSince.delete(key);
      this.#options.consistency.forget(key);
      return undefined;
    }
    const observed = observe(this.#options, entry, (uid) => this.#executor.isDeleted(uid));
    const held = await this.#withFinalizer(observed);
    return held === undefined ? undefined : await this.#execute({ ...observed, entry: held }, plan(observed));
  }

  /** Undefined when there is nothing to do: the entry is gone, or waits for the finalizers of others. */
  async #withFinalizer({ entry, duplicateOf }: Observed): Promise<ImageCacheEntry | undefined> {
    const { finalizers, deletionTimestamp } = entry.metadata;
    if (finalizers?.includes(CACHE_FINALIZER) === true) {
      return entry;
    }
    if (deletionTimestamp !== undefined) {
      return undefined;
    }
    // A duplicate keeps nothing on any host.
    return duplicateOf === undefined ? await this.#executor.setFinalizer(entry, true) : entry;
  }

  async #execute(observed: Observed, planned: Plan): Promise<Result> {
    const { entry } = observed;
    const held = await this.#writeStatus(entry, planned.status);
    for (const job of planned.deletes) {
      await this.#executor.deleteJob(job);
    }
    planned.ended.forEach((ended) => this.#options.metrics.ended(ended));
    for (const start of planned.starts) {
      const job = buildJob(observed, start);
      if (job !== undefined) {
        await this.#executor.createJob(entry, job);
      }
    }
    if (planned.isReleased) {
      await this.#executor.setFinalizer(entry, false);
    }
    const wait = soonest(held, planned.wakeAt && planned.wakeAt - this.#options.clock());
    return { requeueAfterMilliseconds: wait && Math.max(0, wait) };
  }

  /** Returns for how long the write is held back, undefined when it was done or there is none. */
  async #writeStatus(entry: ImageCacheEntry, status: Plan['status']): Promise<number | undefined> {
    const { name } = entry.metadata;
    const patch = mergeDiff(entry.status, status);
    if (patch === undefined) {
      this.#heldSince.delete(name);
      return undefined;
    }
    const remaining = bringsFacts(entry.status, status) ? 0 : this.#remainingHold(name);
    if (remaining > 0) {
      return remaining;
    }
    this.#heldSince.delete(name);
    if ((await this.#executor.writeStatus(entry, patch)) !== undefined) {
      recordTransition(this.#options.recorder, entry, status);
    }
    return undefined;
  }

  #remainingHold(key: string): number {
    const now = this.#options.clock();
    const since = this.#heldSince.get(key) ?? now;
    this.#heldSince.set(key, since);
    return since + FOLD_MILLISECONDS - now;
  }
}
