/**
 * Machines that no agent can end in order any more. Those that may still run on a silent host are given up: the host's Node remembers
 * their MAC addresses until the host is back and ends machines without a VM. A VM that gets such an address again is told.
 */
import * as z from 'zod';
import { parseDocument } from '../../api/v1alpha1/machine.ts';
import { GIVEN_UP_ANNOTATION } from '../../api/v1alpha1/names.ts';
import type { Node, Pod } from '../../kube/core.ts';
import { isHost, isOutOfService } from '../host/observe.ts';
import { isLost } from './facts.ts';
import type { Observed } from './observe.ts';
import { hasRun, machineOf, terminated } from './podstate.ts';

/** Index of Nodes by the MAC addresses of machines that were given up on them. */
export const NODES_BY_GIVEN_UP = 'givenUp';

const addressesSchema = z.array(z.string());

/** MAC addresses; none where somebody else has written something there. */
export function givenUpOn({ metadata }: Readonly<Node>): string[] {
  const result = addressesSchema.safeParse(parseDocument(metadata.annotations?.[GIVEN_UP_ANNOTATION]));
  return result.success ? result.data : [];
}

export function macAddressOf(pod: Pod): string | undefined {
  return machineOf(pod)?.hardware.macAddress;
}

/**
 * The MAC addresses that the Node of an abandoned Pod is to remember; undefined when none is new. A host whose Node was deleted or is
 * out of service was fenced by somebody, and a host itself ends a machine that nobody saw run.
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

/** Whether no agent will end the Pod's machine in order any more, as far as Kubernetes can know. */
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

/** The design's condition for letting the Pod's finalizer go, apart from the facts being in the VM's status. */
export function isReleasable(observed: Observed, pod: Pod): boolean {
  return terminated(pod) !== undefined || pod.spec.nodeName === undefined || isAbandoned(observed, pod);
}
