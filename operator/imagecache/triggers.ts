/** Enqueues ImageCacheEntries when objects on which they depend change. */
import { digestsIn } from '../../api/v1alpha1/cachetargets.ts';
import type { ImageCacheEntry } from '../../api/v1alpha1/imagecacheentry.ts';
import { SLOT_RESOURCE } from '../../api/v1alpha1/names.ts';
import type { Cache, ObjectChange } from '../../kube/cache.ts';
import type { Controller } from '../../kube/controller.ts';
import type { Job, Node, Pod } from '../../kube/core.ts';
import { equal } from '../../kube/mergepatch.ts';
import { keyOf } from '../../kube/objects.ts';
import { imageObjectName } from '../image/content.ts';
import { conditionIn } from '../objects/conditions.ts';
import { ENTRY_UID_LABEL } from '../tasks/owner.ts';
import { holdsSlot, hostOfJob, JOBS_BY_HOST } from '../tasks/placement.ts';
import {
  ENTRIES_BY_DIGEST,
  ENTRIES_BY_IMAGE,
  ENTRIES_BY_NAMESPACE,
  ENTRIES_BY_QUEUED_HOST,
  ENTRIES_BY_REFERENCE,
  ENTRIES_BY_UID,
  type EntrySources,
  keyOfImage,
} from './observe.ts';

/** Enqueues the entries that depend on a changed object: an entry, a Job, a Pod, an Image or a Node. */
export function enqueueEntries(controller: Controller, sources: EntrySources): void {
  const entries = sources.entries.cache;
  const enqueue = (found: readonly Readonly<ImageCacheEntry>[]) =>
    found.forEach((entry) => controller.enqueue(keyOf(entry)));
  const rivals = (entry: Readonly<ImageCacheEntry>) =>
    entries.byIndex(ENTRIES_BY_REFERENCE, keyOfImage(entry));
  entries.onChange(({ type, object }) => {
    controller.enqueue(keyOf(object));
    // All entries of a namespace for an image are duplicates, except the first one. If an entry comes, is being deleted or goes, another
    // entry can become the first one or a duplicate. Therefore the other entries are enqueued, too.
    enqueue(type === 'updated' && object.metadata.deletionTimestamp === undefined ? [] : rivals(object));
  });
  const byTask = ({ object }: { readonly object: Job | Pod }) =>
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
    enqueue(entries.byIndex(ENTRIES_BY_IMAGE, imageObjectName(object))),
  );
  // The label of a Namespace decides which hosts it has, and its deletion decides where its Jobs are.
  sources.namespaces.cache.onChange(({ object }) =>
    enqueue(entries.byIndex(ENTRIES_BY_NAMESPACE, object.metadata.name)),
  );
  sources.nodes.cache.onChange((change) => {
    enqueue(concerned(change, entries));
    // A host also lists an image that a Job has just fetched, and whose digest no entry has yet.
    sources.jobs.cache
      .byIndex(JOBS_BY_HOST, change.object.metadata.name)
      .forEach((job) => byTask({ object: job }));
  });
}

/**
 * Returns the entries to reconcile after a change of a Node. If only the Node's list of images changed, the result is the entries for the
 * added and removed content. If the Node is new or deleted, or its readiness, labels, slots or cordon changed, the result is all entries.
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
  const digests = new Set(changed.flatMap((one) => one.split(' ')));
  return [...digests].flatMap((digest) => entries.byIndex(ENTRIES_BY_DIGEST, digest));
}

function stateOf(node: Readonly<Node> | undefined): object {
  return {
    labels: node?.metadata.labels,
    isCordoned: node?.spec?.unschedulable,
    ready: conditionIn(node?.status, 'Ready'),
    slots: node?.status?.allocatable?.[SLOT_RESOURCE],
  };
}

/** Returns one text for each image on a Node, with the digests of the image. */
function imagesOf(node: Readonly<Node> | undefined): Set<string> {
  return new Set(node?.status?.images?.map(({ names }) => digestsIn(names ?? []).join(' ')));
}
