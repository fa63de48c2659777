/**
 * Reconciles ImageCacheEntries in this order: finalizer → plan (pure) → status → deletion of Jobs → creation of Jobs. Facts that a
 * restarted operator needs are stored before any work that relies on them. Other changes of the status can be stored later.
 */
import { soonest } from '../../base/time.ts';
import { CACHE_FINALIZER, SLOT_RESOURCE } from '../../api/v1alpha1/names.ts';
import type { ImageCacheEntry, ImageCacheEntryStatus } from '../../api/v1alpha1/imagecacheentry.ts';
import type { KubeClient } from '../../kube/client.ts';
import type { Consistency } from '../../kube/consistency.ts';
import type { Controller, Result } from '../../kube/controller.ts';
import { keyOf } from '../../kube/objects.ts';
import { ignoredEntries, readCredentials } from '../objects/registries.ts';
import { normal, type OperatorEvent, type Recorder, warning } from '../objects/events.ts';
import { type Job, JOBS, type Node, type Pod } from '../../kube/core.ts';
import { HeldStatus } from '../objects/heldstatus.ts';
import { refusalMessage, Refusals } from '../objects/refusals.ts';
import { IMAGE_CACHE_ENTRIES } from '../../api/v1alpha1/resources.ts';
import { Writer } from '../objects/writer.ts';
import { ENTRY_UID_LABEL, TASKS_BY_OWNER } from '../tasks/owner.ts';
import { RefusedPods } from '../tasks/refusedpods.ts';
import { buildJob } from './job.ts';
import type { CacheMetrics } from './metrics.ts';
import {
  ENTRIES_BY_DIGEST,
  ENTRIES_BY_IMAGE,
  ENTRIES_BY_NAMESPACE,
  ENTRIES_BY_QUEUED_HOST,
  ENTRIES_BY_REFERENCE,
  ENTRIES_BY_UID,
  type EntrySources,
  keyOfImage,
  observeEntry,
} from './observe.ts';
import type { CacheJob, ObservedEntry } from './observed.ts';
import { type EntryPlan, planEntry } from './plan.ts';
import { entryBringsFacts } from './status.ts';
import { isReason, isSeen } from '../../api/v1alpha1/reasons.ts';
import { conditionIn } from '../objects/conditions.ts';
import { digestsIn } from '../../api/v1alpha1/cachetargets.ts';
import type { Cache, ObjectChange } from '../../kube/cache.ts';
import { equal } from '../../kube/mergepatch.ts';
import { imageObjectName } from '../image/content.ts';
import { holdsSlot, hostOfJob, JOBS_BY_HOST } from '../tasks/placement.ts';

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

/** Records Events for the changes from an entry's last status to its next status. */
function recordEntryEvents(recorder: Recorder, entry: ImageCacheEntry, next: ImageCacheEntryStatus): void {
  const texts = [...failures(entry.status, next), ...rounds(entry.status, next)];
  texts.forEach((text) => recorder.event(entry, text));
}

function failures(last: ImageCacheEntryStatus | undefined, next: ImageCacheEntryStatus): OperatorEvent[] {
  const before = new Map((last?.nodes ?? []).map((row) => [row.node, row.failures ?? 0]));
  return (next.nodes ?? [])
    .filter((row) => (row.failures ?? 0) > (before.get(row.node) ?? 0))
    .map(({ node, message = '', state, retryAt = '' }) => {
      const reported = `Host ${node}: ${message}; the next attempt is at ${retryAt}`;
      return state === 'Removing'
        ? warning('RemovingFailed', 'Removing', reported)
        : warning('CachingFailed', 'Caching', reported);
    });
}

/** Returns Events for changed conditions of the entry. Failures of single hosts have their own Events. */
function rounds(last: ImageCacheEntryStatus | undefined, next: ImageCacheEntryStatus): OperatorEvent[] {
  return (next.conditions ?? []).flatMap(({ type, status, reason, message }) =>
    isReason(reason) &&
    isSeen(reason, 'ImageCacheEntry', 'Event') &&
    conditionIn(last, type)?.reason !== reason
      ? [(status === 'True' ? normal : warning)(reason, 'Caching', message)]
      : [],
  );
}

/** Enqueues the entries that depend on a changed object: an entry, a Job, a Pod, an Image or a Node. */
export function enqueueEntries(controller: Controller, sources: EntrySources): void {
  const entries = sources.entries.cache;
  const enqueue = (found: readonly Readonly<ImageCacheEntry>[]) =>
    found.forEach((entry) => controller.enqueue(keyOf(entry)));
  const rivals = (entry: Readonly<ImageCacheEntry>) =>
    entries.byIndex(ENTRIES_BY_REFERENCE, keyOfImage(entry));
  entries.onChange(({ type, object }) => {
    controller.enqueue(keyOf(object));
    // All entries of a namespace for an image are duplicates, except the first one. If an entry comes, is being deleted or goes, another
    // entry can become the first one or a duplicate. Therefore the other entries are enqueued, too.
    enqueue(type === 'updated' && object.metadata.deletionTimestamp === undefined ? [] : rivals(object));
  });
  const byTask = ({ object }: { readonly object: Job | Pod }) =>
    enqueue(entries.byIndex(ENTRIES_BY_UID, object.metadata.labels?.[ENTRY_UID_LABEL] ?? ''));
  sources.jobs.cache.onChange(byTask);
  // When a Job or machine ends, its host has another free slot, so the entries that wait for this host are enqueued.
  const byHost = (host: string) => enqueue(entries.byIndex(ENTRIES_BY_QUEUED_HOST, host));
  sources.jobs.cache.onChange(({ type, object }) => {
    if (type === 'deleted') {
      hostOfJob(object).forEach(byHost);
    }
  });
  const byMachine = ({ type, object }: ObjectChange<Pod>) => {
    const { nodeName } = object.spec;
    if (nodeName !== undefined && (type === 'deleted' || !holdsSlot(object))) {
      byHost(nodeName);
    }
  };
  sources.pods.cache.onChange(byMachine);
  sources.emulatorPods.cache.onChange(byMachine);
  sources.taskPods.cache.onChange(byTask);
  sources.images.cache.onChange(({ object }) =>
    enqueue(entries.byIndex(ENTRIES_BY_IMAGE, imageObjectName(object))),
  );
  // The label of a Namespace decides which hosts it has, and its deletion decides where its Jobs are.
  sources.namespaces.cache.onChange(({ object }) =>
    enqueue(entries.byIndex(ENTRIES_BY_NAMESPACE, object.metadata.name)),
  );
  sources.nodes.cache.onChange((change) => {
    enqueue(concerned(change, entries));
    // A host also lists an image that a Job has just fetched, and whose digest no entry has yet.
    sources.jobs.cache
      .byIndex(JOBS_BY_HOST, change.object.metadata.name)
      .forEach((job) => byTask({ object: job }));
  });
}

/**
 * Returns the entries to reconcile after a change of a Node. If only the Node's list of images changed, the result is the entries for the
 * added and removed content. If the Node is new or deleted, or its readiness, labels, slots or cordon changed, the result is all entries.
 */
function concerned(
  { type, object, previous }: ObjectChange<Node>,
  entries: Cache<ImageCacheEntry>,
): readonly Readonly<ImageCacheEntry>[] {
  if (type !== 'updated' || !equal(stateOf(previous), stateOf(object))) {
    return entries.list();
  }
  const before = imagesOf(previous);
  const after = imagesOf(object);
  const changed = [...before, ...after].filter((image) => before.has(image) !== after.has(image));
  const digests = new Set(changed.flatMap((one) => one.split(' ')));
  return [...digests].flatMap((digest) => entries.byIndex(ENTRIES_BY_DIGEST, digest));
}

function stateOf(node: Readonly<Node> | undefined): object {
  return {
    labels: node?.metadata.labels,
    isCordoned: node?.spec?.unschedulable,
    ready: conditionIn(node?.status, 'Ready'),
    slots: node?.status?.allocatable?.[SLOT_RESOURCE],
  };
}

/** Returns one text for each image on a Node, with the digests of the image. */
function imagesOf(node: Readonly<Node> | undefined): Set<string> {
  return new Set(node?.status?.images?.map(({ names }) => digestsIn(names ?? []).join(' ')));
}
