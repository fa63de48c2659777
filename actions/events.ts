/** Reads the Events of VMs. All functions are pure. */
import type { VM } from '../api/v1alpha1/vm.ts';
import type { Event } from '../kube/core.ts';

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
export function instantOf(event: Event): number {
  return Date.parse(timeOf(event));
}
