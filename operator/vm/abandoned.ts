/**
 * Machines that were given up on a silent host and may still run there. Their Nodes remember their MAC addresses, until the hosts
 * are back and end what has no VM, so that a VM which gets such an address again is told.
 */
import * as z from 'zod';
import { parseDocument } from '../../api/v1alpha1/machine.ts';
import { GIVEN_UP_ANNOTATION } from '../../api/v1alpha1/names.ts';
import type { Node, Pod } from '../../kube/core.ts';
import { isHost } from '../host/observe.ts';
import { hasRun, isOutOfService, machineOf } from './facts.ts';
import type { Observed } from './observed.ts';

/** Index of Nodes by what was given up on them. */
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
 * What the Node of an abandoned Pod is to remember; undefined when there is nothing new. A host whose Node was deleted or is out
 * of service was fenced by somebody, and what nobody saw run was ended by the host itself.
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
