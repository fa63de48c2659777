/** Finds the objects that a task belongs to: the Image, ISO or ImageCacheEntry of a Job or Pod, and the Job of a Pod. */
import { IMAGE_UID_LABEL } from '../../api/v1alpha1/names.ts';
import type { Job, Pod } from '../../kube/core.ts';
import type { Informer } from '../../kube/informer.ts';
import type { KubeObject, ObjectMeta } from '../../kube/objects.ts';

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
