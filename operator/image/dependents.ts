/** Which Images or ISOs a change of something else is news for. */
import type { Image } from '../../api/v1alpha1/image.ts';
import type { ISO } from '../../api/v1alpha1/iso.ts';
import type { VM } from '../../api/v1alpha1/vm.ts';
import type { Pod } from '../../kube/core.ts';
import type { Informer } from '../../kube/informer.ts';
import type { Job } from '../../kube/job.ts';
import { keyOf } from '../../kube/objects.ts';
import type { ImageControllerOptions } from './controller.ts';
import { originKeys } from './content.ts';
import { podJob } from './observe.ts';

/** Each answers with keys, `namespace/name`. */
export interface Affected {
  byOrigin: (origin: Image | ISO) => string[];
  byJob: (job: Job) => string[];
  byPod: (pod: Pod, jobs: Informer<Job>) => string[];
  byVM: (vm: VM) => string[];
}

/** Images are few beside VMs, and none is waiting for most changes: a look through them costs little. */
export function imagesAffected({
  kind,
  objects,
  config,
}: Pick<ImageControllerOptions, 'kind' | 'objects' | 'config'>): Affected {
  const matching = (test: (object: Image | ISO) => boolean): string[] =>
    objects.cache.list().filter(test).map(keyOf);
  const byJob = ({ metadata: { namespace, ownerReferences = [] } }: Job): string[] =>
    ownerReferences.filter((owner) => owner.kind === kind).map(({ name }) => `${namespace}/${name}`);
  return {
    byOrigin: (origin) => matching((object) => originKeys(object, config).includes(keyOf(origin))),
    byJob,
    byPod: (pod, jobs) =>
      podJob(pod).flatMap((key) => {
        const job = jobs.cache.get(key);
        return job === undefined ? [] : byJob(job);
      }),
    byVM: ({ metadata: { name, namespace } }) =>
      matching(({ spec, metadata }) => metadata.namespace === namespace && vmNames(spec).includes(name)),
  };
}

function vmNames(spec: Image['spec'] | ISO['spec']): (string | undefined)[] {
  const fromVM = 'fromVM' in spec.source ? spec.source.fromVM?.name : undefined;
  return [fromVM, 'commit' in spec ? spec.commit?.vmName : undefined];
}
