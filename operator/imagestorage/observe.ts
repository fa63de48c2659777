/**
 * Reads which content is to be removed, and which content is needed. Just before a removal, the Images, ISOs and Pods that need content are
 * read again from the API server, not from the cache.
 */
import type { Image } from '../../api/v1alpha1/image.ts';
import type { ISO } from '../../api/v1alpha1/iso.ts';
import { VM_UID_LABEL } from '../../api/v1alpha1/names.ts';
import type { KubeClient } from '../../kube/client.ts';
import { type Job, type Pod, PODS } from '../../kube/core.ts';
import type { Informer } from '../../kube/informer.ts';
import { IMAGES, ISOS } from '../../api/v1alpha1/resources.ts';
import { isRemoval, recordedPlace } from '../image/place.ts';
import { taskOutcome, trueCondition } from '../tasks/outcome.ts';
import { podsOf } from '../tasks/owner.ts';
import { type Needs, needsOf } from './needs.ts';
import type { Removal, RemovalEnd } from './plan.ts';

export interface RemovalSources {
  readonly images: Informer<Image>;
  readonly isos: Informer<ISO>;
  /** The Pods of VMs. */
  readonly pods: Informer<Pod>;
  readonly jobs: Informer<Job>;
  readonly taskPods: Informer<Pod>;
}

export function observeRemovals({ jobs, taskPods }: RemovalSources): Removal[] {
  return jobs.cache
    .list()
    .filter(isRemoval)
    .flatMap((job) => {
      const place = recordedPlace(job);
      return place === undefined ? [] : [{ job, place, end: endOf(job, taskPods) }];
    });
}

/**
 * Returns the result of a removal, as the newest Pod of the Job shows it. The result is undefined while the Job controller can try again.
 */
function endOf(job: Job, taskPods: Informer<Pod>): RemovalEnd | undefined {
  if (trueCondition(job, 'Complete', 'Failed', 'FailureTarget') === undefined) {
    return undefined;
  }
  const newest = podsOf(job, taskPods).toSorted(byAge).at(-1);
  const outcome = taskOutcome(job, newest);
  switch (outcome.kind) {
    case 'succeeded':
      return { kept: outcome.report.kept };
    case 'failed':
      return { kept: `${outcome.reason}: ${outcome.message}` };
    default:
      return undefined;
  }
}

function byAge(a: Pod, b: Pod): number {
  return (a.metadata.creationTimestamp ?? '').localeCompare(b.metadata.creationTimestamp ?? '');
}

export function cachedNeeds({ images, isos, pods, jobs }: RemovalSources): Needs {
  const objects = [...images.cache.list(), ...isos.cache.list()];
  return needsOf({ objects, pods: pods.cache.list(), jobs: jobs.cache.list() });
}

/**
 * Determines the needed content from objects that the API server returns now. Only the Jobs come from the cache. The objects are read in
 * pages, and only their keys are kept. All Pods of 12,000 VMs together would need 100 MB of memory.
 */
export async function currentNeeds(
  client: Pick<KubeClient, 'pages'>,
  { jobs }: Pick<RemovalSources, 'jobs'>,
): Promise<Needs> {
  const found: Needs[] = [needsOf({ objects: [], pods: [], jobs: jobs.cache.list() })];
  for (const type of [IMAGES, ISOS]) {
    for await (const { items } of client.pages<Image | ISO>(type)) {
      found.push(needsOf({ objects: items, pods: [], jobs: [] }));
    }
  }
  for await (const { items } of client.pages(PODS, { labelSelector: VM_UID_LABEL })) {
    found.push(needsOf({ objects: [], pods: items, jobs: [] }));
  }
  return {
    keys: new Set(found.flatMap(({ keys }) => [...keys])),
    unknown: found.some(({ unknown }) => unknown),
  };
}
