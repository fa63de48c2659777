/**
 * Reads two facts from an ImageCacheEntry: the normalized name of its image, and which hosts should have the image. If several entries
 * of a namespace name the same image, this code also decides which of them has an effect.
 */
import type { ImageCacheEntry, ImageCacheEntrySpec } from './imagecacheentry.ts';
import type { KindMetadata } from './kind.ts';
import { CACHE_FINALIZER } from './names.ts';
import { normaliseImageName } from './reference.ts';

/** Host of a registry with the usual port, at the start of a normalized name. */
const USUAL_PORT = /^([^/]+):443\//;

export type CacheTargets = NonNullable<ImageCacheEntrySpec['targets']>;

/** Returns the normalized name of the entry's image. Two entries with the same normalized name are for the same image. */
export function referenceOf({ spec }: { readonly spec: ImageCacheEntrySpec }): string {
  const { imageRef, reference = '' } = spec;
  return imageRef === undefined
    ? cachedReference(reference)
    : cachedObjectName(imageRef.namespace, imageRef.name);
}

/** Returns the normalized name of an image of a registry, without the port 443, because this is the usual port of registries. */
export function cachedReference(reference: string): string {
  return normaliseImageName(reference).replace(USUAL_PORT, '$1/');
}

/** Returns the name of an Image object in tasks, in the status of VMs and in the stores of hosts. */
export function cachedObjectName(namespace: string, name: string): string {
  return `berth.dev/${namespace}/${name}`;
}

const CONTENT = 'berth.dev/image@';

/**
 * Returns the name under which the Node of a host lists the content with this digest. All users of the cluster who read Nodes see it.
 * Therefore it tells neither the name nor the namespace of an image.
 */
export function contentName(digest: string): string {
  return `${CONTENT}${digest}`;
}

/** Returns the digests of the content among the names under which a Node lists an image. They follow from {@link contentName}. */
export function digestsIn(names: readonly string[]): string[] {
  return names.filter((name) => name.startsWith(CONTENT)).map((name) => name.slice(CONTENT.length));
}

/**
 * Returns a function that reports whether a host with this name and these tags should have the image. The targets can name thousands of
 * hosts, and a caller can call the function for thousands of hosts. Therefore the function looks names up in sets, which are made once.
 */
export function targetTest(
  targets: CacheTargets,
): (host: { readonly name: string; readonly tags: ReadonlySet<string> }) => boolean {
  const { all = false, tags = [], excludeTags = [] } = targets;
  const [nodes, excludeNodes] = [new Set(targets.nodes), new Set(targets.excludeNodes)];
  return (host) => {
    const has = (tag: string): boolean => host.tags.has(tag);
    const isNamed = all || nodes.has(host.name) || tags.some(has);
    return isNamed && !excludeNodes.has(host.name) && !excludeTags.some(has);
  };
}

interface Entry {
  readonly metadata: Readonly<Pick<KindMetadata, 'name' | 'finalizers' | 'creationTimestamp'>>;
}

/**
 * Returns the only one of `entries` that has an effect. All `entries` must be of the same namespace, for the same image. If the operator has begun work for an
 * entry, the entry has the finalizer {@link CACHE_FINALIZER}, and this entry is returned. Otherwise the oldest entry is returned. If the
 * two oldest entries were created in the same second, the one whose name comes first is returned.
 */
export function keepingEntry<Kept extends Entry>(entries: readonly Kept[]): Kept | undefined {
  return entries.toSorted((one, other) => (rank(one) < rank(other) ? -1 : 1))[0];
}

function rank({ metadata }: Entry): string {
  const works = metadata.finalizers?.includes(CACHE_FINALIZER) === true;
  return `${works ? 0 : 1} ${metadata.creationTimestamp} ${metadata.name}`;
}

/** Returns the digests in the status of an entry. */
export function digestsOf({ status: { digest, formerDigests = [] } = {} }: ImageCacheEntry): string[] {
  return digest === undefined ? [] : [digest, ...formerDigests];
}
