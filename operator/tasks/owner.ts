/** Whose work a task is: the Image, ISO or ImageCacheEntry of a Job and its Pods, and the Job of a Pod. */
import type { Pod } from '../../kube/core.ts';
import type { Informer } from '../../kube/informer.ts';
import type { Job } from '../../kube/job.ts';
import type { KubeObject, ObjectMeta } from '../../kube/objects.ts';

/** The label of Jobs and their Pods with the uid of the Image or ISO that the work is for. Names may be used again, uids never. */
export const IMAGE_UID_LABEL = 'berth.dev/image-uid';
/** The label of Jobs and their Pods with the uid of the ImageCacheEntry that the work is for. A removal may outlive it. */
export const ENTRY_UID_LABEL = 'berth.dev/cache-entry-uid';
/** The name of that entry, for people. */
export const ENTRY_NAME_LABEL = 'berth.dev/cache-entry';

/** The one index of Jobs and their Pods, by the uids that {@link ownersOf} gives. */
export const TASKS_BY_OWNER = 'owner';

/** The uids of all owners of a Job or Pod: the object that the work is for, and a Pod's Job. */
export function ownersOf(task: Readonly<KubeObject>): string[] {
  const { labels = {} } = task.metadata;
  const uids = [labels[IMAGE_UID_LABEL], labels[ENTRY_UID_LABEL], controllerOf(task)?.uid];
  return [...new Set(uids.filter((uid) => uid !== undefined))];
}

/** The object whose controller made the task. */
export function controllerOf({
  metadata,
}: Readonly<KubeObject>): NonNullable<ObjectMeta['ownerReferences']>[number] | undefined {
  return metadata.ownerReferences?.find(({ controller }) => controller === true);
}

/**
 * The Pods that the Job controller made for the Job. A label alone says nothing: a host can make Pods of its own (mirror Pods) with
 * any label, but only its own Node may be their owner.
 */
export function podsOf({ metadata: { uid = '' } }: Job, taskPods: Pick<Informer<Pod>, 'cache'>): Pod[] {
  const found = taskPods.cache.byIndex(TASKS_BY_OWNER, uid);
  return found.filter((pod) => controllerOf(pod)?.uid === uid);
}

/** The Job of a Pod; undefined when it is gone. */
export function jobOf(pod: Readonly<Pod>, jobs: Pick<Informer<Job>, 'cache'>): Readonly<Job> | undefined {
  const owner = controllerOf(pod);
  const job = owner && jobs.cache.get(`${pod.metadata.namespace}/${owner.name}`);
  return job?.metadata.uid === owner?.uid ? job : undefined;
}
