/**
 * Finds the objects that a task belongs to: the Image, ISO or ImageCacheEntry of a Job or Pod, and the Job of a Pod. Also deletes ended Jobs
 * whose object no longer exists. Kubernetes deletes a Job that has an owner reference. The Job that removes an image from a host has none, so
 * that it outlives its ImageCacheEntry while the host is lost. If somebody deletes an Image with `--cascade=orphan`, the Jobs of the Image
 * also lose their owner references.
 */
import type { Logger } from 'pino';
import { IMAGE_UID_LABEL } from '../../api/v1alpha1/names.ts';
import { type Job, JOBS, type Pod } from '../../kube/core.ts';
import type { Informer } from '../../kube/informer.ts';
import type { KubeObject, ObjectMeta } from '../../kube/objects.ts';
import type { Image } from '../../api/v1alpha1/image.ts';
import type { ImageCacheEntry } from '../../api/v1alpha1/imagecacheentry.ts';
import type { ISO } from '../../api/v1alpha1/iso.ts';
import { IMAGE_CACHE_ENTRIES, IMAGES, ISOS } from '../../api/v1alpha1/resources.ts';
import type { KubeClient } from '../../kube/client.ts';
import type { Consistency } from '../../kube/consistency.ts';
import type { Controller, Result } from '../../kube/controller.ts';
import { Writer } from '../objects/writer.ts';
import { trueCondition } from './outcome.ts';

/**
 * Label of Jobs and their Pods. Its value is the `uid` of the ImageCacheEntry that the task is for. The Job of a removal has this label but
 * no owner reference to the entry, because this Job can exist longer than the entry.
 */
export const ENTRY_UID_LABEL = 'berth.dev/cache-entry-uid';
/** Label of Jobs and their Pods. Its value is the name of the ImageCacheEntry that the task is for. Only people read this label. */
export const ENTRY_NAME_LABEL = 'berth.dev/cache-entry';

/**
 * Name of the index that finds Jobs and their Pods by owner. {@link ownersOf} returns the keys of a Job, and {@link ownersOfPod} returns
 * the keys of a Pod.
 */
export const TASKS_BY_OWNER = 'owner';

/**
 * Returns the uids of the objects that a Job or Pod works for. The labels decide, because only the operator is allowed to write them. Owner
 * references do not decide, because a tenant can write any uid into the reference of its own Job or Pod.
 */
export function ownersOf({ metadata: { labels = {} } }: Readonly<KubeObject>): string[] {
  return [labels[IMAGE_UID_LABEL], labels[ENTRY_UID_LABEL]].filter((uid) => uid !== undefined);
}

/** Returns the uids of the objects that a Pod works for ({@link ownersOf}), and the key of the Job that created the Pod. */
export function ownersOfPod(pod: Readonly<KubeObject>): string[] {
  const job = controllerOf(pod)?.uid;
  return [...ownersOf(pod), ...(job === undefined ? [] : [jobKey(pod, job)])];
}

/**
 * Returns the index key of a Job: the namespace and the Job's uid. A Pod of another namespace therefore never counts as the Job's
 * Pod.
 */
function jobKey({ metadata }: Readonly<KubeObject>, uid: string): string {
  return `${metadata.namespace}/${uid}`;
}

/**
 * Returns the owner reference that has `controller: true`. It names the object that controls the Job or Pod. The result is undefined if
 * there is no such reference.
 */
export function controllerOf({
  metadata,
}: Readonly<KubeObject>): NonNullable<ObjectMeta['ownerReferences']>[number] | undefined {
  return metadata.ownerReferences?.find(({ controller }) => controller === true);
}

/**
 * Returns the Pods in the Job's namespace that name the Job as their controller. A label would not be enough, because a host can create
 * Pods (mirror Pods) with any label. But a host can name only its own Node as the owner of such a Pod.
 */
export function podsOf(job: Job, taskPods: Pick<Informer<Pod>, 'cache'>): Pod[] {
  return taskPods.cache.byIndex(TASKS_BY_OWNER, jobKey(job, job.metadata.uid ?? ''));
}

/** Returns the Job that created a Pod. The result is undefined if the Job no longer exists. */
export function jobOf(pod: Readonly<Pod>, jobs: Pick<Informer<Job>, 'cache'>): Readonly<Job> | undefined {
  const owner = controllerOf(pod);
  const job = owner && jobs.cache.get(`${pod.metadata.namespace}/${owner.name}`);
  return job?.metadata.uid === owner?.uid ? job : undefined;
}

/** The only key of this controller. One reconcile handles all abandoned Jobs, so that the API server is asked only once for all of them. */
const ABANDONED_KEY = 'abandoned';

/** Kinds whose objects have Jobs. */
const OWNERS = [IMAGE_CACHE_ENTRIES, IMAGES, ISOS];

interface AbandonedJobSources {
  readonly jobs: Informer<Job>;
  readonly entries: Informer<ImageCacheEntry>;
  readonly images: Informer<Image>;
  readonly isos: Informer<ISO>;
}

export interface AbandonedJobOptions extends AbandonedJobSources {
  readonly client: KubeClient;
  readonly consistency: Consistency;
}

export class AbandonedJobReconciler {
  readonly #options: AbandonedJobOptions;
  readonly #jobs: Writer<Job>;

  constructor(options: AbandonedJobOptions) {
    const { client, consistency, jobs } = options;
    this.#options = options;
    this.#jobs = new Writer({ client, consistency, type: JOBS, informer: jobs });
  }

  /**
   * Deletes the ended Jobs whose objects the API server no longer has. The caches only select the Jobs, because a cache might not show a new
   * object yet.
   */
  async reconcile(_key: string, { logger }: { logger: Logger }): Promise<Result> {
    const known = this.#knownUids();
    const suspects = this.#options.jobs.cache.list().filter((job) => isLeft(job) && !belongsTo(job, known));
    if (suspects.length === 0) {
      return undefined;
    }
    const existing = await this.#existingUids();
    for (const job of suspects.filter((one) => !belongsTo(one, existing))) {
      await this.#jobs.delete(job, { propagationPolicy: 'Background' });
      logger.info(
        { job: job.metadata.name },
        'an ended Job was deleted, because its object no longer exists',
      );
    }
    return undefined;
  }

  #knownUids(): Set<string> {
    const { entries, images, isos } = this.#options;
    const objects: Readonly<KubeObject>[] = [
      ...entries.cache.list(),
      ...images.cache.list(),
      ...isos.cache.list(),
    ];
    return new Set(objects.map(({ metadata: { uid = '' } }) => uid));
  }

  async #existingUids(): Promise<Set<string>> {
    const uids = new Set<string>();
    for (const type of OWNERS) {
      for await (const { items } of this.#options.client.pages<KubeObject>(type)) {
        items.forEach(({ metadata: { uid = '' } }) => uids.add(uid));
      }
    }
    return uids;
  }
}

/** Returns true if the Job has ended and Kubernetes does not delete it together with another object. */
function isLeft(job: Readonly<Job>): boolean {
  return (
    ownersOf(job).length > 0 &&
    controllerOf(job) === undefined &&
    job.metadata.deletionTimestamp === undefined &&
    trueCondition(job, 'Complete', 'Failed') !== undefined
  );
}

function belongsTo(job: Readonly<Job>, uids: ReadonlySet<string>): boolean {
  return ownersOf(job).some((uid) => uids.has(uid));
}

/** Enqueues the only key when a Job has ended, and when an object that might have such a Job is deleted. */
export function enqueueAbandonedJobs(
  controller: Controller,
  { jobs, entries, images, isos }: AbandonedJobSources,
): void {
  jobs.cache.onChange(({ type, object }) => {
    if (type !== 'deleted' && isLeft(object)) {
      controller.enqueue(ABANDONED_KEY);
    }
  });
  for (const { cache } of [entries, images, isos]) {
    cache.onChange(({ type }) => {
      if (type === 'deleted' && jobs.cache.list().some(isLeft)) {
        controller.enqueue(ABANDONED_KEY);
      }
    });
  }
}
