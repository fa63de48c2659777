/**
 * Reads the state of the image cache from two kinds of objects: the Nodes of the hosts, and the ImageCacheEntries that keep images on
 * hosts.
 */
import { infoItems, objectInfoItems } from '../../api/http/cacheinfo.ts';
import type { CacheInfo } from '../../api/http/imagecache.ts';
import { keepingEntry, referenceOf } from '../../api/v1alpha1/cachetargets.ts';
import type { ImageCacheEntry } from '../../api/v1alpha1/imagecacheentry.ts';
import { DEFAULT_NAMESPACE } from '../../api/v1alpha1/names.ts';
import { isImageReference, normaliseImageName, readReference } from '../../api/v1alpha1/reference.ts';
import { IMAGE_CACHE_ENTRIES } from '../../api/v1alpha1/resources.ts';
import type { Node } from '../../kube/core.ts';
import type { UserCluster } from '../cluster.ts';
import { CommandError, EXIT } from '../errors.ts';
import { directOrAsked, namespacePath } from '../httpapi.ts';
import { readHosts } from '../node.ts';
import { printable } from '../text.ts';

export type InfoItem = CacheInfo['items'][number];

interface Cache {
  /** Hosts of all namespaces. */
  readonly hosts: readonly Node[];
  /** Hosts of the namespace. */
  readonly own: readonly Node[];
  readonly entries: readonly ImageCacheEntry[];
}

/** Returns all hosts and all ImageCacheEntries. @throws ApiError when the user may not read Nodes or ImageCacheEntries. */
export async function readCache(cluster: UserCluster, signal: AbortSignal): Promise<Cache> {
  const [{ all: hosts, own }, { items: entries }] = await Promise.all([
    readHosts(cluster, signal),
    cluster.client.list(IMAGE_CACHE_ENTRIES, { signal }),
  ]);
  return { hosts, own, entries };
}

/**
 * Returns the ImageCacheEntry for the image with this normalized name. If there are several such entries, returns the one that has an
 * effect.
 */
export function entryFor(
  entries: readonly ImageCacheEntry[],
  reference: string,
): ImageCacheEntry | undefined {
  return keepingEntry(entries.filter((entry) => referenceOf(entry) === reference));
}

/**
 * Returns the normalized name if the image is in a registry. The result is undefined if `image` is the name of an Image object.
 *
 * @throws CommandError when the text is not a correct image reference.
 */
export function referenceIn(image: string): string | undefined {
  if (!isImageReference(image)) {
    return undefined;
  }
  const parts = readReference(image);
  if (typeof parts === 'string') {
    throw new CommandError(
      `The image ${JSON.stringify(printable(image))} is not an image reference: ${parts}`,
      EXIT.usage,
    );
  }
  return normaliseImageName(image);
}

/** Returns the hosts of the namespace that have, fetch or remove the image. @throws ApiError; CommandError. */
export async function readInfo(
  cluster: UserCluster,
  image: string,
  signal: AbortSignal,
): Promise<InfoItem[]> {
  return await directOrAsked(
    cluster,
    signal,
    async () => infoOf(await readCache(cluster, signal), image, cluster.namespace),
    async (server) => {
      const path = namespacePath(cluster.namespace, 'cache', 'images', image);
      return ((await server({ method: 'GET', path })) as CacheInfo).items;
    },
  );
}

function infoOf({ own, entries }: Cache, image: string, namespace: string): InfoItem[] {
  const entryOf = (reference: string) => entryFor(entries, reference);
  const reference = referenceIn(image);
  return reference === undefined
    ? objectInfoItems(image, { own: namespace, default: DEFAULT_NAMESPACE }, own, entryOf)
    : infoItems(reference, own, entryOf(reference));
}
