/** Reads the Events of a VM. */
import type { VM } from '../../../api/v1alpha1/vm.ts';
import { undefinedIf } from '../../../base/errors.ts';
import { type Event, EVENTS } from '../../../kube/core.ts';
import { isForbidden, isNotFound } from '../../../kube/errors.ts';
import type { Cluster } from '../../cluster.ts';

/**
 * Returns the Events of VMs and Pods with this name, the newest first. If the user may not read Events, the result is empty.
 *
 * @throws ApiError when the API server refuses for another reason.
 */
export async function eventsNamed(
  { client, namespace }: Cluster,
  name: string,
  signal: AbortSignal,
): Promise<Event[]> {
  // The API server selects the Events, because a namespace can have tens of thousands of them.
  const fieldSelector = `regarding.name=${name}`;
  const found = await undefinedIf(
    (error) => isForbidden(error) || isNotFound(error),
    client.list(EVENTS, { namespace, fieldSelector, signal }),
  );
  return (found?.items ?? [])
    .filter(({ regarding }) => /^(VM|Pod)$/.test(regarding.kind ?? ''))
    .sort((a, b) => instantOf(b) - instantOf(a));
}

/**
 * Returns those of the `events` that belong to this VM and its Pods, in the same order. Other Events in `events` can belong to an earlier
 * VM with the same name. Events of the VM are found by its UID, so a wrong clock of a host does not matter. Each attempt to run the VM has
 * its own Pod, so Events of Pods are found by their time: they are not older than the VM.
 */
export function ownEvents(events: readonly Event[], { metadata }: VM): Event[] {
  const created = Date.parse(metadata.creationTimestamp ?? '');
  return events.filter((event) => {
    const { kind, uid } = event.regarding;
    return kind === 'VM' && uid !== undefined ? uid === metadata.uid : instantOf(event) >= created;
  });
}

/** Returns the time at which the Event was last observed, in RFC 3339. */
export function timeOf({ eventTime, metadata, series }: Event): string {
  return series?.lastObservedTime || eventTime || metadata.creationTimestamp || '';
}

/**
 * Returns the time at which the Event was last observed, in milliseconds since 1970. Times cannot be compared as texts, because creation
 * times have no fractions of a second.
 */
function instantOf(event: Event): number {
  return Date.parse(timeOf(event));
}
