/**
 * Reconciles ImageCacheEntries: finalizer → the plan (pure) → status → Jobs that go → Jobs that come. Facts that a restarted
 * operator needs are stored before any work that relies on them; the rest of the status may wait for the next write.
 */
import { soonest } from '../../base/time.ts';
import { SLOT_RESOURCE } from '../../api/v1alpha1/names.ts';
import type { ImageCacheEntry } from '../../api/v1alpha1/imagecacheentry.ts';
import type { Cache, Change } from '../../kube/cache.ts';
import type { SaidReason } from '../../api/v1alpha1/reasons.ts';
import type { KubeClient } from '../../kube/client.ts';
import type { Consistency } from '../../kube/consistency.ts';
import type { Controller, Result } from '../../kube/controller.ts';
import type { Node, Pod } from '../../kube/core.ts';
import type { EventRecorder } from '../../kube/events.ts';
import { type Job, JOBS } from '../../kube/job.ts';
import { HeldStatus } from '../objects/heldstatus.ts';
import { equal } from '../objects/mergepatch.ts';
import { IMAGE_CACHE_ENTRIES } from '../objects/resources.ts';
import { Writer } from '../objects/writer.ts';
import { ENTRY_UID_LABEL } from '../tasks/owner.ts';
import { hostOfJob } from '../tasks/placement.ts';
import { recordTransition } from './events.ts';
import { referenceOf } from './image.ts';
import { buildJob } from './job.ts';
import type { CacheMetrics } from './metrics.ts';
import {
  CACHE_FINALIZER,
  ENTRIES_BY_QUEUED_HOST,
  ENTRIES_BY_REFERENCE,
  ENTRIES_BY_UID,
  holdsSlot,
  observe,
  type Sources,
} from './observe.ts';
import type { CacheJob, Observed } from './observed.ts';
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
  readonly #entries: Writer<ImageCacheEntry>;
  readonly #jobs: Writer<Job>;
  readonly #status: HeldStatus;
  /** Uids of Jobs that were deleted here and that the cache still shows. */
  readonly #deletedJobs = new Set<string>();

  constructor(options: CacheControllerOptions) {
    const { client, consistency, entries, jobs, clock } = options;
    this.#options = options;
    this.#entries = new Writer({ client, consistency, type: IMAGE_CACHE_ENTRIES, informer: entries });
    this.#jobs = new Writer({ client, consistency, type: JOBS, informer: jobs });
    this.#status = new HeldStatus({ holdMilliseconds: FOLD_MILLISECONDS, clock });
    jobs.cache.onChange(({ type, object }) => {
      if (type === 'deleted') {
        this.#deletedJobs.delete(object.metadata.uid ?? '');
      }
    });
  }

  /** One look at one entry. `key` is its name. */
  async reconcile(key: string): Promise<Result> {
    const entry = this.#options.entries.cache.get(key);
    if (entry === undefined) {
      this.#status.forget(key);
      this.#options.consistency.forget(key);
      return undefined;
    }
    const observed = observe(this.#options, entry, this.#deletedJobs);
    const held = await this.#withFinalizer(observed);
    return held === undefined ? undefined : await this.#execute({ ...observed, entry: held }, plan(observed));
  }

  /** Undefined when there is nothing to do: the entry is gone, or waits for the finalizers of others. */
  async #withFinalizer({ entry, duplicateOf }: Observed): Promise<ImageCacheEntry | undefined> {
    const { name, finalizers, deletionTimestamp } = entry.metadata;
    if (finalizers?.includes(CACHE_FINALIZER) === true) {
      return entry;
    }
    if (deletionTimestamp !== undefined) {
      return undefined;
    }
    // A duplicate keeps nothing on any host.
    return duplicateOf === undefined
      ? await this.#entries.setFinalizer(name, entry, CACHE_FINALIZER, true)
      : entry;
  }

  async #execute(observed: Observed, planned: Plan): Promise<Result> {
    const { entry } = observed;
    const { name } = entry.metadata;
    const held = await this.#writeStatus(entry, planned.status);
    for (const job of planned.deletes) {
      await this.#deleteJob(job);
    }
    planned.ended.forEach((ended) => this.#options.metrics.ended(ended));
    for (const start of planned.starts) {
      const job = buildJob(observed, start);
      if (job !== undefined) {
        // Its names are the operator's alone: where there is one already, an answer to an earlier try was lost.
        await this.#jobs.create(name, job);
      }
    }
    if (planned.isReleased) {
      await this.#entries.setFinalizer(name, entry, CACHE_FINALIZER, false);
    }
    const wait = soonest(held, planned.wakeAt && planned.wakeAt - this.#options.clock());
    return { requeueAfterMilliseconds: wait && Math.max(0, wait) };
  }

  async #writeStatus(entry: ImageCacheEntry, status: Plan['status']): Promise<number | undefined> {
    const { name } = entry.metadata;
    const change = {
      before: entry.status,
      after: status,
      mayWait: () => !bringsFacts(entry.status, status),
    };
    return await this.#status.write(name, change, async (patch) => {
      if ((await this.#entries.patch(name, entry, { status: patch }, 'status')) !== undefined) {
        recordTransition(this.#options.recorder, entry, status);
      }
    });
  }

  /** Its Pod goes with it, whatever the Pod is doing. */
  async #deleteJob({ name, uid }: CacheJob): Promise<void> {
    const { jobs, config } = this.#options;
    const namespace = config.namespaces.system;
    await this.#jobs.delete({ metadata: { namespace, name, uid } }, { propagationPolicy: 'Background' });
    // The watch may have been faster than the answer.
    if (jobs.cache.get(`${namespace}/${name}`)?.metadata.uid === uid) {
      this.#deletedJobs.add(uid);
    }
  }
}

/** Which changes of the world concern which entries. */
export function enqueueEntries(controller: Controller, sources: Sources): void {
  const entries = sources.entries.cache;
  const enqueue = (found: readonly Readonly<ImageCacheEntry>[]) =>
    found.forEach(({ metadata }) => controller.enqueue(metadata.name));
  const rivals = (entry: Readonly<ImageCacheEntry>) =>
    entries.byIndex(ENTRIES_BY_REFERENCE, referenceOf(entry));
  entries.onChange(({ type, object }) => {
    controller.enqueue(object.metadata.name);
    // The entry that was first decides for all others of its image.
    enqueue(type === 'updated' ? [] : rivals(object));
  });
  const byTask = ({ object }: Change<Job | Pod>) =>
    enqueue(entries.byIndex(ENTRIES_BY_UID, object.metadata.labels?.[ENTRY_UID_LABEL] ?? ''));
  sources.jobs.cache.onChange(byTask);
  // The end of a Job or machine gives a place of its host back.
  const byHost = (host: string) => enqueue(entries.byIndex(ENTRIES_BY_QUEUED_HOST, host));
  sources.jobs.cache.onChange(({ type, object }) => {
    if (type === 'deleted') {
      hostOfJob(object).forEach(byHost);
    }
  });
  sources.pods.cache.onChange(({ type, object }) => {
    const { nodeName } = object.spec;
    if (nodeName !== undefined && (type === 'deleted' || !holdsSlot(object))) {
      byHost(nodeName);
    }
  });
  sources.taskPods.cache.onChange(byTask);
  sources.images.cache.onChange(({ object: { metadata } }) =>
    enqueue(entries.byIndex(ENTRIES_BY_REFERENCE, `berth.dev/${metadata.namespace}/${metadata.name}`)),
  );
  sources.nodes.cache.onChange((change) => enqueue(concerned(change, entries)));
}

/** A new image on a host concerns the entries for it; that it came, went, answers or is targeted, all of them. */
function concerned(
  { type, object, previous }: Change<Node>,
  entries: Cache<ImageCacheEntry>,
): readonly Readonly<ImageCacheEntry>[] {
  if (type !== 'updated' || !equal(stateOf(previous), stateOf(object))) {
    return entries.list();
  }
  const before = namesOf(previous);
  const after = namesOf(object);
  const changed = [...before, ...after].filter((name) => before.has(name) !== after.has(name));
  const references = new Set(changed.flatMap(referencesIn));
  return [...references].flatMap((reference) => entries.byIndex(ENTRIES_BY_REFERENCE, reference));
}

function stateOf(node: Readonly<Node> | undefined): object {
  return {
    labels: node?.metadata.labels,
    isCordoned: node?.spec?.unschedulable,
    ready: node?.status?.conditions?.find(({ type }) => type === 'Ready'),
    slots: node?.status?.allocatable?.[SLOT_RESOURCE],
  };
}

/** Each with its image's digests, so that a tag that moves to another image is a change. */
function namesOf(node: Readonly<Node> | undefined): Set<string> {
  const lists = node?.status?.images ?? [];
  return new Set(lists.flatMap(({ names }) => names.map((name) => `${name} ${names.join(' ')}`)));
}

/** The names under which an entry may ask for the image: by tag, pinned, or by the name of its object. */
function referencesIn(changed: string): string[] {
  const [name = ''] = changed.split(' ');
  return name.startsWith('berth.dev/') ? [name, name.slice(0, name.indexOf('@'))] : [name];
}
