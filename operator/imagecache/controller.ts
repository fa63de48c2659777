/**
 * Reconciles ImageCacheEntries in this order: finalizer → plan (pure) → status → deletion of Jobs → creation of Jobs. Facts that a
 * restarted operator needs are stored before any work that relies on them. Other changes of the status can be stored later.
 */
import { soonest } from '../../base/time.ts';
import { CACHE_FINALIZER } from '../../api/v1alpha1/names.ts';
import type { ImageCacheEntry } from '../../api/v1alpha1/imagecacheentry.ts';
import type { KubeClient } from '../../kube/client.ts';
import type { Consistency } from '../../kube/consistency.ts';
import type { Result } from '../../kube/controller.ts';
import { keyOf } from '../../kube/objects.ts';
import { ignoredEntries, readCredentials } from '../objects/registries.ts';
import type { Recorder } from '../objects/events.ts';
import { type Job, JOBS } from '../../kube/core.ts';
import { HeldStatus } from '../objects/heldstatus.ts';
import { refusalMessage, Refusals } from '../objects/refusals.ts';
import { IMAGE_CACHE_ENTRIES } from '../../api/v1alpha1/resources.ts';
import { Writer } from '../objects/writer.ts';
import { TASKS_BY_OWNER } from '../tasks/owner.ts';
import { RefusedPods } from '../tasks/refusedpods.ts';
import { recordEntryEvents } from './events.ts';
import { buildJob } from './job.ts';
import type { CacheMetrics } from './metrics.ts';
import { observeEntry, type EntrySources } from './observe.ts';
import type { CacheJob, ObservedEntry } from './observed.ts';
import { type EntryPlan, planEntry } from './plan.ts';
import { entryBringsFacts } from './status.ts';

/**
 * Longest time in milliseconds for which a status change can wait if a restarted operator can compute the change again. Hosts end their
 * work one after another, so one later request can store the changes of several hosts.
 */
const FOLD_MILLISECONDS = 1_000;

export interface CacheControllerOptions extends EntrySources {
  readonly client: KubeClient;
  readonly consistency: Consistency;
  readonly recorder: Recorder;
  readonly metrics: CacheMetrics;
}

export class ImageCacheReconciler {
  readonly #options: CacheControllerOptions;
  readonly #entries: Writer<ImageCacheEntry>;
  readonly #jobs: Writer<Job>;
  readonly #status: HeldStatus;
  readonly #refusals: Refusals;
  readonly #refusedPods: RefusedPods;
  /** Uids of Jobs that this process deleted and that the cache still shows. */
  readonly #deletedJobs = new Set<string>();
  /** Message of the API server for each entry whose last reconcile failed. The map's key is the key of the entry. */
  readonly #reported = new Map<string, string>();

  constructor(options: CacheControllerOptions) {
    const { client, consistency, entries, jobs, clock } = options;
    this.#options = options;
    this.#entries = new Writer({ client, consistency, type: IMAGE_CACHE_ENTRIES, informer: entries });
    this.#jobs = new Writer({ client, consistency, type: JOBS, informer: jobs });
    this.#status = new HeldStatus({ holdMilliseconds: FOLD_MILLISECONDS, clock });
    this.#refusals = new Refusals({ ...options, dependent: 'Job' });
    this.#refusedPods = new RefusedPods(options);
    jobs.cache.onChange(({ type, object }) => {
      if (type === 'deleted') {
        this.#deletedJobs.delete(object.metadata.uid ?? '');
      }
    });
  }

  /** Reconciles one entry once. `key` is `namespace/name`. */
  async reconcile(key: string): Promise<Result> {
    const entry = this.#options.entries.cache.get(key);
    if (entry === undefined) {
      this.#status.forget(key);
      this.#options.consistency.forget(key);
      this.#reported.delete(key);
      this.#refusals.forget(key);
      return undefined;
    }
    return await this.#refusals.during(entry, this.#begin(entry));
  }

  /**
   * Serves an entry. If this fails, and people must be told about the error, the status gets the words of the API server. @throws the error
   */
  async #begin(entry: ImageCacheEntry): Promise<Result> {
    const key = keyOf(entry);
    try {
      const result = await this.#serve(entry);
      this.#reported.delete(key);
      return result;
    } catch (error) {
      const refused = this.#refusals.judge(key, error);
      if (refused !== undefined) {
        const reported = refusalMessage(refused, this.#reported.get(key));
        this.#reported.set(key, reported);
        await this.#tell(entry, reported);
      }
      throw error;
    }
  }

  /** Stores the words of the API server in the status of the entry. They belong to the rows of the hosts that wait for a Job. */
  async #tell(entry: ImageCacheEntry, reported: string): Promise<void> {
    const observed = this.#observe(entry);
    const { status } = planEntry(observed);
    const queued = { ...observed, entry: { ...entry, status } };
    await this.#writeStatus(entry, planEntry(queued, reported).status, false);
  }

  async #serve(entry: ImageCacheEntry): Promise<Result> {
    const nextQuestion = await this.#refusedPods.ask(this.#jobsOf(entry));
    const observed = this.#observe(entry);
    const held = await this.#withFinalizer(observed);
    if (held === undefined) {
      return undefined;
    }
    const planned = planEntry(observed, this.#reported.get(keyOf(entry)));
    const wait = await this.#execute({ ...observed, entry: held }, planned);
    return { requeueAfterMilliseconds: soonest(wait, nextQuestion) };
  }

  #observe(entry: ImageCacheEntry): ObservedEntry {
    const refusal = (job: Job) => this.#refusedPods.messageFor(job);
    return observeEntry(this.#options, entry, this.#jobsOf(entry), refusal);
  }

  /** Returns the Jobs of the entry, without those that this process deleted and that the cache still shows. */
  #jobsOf({ metadata: { uid = '' } }: ImageCacheEntry): Job[] {
    const jobs = this.#options.jobs.cache.byIndex(TASKS_BY_OWNER, uid);
    return jobs.filter((job) => !this.#deletedJobs.has(job.metadata.uid ?? ''));
  }

  /**
   * Returns the entry to work on, with its finalizer. The result is undefined if the entry no longer exists. It is also undefined if the
   * entry is being deleted and has only finalizers of other programs.
   */
  async #withFinalizer({ entry, duplicateOf }: ObservedEntry): Promise<ImageCacheEntry | undefined> {
    const { finalizers, deletionTimestamp } = entry.metadata;
    if (finalizers?.includes(CACHE_FINALIZER) === true) {
      return entry;
    }
    if (deletionTimestamp !== undefined) {
      return undefined;
    }
    // An entry is a duplicate if hosts keep its image for another entry. Hosts have nothing to remove for a duplicate, so it needs no
    // finalizer.
    return duplicateOf === undefined
      ? await this.#entries.setFinalizer(keyOf(entry), entry, CACHE_FINALIZER, true)
      : entry;
  }

  /** Executes the plan. Returns the milliseconds until the next reconcile, or undefined if only a change can cause it. */
  async #execute(observed: ObservedEntry, planned: EntryPlan): Promise<number | undefined> {
    const { entry } = observed;
    const key = keyOf(entry);
    // Jobs that have fetched wait until the status is stored. While they take all places of the entry, no other Job can begin.
    const mayWait = planned.fetched.length < observed.config.cacheJobsPerEntry;
    const held = await this.#writeStatus(entry, planned.status, mayWait);
    const fetched = held === undefined ? planned.fetched : [];
    for (const job of [...planned.deletes, ...fetched]) {
      await this.#deleteJob(job);
    }
    planned.ended.forEach((ended) => this.#options.metrics.ended(ended));
    fetched.forEach(() => this.#options.metrics.ended({ type: 'cache', result: 'succeeded' }));
    const current = await this.#withCredentials(observed, planned);
    for (const start of planned.starts) {
      const job = buildJob(current, start);
      if (job !== undefined) {
        // Only the operator creates Jobs with these names. If the Job already exists, an earlier request created it, but the operator did
        // not get the response.
        await this.#jobs.create(key, job);
      }
    }
    if (planned.isReleased) {
      await this.#entries.setFinalizer(key, entry, CACHE_FINALIZER, false);
    }
    const wait = soonest(held, planned.wakeAt && planned.wakeAt - this.#options.clock());
    return wait && Math.max(0, wait);
  }

  /** If a Job must fetch the image, adds the registry credentials of the entry's namespace to the observed state. */
  async #withCredentials(observed: ObservedEntry, { starts }: EntryPlan): Promise<ObservedEntry> {
    const { client, recorder } = this.#options;
    const { entry } = observed;
    if (!starts.some(({ type }) => type === 'cache')) {
      return observed;
    }
    const { credentials, mistakes } = await readCredentials(client, entry.metadata.namespace ?? '');
    const ignored = ignoredEntries(mistakes);
    if (ignored !== undefined) {
      recorder.event(entry, ignored);
    }
    return { ...observed, credentials };
  }

  async #writeStatus(
    entry: ImageCacheEntry,
    status: EntryPlan['status'],
    mayWait = true,
  ): Promise<number | undefined> {
    const key = keyOf(entry);
    const change = {
      before: entry.status,
      after: status,
      mayWait: () => mayWait && !entryBringsFacts(entry.status, status),
    };
    return await this.#status.write(key, change, async (patch) => {
      if ((await this.#entries.patch(key, entry, { status: patch }, 'status')) !== undefined) {
        recordEntryEvents(this.#options.recorder, entry, status);
      }
    });
  }

  /** Deletes a Job. Kubernetes then also deletes the Pod of the Job, no matter in which state the Pod is. */
  async #deleteJob({ name, namespace, uid }: CacheJob): Promise<void> {
    const { jobs } = this.#options;
    await this.#jobs.delete({ metadata: { namespace, name, uid } }, { propagationPolicy: 'Background' });
    // If the cache no longer contains the Job, the watch has already shown the deletion. In that case the uid of the Job is not stored,
    // because no later event would remove it again.
    if (jobs.cache.get(`${namespace}/${name}`)?.metadata.uid === uid) {
      this.#deletedJobs.add(uid);
    }
  }
}
