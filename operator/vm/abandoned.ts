/**
 * Handles machines that no agent can end cleanly any more. The operator gives up a machine that may still run on a silent host.
 * The host's Node stores the machine's MAC address until the host reports again and ends machines without a VM. If a VM gets such
 * an address again, an Event reports this.
 */
import * as z from 'zod';
import { parseDocument } from '../../api/v1alpha1/machine.ts';
import { GIVEN_UP_ANNOTATION } from '../../api/v1alpha1/names.ts';
import type { Node, Pod } from '../../kube/core.ts';
import { isHost, isOutOfService } from '../host/observe.ts';
import { isLost } from './facts.ts';
import type { Observed } from './observe.ts';
import { hasRun, machineOf, terminated } from './podstate.ts';

/** Index of Nodes by the MAC addresses of the machines that the operator gave up on their hosts. */
export const NODES_BY_GIVEN_UP = 'givenUp';

const addressesSchema = z.array(z.string());

/** Returns the MAC addresses of machines that were given up on a Node; empty when the annotation is missing or not readable. */
export function givenUpOn({ metadata }: Readonly<Node>): string[] {
  const result = addressesSchema.safeParse(parseDocument(metadata.annotations?.[GIVEN_UP_ANNOTATION]));
  return result.success ? result.data : [];
}

export function macAddressOf(pod: Pod): string | undefined {
  return machineOf(pod)?.hardware.macAddress;
}

/**
 * Returns the MAC addresses to store on the Node of an abandoned Pod; undefined when there is no new address. No address is
 * stored when somebody fenced the host: its Node was deleted or is out of service. If the Pod never showed that the machine ran,
 * no address is stored either, because the host itself ends the machine.
 */
export function toRemember({ node }: Observed, pod: Pod): readonly string[] | undefined {
  const address = macAddressOf(pod);
  const mayRun = hasRun(pod) && node !== undefined && isHost(node) && !isOutOfService(node);
  if (!mayRun || address === undefined) {
    return undefined;
  }
  const known = givenUpOn(node);
  return known.includes(address) ? undefined : [...known, address];
}

/** Returns true if no agent will end the Pod's machine cleanly any more, as far as Kubernetes can know. */
export function isAbandoned(observed: Observed, pod: Pod): boolean {
  const { node, vm } = observed;
  if (pod.spec.nodeName === undefined) {
    return false;
  }
  if (node === undefined || isOutOfService(node)) {
    return true;
  }
  const mayGiveUp = vm.metadata.deletionTimestamp !== undefined || vm.status?.firstRunningTime === undefined;
  return mayGiveUp && isLost(observed);
}

/** Returns true if the Pod's finalizer may be removed. The caller also checks that the facts are in the VM's status. */
export function isReleasable(observed: Observed, pod: Pod): boolean {
  return terminated(pod) !== undefined || pod.spec.nodeName === undefined || isAbandoned(observed, pod);
}
