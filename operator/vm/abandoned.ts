/**
 * Handles machines that no agent can end cleanly any more. The operator abandons such a machine: it deletes the Pod, although the machine
 * might be running on a host that does not report. The operator also stores the MAC address of the machine on the Node. With this address,
 * an Event can warn if another VM gets the same address while the abandoned machine might be running. When the host reports again, it ends
 * all machines without a VM.
 */
import { isHost } from '../tasks/placement.ts';
import * as z from 'zod';
import { timestamp } from '../../base/time.ts';
import { parseDocument } from '../../api/v1alpha1/machine.ts';
import { API_VERSION, GIVEN_UP_ANNOTATION } from '../../api/v1alpha1/names.ts';
import type { VM } from '../../api/v1alpha1/vm.ts';
import type { Node, Pod } from '../../kube/core.ts';
import { isLost } from '../podbacked/observe.ts';
import type { ObservedVM } from './observe.ts';
import { hasRun, machineOf, terminated } from '../podbacked/pod.ts';

/** Index of Nodes. The keys of a Node are the MAC addresses of the machines that the operator abandoned on this Node's host. */
export const NODES_BY_GIVEN_UP = 'givenUp';

const addressesSchema = z.array(z.string());

/**
 * Returns the MAC addresses of machines that were abandoned on a Node. The result is empty if the annotation is missing or cannot be read.
 */
export function givenUpOn({ metadata }: Readonly<Node>): string[] {
  return addressesSchema.safeParse(parseDocument(metadata.annotations?.[GIVEN_UP_ANNOTATION])).data ?? [];
}

export function macAddressOf(pod: Pod): string | undefined {
  return machineOf(pod)?.hardware.macAddress;
}

/**
 * Returns the MAC addresses to store on the Node of an abandoned Pod. The result is undefined if there is no new address to store. It is
 * also undefined in three other cases. If an administrator gave the host up, its machines have ended. If the Pod never showed that its
 * machine ran, the host itself ends the machine. If there is no Node, there is no place for the address.
 */
export function toRemember({ node, isGivenUp }: ObservedVM, pod: Pod): readonly string[] | undefined {
  const address = macAddressOf(pod);
  const mayRun = hasRun(pod) && node !== undefined && isHost(node) && !isGivenUp;
  if (!mayRun || address === undefined) {
    return undefined;
  }
  const known = givenUpOn(node);
  return known.includes(address) ? undefined : [...known, address];
}

/** Returns true if, according to the objects in Kubernetes, no agent will end the Pod's machine cleanly any more. */
export function isAbandoned(observed: ObservedVM, pod: Pod): boolean {
  const { isGivenUp, vm } = observed;
  if (pod.spec.nodeName === undefined) {
    return false;
  }
  if (isGivenUp) {
    return true;
  }
  const mayGiveUp = vm.metadata.deletionTimestamp !== undefined || vm.status?.firstRunningTime === undefined;
  return mayGiveUp && isLost(observed);
}

/**
 * Returns true if the operator need not wait for the machine before it removes the Pod's finalizer. The caller must also check that the
 * VM's status already contains the facts that the Pod shows.
 */
export function isReleasable(observed: ObservedVM, pod: Pod): boolean {
  return terminated(pod) !== undefined || pod.spec.nodeName === undefined || isAbandoned(observed, pod);
}

/**
 * Returns a substitute for a VM that no longer exists, although its Pod still exists. The substitute has a deletion time, so the Pod ends
 * under the same conditions as the Pod of a VM that is being deleted. `uid` is the uid of the VM, and `now` is the time in milliseconds
 * since the epoch.
 */
export function goneVM({ metadata }: Pod, uid: string, now: number): VM {
  const { name, namespace = '' } = metadata;
  return {
    apiVersion: API_VERSION,
    kind: 'VM',
    metadata: { name, namespace, uid, deletionTimestamp: timestamp(now) },
    spec: {},
  };
}
