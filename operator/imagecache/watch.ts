/** Which changes of the world concern which entries. */
import { SLOT_RESOURCE } from '../../api/v1alpha1/names.ts';
import type { Cache, Change } from '../../kube/cache.ts';
import type { Controller } from '../../kube/controller.ts';
import type { Node, Pod } from '../../kube/core.ts';
import type { Job } from '../../kube/job.ts';
import type { ImageCacheEntry } from '../../api/v1alpha1/imagecacheentry.ts';
import { equal } from '../objects/mergepatch.ts';
import { referenceOf } from './image.ts';
import {
  ENTRIES_BY_QUEUED_HOST,
  ENTRIES_BY_REFERENCE,
  ENTRIES_BY_UID,
  entryUidOf,
  holdsSlot,
  hostOfJob,
  type Sources,
} from './observe.ts';

export function enqueueEntries(controller: Controller, sources: Sources): void {
  const entries = sources.entries.cache;
  const enqueue = (found: readonly Readonly<ImageCacheEntry>[]) =>
    found.forEach(({ metadata }) => controller.enqueue(metadata.name));
  const rivals = (entry: Readonly<ImageCacheEntry>) =>
    entries.byIndex(ENTRIES_BY_REFERENCE, referenceOf(entry));
  entries.onChange(({ type, object }) => {
    controller.enqueue(object.metadata.name);
    // Who was there first decides for all.
    enqueue(type === 'updated' ? [] : rivals(object));
  });
  const byTask = ({ object }: Change<Job | Pod>) =>
    entryUidOf(object).forEach((uid) => enqueue(entries.byIndex(ENTRIES_BY_UID, uid)));
  sources.jobs.cache.onChange(byTask);
  // Whose end gives a place of a host back.
  const byHost = (host: string) => enqueue(entries.byIndex(ENTRIES_BY_QUEUED_HOST, host));
  sources.jobs.cache.onChange(({ type, object }) => {
    if (type === 'deleted') {
      hostOfJob(object).forEach(byHost);
    }
  });
  sources.pods.cache.onChange(({ type, object }) => {
    const { nodeName } = object.spec;
    if (nodeName !== undefined && (type === 'deleted' || !holdsSlot(object))) {
      byHost(nodeName);
    }
  });
  sources.taskPods.cache.onChange(byTask);
  sources.images.cache.onChange(({ object: { metadata } }) =>
    enqueue(entries.byIndex(ENTRIES_BY_REFERENCE, `berth.dev/${metadata.namespace}/${metadata.name}`)),
  );
  sources.nodes.cache.onChange((change) => enqueue(concerned(change, entries)));
}

/** A new image on a host concerns the entries for it; that it came, went, answers or is targeted, all of them. */
function concerned(
  { type, object, previous }: Change<Node>,
  entries: Cache<ImageCacheEntry>,
): readonly Readonly<ImageCacheEntry>[] {
  if (type !== 'updated' || !equal(stateOf(previous), stateOf(object))) {
    return entries.list();
  }
  const before = namesOf(previous);
  const after = namesOf(object);
  const changed = [...before, ...after].filter((name) => before.has(name) !== after.has(name));
  const references = new Set(changed.flatMap(referencesIn));
  return [...references].flatMap((reference) => entries.byIndex(ENTRIES_BY_REFERENCE, reference));
}

function stateOf(node: Readonly<Node> | undefined): object {
  return {
    labels: node?.metadata.labels,
    isCordoned: node?.spec?.unschedulable,
    ready: node?.status?.conditions?.find(({ type }) => type === 'Ready'),
    slots: node?.status?.allocatable?.[SLOT_RESOURCE],
  };
}

/** Each with its image's digests, so that a tag that moves to another image is a change. */
function namesOf(node: Readonly<Node> | undefined): Set<string> {
  const lists = node?.status?.images ?? [];
  return new Set(lists.flatMap(({ names }) => names.map((name) => `${name} ${names.join(' ')}`)));
}

/** What an entry for the image may call it: by tag, pinned, or by the name of its object. */
function referencesIn(changed: string): string[] {
  const [name = ''] = changed.split(' ');
  return name.startsWith('berth.dev/') ? [name, name.slice(0, name.indexOf('@'))] : [name];
}
