/** Enqueues VMs when objects on which they depend change, and indexes VMs by these objects. */
import type { VM } from '../../api/v1alpha1/vm.ts';
import type { Controller } from '../../kube/controller.ts';
import type { ConfigMap, Pod } from '../../kube/core.ts';
import type { Informer } from '../../kube/informer.ts';
import { keyOf, type KubeObject } from '../../kube/objects.ts';
import { conditionIn } from '../objects/conditions.ts';
import { PODS_BY_NODE } from '../host/observe.ts';
import { onHostChange, onStartChange } from '../host/power.ts';
import { isBound, type VMSources, waitingForPortsOf } from './observe.ts';
import { vmKeyOf } from './snapshots.ts';

/** Names of the indexes that find VMs by an object that their spec names: a VMConfig, or an Image or ISO. */
export const VMS_BY_CONFIG = 'config';
export const VMS_BY_IMAGE = 'image';
/** Index of the VMs that have a VMConfig and no host. All of them have the same key. */
export const VMS_WITHOUT_HOST = 'withoutHost';
/** Index of the Pods of VMs that are not bound to a host. All of them have the same key. */
export const PODS_WITHOUT_HOST = 'withoutHost';
export const WITHOUT_HOST = 'true';

/** Returns the keys of a VM for the index {@link VMS_WITHOUT_HOST}. */
export function withoutHost({ spec, status }: VM): string[] {
  return spec.configRef !== undefined && status?.nodeName === undefined ? [WITHOUT_HOST] : [];
}

/** Returns the keys of a Pod for the index {@link PODS_WITHOUT_HOST}. */
export function unboundPods({ spec }: Pod): string[] {
  return spec.nodeName === undefined ? [WITHOUT_HOST] : [];
}

/**
 * Enqueues a VM when the VM, its Pod, its host or the record of its host has changed. A VM can also wait for a VMConfig, an Image, an ISO, or a Pod that holds a
 * host port that the VM requests. When one of these objects changes, the waiting VM is enqueued, too.
 */
export function enqueueVMs(
  controller: Controller,
  sources: VMSources & { readonly recordsMap: Informer<ConfigMap> },
): void {
  const { vms, pods, servers, vmConfigs, images, isos, snapshots, config } = sources;
  vms.cache.onChange(({ object }) => controller.enqueue(keyOf(object)));
  snapshots.cache.onChange(({ object }) => controller.enqueue(vmKeyOf(object)));
  // Changes of Pods have a higher priority than new VMs. Otherwise a large number of new VMs would delay VMs that already run.
  pods.cache.onChange(({ object, previous }) => {
    if (previous !== undefined && isRefusedAgain(previous, object)) {
      controller.enqueueAfter(keyOf(object), REFUSED_MILLISECONDS);
    } else {
      controller.enqueue(keyOf(object), { urgent: true });
    }
  });
  const enqueueAll = (found: readonly Readonly<VM>[], mayName: (vm: Readonly<VM>) => boolean): void =>
    found.filter(mayName).forEach((vm) => controller.enqueue(keyOf(vm)));
  // Without this check, a user who changes an Image again and again would cause work for the VMs of all namespaces.
  const isInReach = ({ metadata: { namespace } }: KubeObject, vm: Readonly<VM>): boolean =>
    namespace === vm.metadata.namespace || namespace === config.namespaces.default;
  const byImage = ({ object }: { object: KubeObject }): void => {
    enqueueAll(vms.cache.byIndex(VMS_BY_IMAGE, object.metadata.name), (vm) => isInReach(object, vm));
    // A VM can get its image from its VMConfig. Therefore a change of an image also enqueues every VM with a VMConfig and without a host.
    // There are only few such VMs.
    enqueueAll(vms.cache.byIndex(VMS_WITHOUT_HOST, WITHOUT_HOST), (vm) => isInReach(object, vm));
  };
  images.cache.onChange(byImage);
  isos.cache.onChange(byImage);
  vmConfigs.cache.onChange(({ object }) => {
    enqueueAll(vms.cache.byIndex(VMS_BY_CONFIG, object.metadata.name), (vm) => {
      const { namespace } = vm.spec.configRef ?? {};
      return namespace === undefined ? isInReach(object, vm) : namespace === object.metadata.namespace;
    });
  });
  pods.cache.onChange(({ type, object, previous }) => {
    if (type === 'deleted' || isBound(object) !== (previous !== undefined && isBound(previous))) {
      waitingForPortsOf(object, pods.cache).forEach((pod) => controller.enqueue(keyOf(pod)));
    }
  });
  const enqueueHost = (name: string): void =>
    pods.cache.byIndex(PODS_BY_NODE, name).forEach((pod) => controller.enqueue(keyOf(pod)));
  onHostChange(sources, enqueueHost);
  onStartChange(servers, () =>
    pods.cache
      .byIndex(PODS_WITHOUT_HOST, WITHOUT_HOST)
      .forEach((pod) => controller.enqueueAfter(keyOf(pod), REFUSED_MILLISECONDS)),
  );
}

/**
 * Time in milliseconds after which a VM that waits for a host tells the latest reason. Each change of a host changes the reasons of all
 * waiting VMs. If each VM told each of them, a hundred VMs that wait for ten hosts would keep the API server busy while the hosts open.
 */
const REFUSED_MILLISECONDS = 2_000;

/** Returns true if the scheduler found no host for the Pod. */
export function isWaiting({ spec, status, metadata }: Readonly<Pod>): boolean {
  const scheduled = conditionIn(status, 'PodScheduled');
  const isUnbound = spec.nodeName === undefined && metadata.deletionTimestamp === undefined;
  return isUnbound && scheduled?.status === 'False' && scheduled.reason === 'Unschedulable';
}

/** Returns true if the scheduler found no host for the Pod before the change, and none by it. */
function isRefusedAgain(before: Readonly<Pod>, now: Readonly<Pod>): boolean {
  return isWaiting(before) && isWaiting(now);
}
