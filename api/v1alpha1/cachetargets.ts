/** Facts that follow from the spec of an ImageCacheEntry: the normalized name of its image, and whether a host should have the image. */
import type { ImageCacheEntrySpec } from './imagecacheentry.ts';
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
