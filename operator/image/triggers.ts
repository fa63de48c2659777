/** Enqueues Images and ISOs when objects on which they depend change. */
import type { Image } from '../../api/v1alpha1/image.ts';
import type { ISO } from '../../api/v1alpha1/iso.ts';
import type { VM } from '../../api/v1alpha1/vm.ts';
import type { Controller } from '../../kube/controller.ts';
import type { Job, Pod } from '../../kube/core.ts';
import type { Informer } from '../../kube/informer.ts';
import { keyOf } from '../../kube/objects.ts';
import { jobOf } from '../tasks/owner.ts';
import { originKeys } from './content.ts';
import type { ImageSources } from './observe.ts';

/**
 * Returns functions that find the Images or ISOs to reconcile when another object changes. Each function returns keys (`namespace/name`).
 * Some of the functions search all Images or ISOs. This takes little time, because there are far fewer Images than VMs.
 */
export function imagesAffected({ kind, objects, config }: Pick<ImageSources, 'kind' | 'objects' | 'config'>) {
  const matching = (test: (object: Image | ISO) => boolean): string[] =>
    objects.cache.list().filter(test).map(keyOf);
  const byJob = ({ metadata: { namespace, ownerReferences = [] } }: Job): string[] =>
    ownerReferences.filter((owner) => owner.kind === kind).map(({ name }) => `${namespace}/${name}`);
  return {
    byOrigin: (origin: Image | ISO) =>
      matching((object) => originKeys(object, config).includes(keyOf(origin))),
    byJob,
    byPod: (pod: Pod, jobs: Informer<Job>) => {
      const job = jobOf(pod, jobs);
      return job === undefined ? [] : byJob(job);
    },
    byVM: ({ metadata: { name, namespace } }: VM) =>
      matching(({ spec, metadata }) => metadata.namespace === namespace && vmNames(spec).includes(name)),
  };
}

function vmNames(spec: Image['spec'] | ISO['spec']): (string | undefined)[] {
  const fromVM = 'fromVM' in spec.source ? spec.source.fromVM?.name : undefined;
  return [fromVM, 'commit' in spec ? spec.commit?.vmName : undefined];
}

/** Enqueues the Images or ISOs that depend on a changed object: an Image or ISO, a Job, a Job's Pod, or a VM. */
export function enqueueImages(controller: Controller, options: Omit<ImageSources, 'clock'>): void {
  const { objects, vms, jobs, taskPods } = options;
  const enqueue = (keys: readonly string[]): void => keys.forEach((key) => controller.enqueue(key));
  const affected = imagesAffected(options);
  objects.cache.onChange(({ object }) => enqueue([keyOf(object), ...affected.byOrigin(object)]));
  jobs.cache.onChange(({ object }) => enqueue(affected.byJob(object)));
  taskPods.cache.onChange(({ object }) => enqueue(affected.byPod(object, jobs)));
  vms.cache.onChange(({ type, object, previous }) => {
    if (type !== 'updated' || diskKey(object) !== diskKey(previous)) {
      enqueue(affected.byVM(object));
    }
  });
}

/**
 * Returns a text that changes when the VM first runs, and when it fails. Each of these changes can end the wait of an Image for the disk of
 * the VM.
 */
function diskKey(vm: VM | undefined): string {
  const { firstRunningTime, failure } = vm?.status ?? {};
  return `${firstRunningTime} ${failure?.time}`;
}
