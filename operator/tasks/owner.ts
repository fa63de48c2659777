/** Finds the owner of a task: the Image, ISO or ImageCacheEntry of a Job and its Pods, and the Job of a Pod. */
import type { Pod } from '../../kube/core.ts';
import type { Informer } from '../../kube/informer.ts';
import type { Job } from '../../kube/job.ts';
import type { KubeObject, ObjectMeta } from '../../kube/objects.ts';

/** Label of Jobs and their Pods with the uid of the Image or ISO that the task is for. Names may be used again, uids never. */
export const IMAGE_UID_LABEL = 'berth.dev/image-uid';
/** Label of Jobs and their Pods with the uid of the ImageCacheEntry that the task is for. A removal may outlive this entry. */
export const ENTRY_UID_LABEL = 'berth.dev/cache-entry-uid';
/** Label with the name of that ImageCacheEntry, for people. */
export const ENTRY_NAME_LABEL = 'berth.dev/cache-entry';

/** Index of Jobs and their Pods by the uids that {@link ownersOf} returns. */
export const TASKS_BY_OWNER = 'owner';

/** Returns the uids of all owners of a Job or Pod: the object that the task is for, and the Job of a Pod. */
export function ownersOf(task: Readonly<KubeObject>): string[] {
  const { labels = {} } = task.metadata;
  const uids = [labels[IMAGE_UID_LABEL], labels[ENTRY_UID_LABEL], controllerOf(task)?.uid];
  return [...new Set(uids.filter((uid) => uid !== undefined))];
}

/** Returns the owner reference of the object whose controller created the Job or Pod; undefined without such an owner. */
export function controllerOf({
  metadata,
}: Readonly<KubeObject>): NonNullable<ObjectMeta['ownerReferences']>[number] | undefined {
  return metadata.ownerReferences?.find(({ controller }) => controller === true);
}

/**
 * Returns the Pods that the Job controller created for the Job. The label alone is not enough. A host can create Pods of its own
 * (mirror Pods) with any label, but only with its own Node as owner.
 */
export function podsOf({ metadata: { uid = '' } }: Job, taskPods: Pick<Informer<Pod>, 'cache'>): Pod[] {
  const found = taskPods.cache.byIndex(TASKS_BY_OWNER, uid);
  return found.filter((pod) => controllerOf(pod)?.uid === uid);
}

/** Returns the Job of a Pod; undefined when it no longer exists. */
export function jobOf(pod: Readonly<Pod>, jobs: Pick<Informer<Job>, 'cache'>): Readonly<Job> | undefined {
  const owner = controllerOf(pod);
  const job = owner && jobs.cache.get(`${pod.metadata.namespace}/${owner.name}`);
  return job?.metadata.uid === owner?.uid ? job : undefined;
}
