/**
 * Facts that follow from ImageCacheEntries: the normalized name of their image, which of several entries keeps it, and whether a host should
 * have it.
 */
import type { ImageCacheEntrySpec } from './imagecacheentry.ts';
import type { ObjectMeta } from './metadata.ts';
import { CACHE_FINALIZER } from './names.ts';
import { normaliseImageName } from './reference.ts';

export type CacheTargets = NonNullable<ImageCacheEntrySpec['targets']>;

/** Returns the normalized name of the entry's image. Entries with the same normalized name are for the same image. */
export function referenceOf({ spec }: { readonly spec: ImageCacheEntrySpec }): string {
  const { imageRef, reference = '' } = spec;
  return imageRef === undefined
    ? normaliseImageName(reference)
    : cachedObjectName(imageRef.namespace, imageRef.name);
}

/** Returns the name under which hosts list an Image object, without its digest. */
export function cachedObjectName(namespace: string, name: string): string {
  return `berth.dev/${namespace}/${name}`;
}

/** Returns true if a host with this name and these tags should have the image. */
export function isTargeted(
  host: { readonly name: string; readonly tags: ReadonlySet<string> },
  targets: CacheTargets,
): boolean {
  const { all = false, nodes = [], tags = [], excludeNodes = [], excludeTags = [] } = targets;
  const has = (tag: string): boolean => host.tags.has(tag);
  const isNamed = all || nodes.includes(host.name) || tags.some(has);
  return isNamed && !excludeNodes.includes(host.name) && !excludeTags.some(has);
}

interface Entry {
  readonly metadata: Readonly<Pick<ObjectMeta, 'name' | 'finalizers' | 'creationTimestamp'>>;
}

/**
 * Returns the one of several entries for the same image that keeps it. An entry with the finalizer has begun and continues. If no entry
 * has begun, the oldest one begins. Names decide between entries of the same second.
 */
export function keepingEntry<Kept extends Entry>(entries: readonly Kept[]): Kept | undefined {
  return entries.toSorted((one, other) => (rank(one) < rank(other) ? -1 : 1))[0];
}

function rank({ metadata }: Entry): string {
  const works = metadata.finalizers?.includes(CACHE_FINALIZER) === true;
  return `${works ? 0 : 1} ${metadata.creationTimestamp} ${metadata.name}`;
}
