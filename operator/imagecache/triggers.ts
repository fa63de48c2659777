/** Enqueues ImageCacheEntries when objects on which they depend change. */
import { referenceOf } from '../../api/v1alpha1/cachetargets.ts';
import type { ImageCacheEntry } from '../../api/v1alpha1/imagecacheentry.ts';
import { SLOT_RESOURCE } from '../../api/v1alpha1/names.ts';
import type { Cache, ObjectChange } from '../../kube/cache.ts';
import type { Controller } from '../../kube/controller.ts';
import type { Job, Node, Pod } from '../../kube/core.ts';
import { equal } from '../../kube/mergepatch.ts';
import { imageObjectName } from '../image/content.ts';
import { conditionIn } from '../objects/conditions.ts';
import { ENTRY_UID_LABEL } from '../tasks/owner.ts';
import { holdsSlot, hostOfJob } from '../tasks/placement.ts';
import {
  ENTRIES_BY_QUEUED_HOST,
  ENTRIES_BY_REFERENCE,
  ENTRIES_BY_UID,
  type EntrySources,
} from './observe.ts';

/** Enqueues the entries that depend on a changed object: an entry, a Job, a Pod, an Image or a Node. */
export function enqueueEntries(controller: Controller, sources: EntrySources): void {
  const entries = sources.entries.cache;
  const enqueue = (found: readonly Readonly<ImageCacheEntry>[]) =>
    found.forEach(({ metadata }) => controller.enqueue(metadata.name));
  const rivals = (entry: Readonly<ImageCacheEntry>) =>
    entries.byIndex(ENTRIES_BY_REFERENCE, referenceOf(entry));
  entries.onChange(({ type, object }) => {
    controller.enqueue(object.metadata.name);
    // All entries for an image are duplicates, except the first one. If an entry is new or deleted, another entry can become the first one
    // or a duplicate. Therefore the other entries are enqueued, too.
    enqueue(type === 'updated' ? [] : rivals(object));
  });
  const byTask = ({ object }: ObjectChange<Job | Pod>) =>
    enqueue(entries.byIndex(ENTRIES_BY_UID, object.metadata.labels?.[ENTRY_UID_LABEL] ?? ''));
  sources.jobs.cache.onChange(byTask);
  // When a Job or machine ends, its host has another free slot, so the entries that wait for this host are enqueued.
  const byHost = (host: string) => enqueue(entries.byIndex(ENTRIES_BY_QUEUED_HOST, host));
  sources.jobs.cache.onChange(({ type, object }) => {
    if (type === 'deleted') {
      hostOfJob(object).forEach(byHost);
    }
  });
  const byMachine = ({ type, object }: ObjectChange<Pod>) => {
    const { nodeName } = object.spec;
    if (nodeName !== undefined && (type === 'deleted' || !holdsSlot(object))) {
      byHost(nodeName);
    }
  };
  sources.pods.cache.onChange(byMachine);
  sources.emulatorPods.cache.onChange(byMachine);
  sources.taskPods.cache.onChange(byTask);
  sources.images.cache.onChange(({ object }) =>
    enqueue(entries.byIndex(ENTRIES_BY_REFERENCE, imageObjectName(object))),
  );
  sources.nodes.cache.onChange((change) => enqueue(concerned(change, entries)));
}

/**
 * Returns the entries to reconcile after a change of a Node. If only the Node's list of images changed, the result is the entries for the
 * added and removed images. If the Node is new or deleted, or its readiness, labels, slots or cordon changed, the result is all entries.
 */
function concerned(
  { type, object, previous }: ObjectChange<Node>,
  entries: Cache<ImageCacheEntry>,
): readonly Readonly<ImageCacheEntry>[] {
  if (type !== 'updated' || !equal(stateOf(previous), stateOf(object))) {
    return entries.list();
  }
  const before = imagesOf(previous);
  const after = imagesOf(object);
  const changed = [...before, ...after].filter((image) => before.has(image) !== after.has(image));
  const references = new Set(changed.flatMap(referencesIn));
  return [...references].flatMap((reference) => entries.byIndex(ENTRIES_BY_REFERENCE, reference));
}

function stateOf(node: Readonly<Node> | undefined): object {
  return {
    labels: node?.metadata.labels,
    isCordoned: node?.spec?.unschedulable,
    ready: conditionIn(node?.status, 'Ready'),
    slots: node?.status?.allocatable?.[SLOT_RESOURCE],
  };
}

/**
 * Returns one text for each image on a Node, with all names of the image. One of these names contains the digest. Therefore the text
 * changes when a tag moves to another image.
 */
function imagesOf(node: Readonly<Node> | undefined): Set<string> {
  return new Set(node?.status?.images?.map(({ names }) => names?.join(' ') ?? ''));
}

/**
 * Returns the references with which entries request an image: tags, digests, or the names of an Image or ISO. `image` is a text that
 * {@link imagesOf} returned.
 */
function referencesIn(image: string): string[] {
  return image
    .split(' ')
    .flatMap((name) => (name.startsWith('berth.dev/') ? [name, name.slice(0, name.indexOf('@'))] : [name]));
}
