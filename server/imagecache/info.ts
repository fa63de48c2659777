/** Shows the cached images of a namespace's hosts. All functions are pure. */
import type { CacheInfo, CacheList } from '../../api/http/imagecache.ts';
import { cachedObjectName, isTargeted } from '../../api/v1alpha1/cachetargets.ts';
import type { ImageCacheEntry } from '../../api/v1alpha1/imagecacheentry.ts';
import { readReference, repositoryName } from '../../api/v1alpha1/reference.ts';
import type { ContainerImage, Node } from '../../kube/core.ts';
import { gigabytes } from '../nodes/item.ts';
import { tagsOf } from '../own/hosts.ts';

type InfoItem = CacheInfo['items'][number];
type ListItem = CacheList['items'][number];

/** Statuses by the state of a host in the status of an ImageCacheEntry. */
const STATUS_BY_STATE: Readonly<Record<string, InfoItem['status']>> = {
  Queued: 'queued',
  Caching: 'caching',
  Removing: 'removing',
  Failed: 'failed',
  Outdated: 'outdated',
};

/** Returns the hosts that have the image, get it or remove it. `reference` is its normalized name, and `entry` keeps it on hosts. */
export function infoItems(
  reference: string,
  hosts: readonly Readonly<Node>[],
  entry: Readonly<ImageCacheEntry> | undefined,
): InfoItem[] {
  return hosts.flatMap((host) => {
    const image = host.status?.images?.find(({ names }) => names.some((name) => isNamed(name, reference)));
    const status = statusOn(host, image !== undefined, entry);
    return status === undefined ? [] : [{ node: host.metadata.name, ...status, size: sizeOf(image) }];
  });
}

/** Reports whether a name in the status of a Node is for this image. Hosts list Image objects with their digest. */
function isNamed(name: string, reference: string): boolean {
  if (name === reference || name.startsWith(`${reference}@`)) {
    return true;
  }
  const parts = readReference(reference);
  return typeof parts !== 'string' && parts.digest !== undefined
    ? name === `${repositoryName(parts)}@${parts.digest}`
    : false;
}

function statusOn(
  host: Readonly<Node>,
  isThere: boolean,
  entry: Readonly<ImageCacheEntry> | undefined,
): Pick<InfoItem, 'status' | 'message'> | undefined {
  const { name } = host.metadata;
  const row = entry?.status?.nodes?.find(({ node }) => node === name);
  const status = STATUS_BY_STATE[row?.state ?? ''];
  return status === undefined ? statusAtRest(host, isThere, entry) : { status, message: row?.message };
}

/** Returns the status of a host that the status of the entry does not list. */
function statusAtRest(
  host: Readonly<Node>,
  isThere: boolean,
  entry: Readonly<ImageCacheEntry> | undefined,
): Pick<InfoItem, 'status'> | undefined {
  const { name } = host.metadata;
  const isWanted = isTargeted({ name, tags: new Set(tagsOf(host)) }, entry?.spec.targets ?? {});
  if (isThere) {
    const isLeaving = !isWanted && entry?.status?.holders?.includes(name) === true;
    return { status: isLeaving ? 'removing' : 'ready' };
  }
  return isWanted ? { status: 'queued' } : undefined;
}

/** Returns the images that the hosts list. Images of other namespaces are left out, except those of the default namespace. */
export function listItems(
  hosts: readonly Readonly<Node>[],
  namespace: string,
  defaultNamespace: string,
): ListItem[] {
  const items = new Map<string, ListItem>();
  for (const image of hosts.flatMap(({ status }) => status?.images ?? [])) {
    const item = itemOf(image, [namespace, defaultNamespace]);
    if (item !== undefined) {
      const key = [item.image, item.tag, item.imageId].join(' ');
      items.set(key, { ...item, nodes: (items.get(key)?.nodes ?? 0) + 1 });
    }
  }
  return [...items].toSorted(([a], [b]) => (a < b ? -1 : 1)).map(([, item]) => item);
}

function itemOf(image: ContainerImage, namespaces: readonly string[]): ListItem | undefined {
  const [first = ''] = image.names.toSorted((a, b) => Number(a.includes('@')) - Number(b.includes('@')));
  const size = sizeOf(image);
  const object = objectNameIn(first, namespaces);
  if (object !== undefined) {
    return { image: object, imageId: digestIn([first]), size, nodes: 0 };
  }
  const parts = first.startsWith('berth.dev/') ? 'an Image of another namespace' : readReference(first);
  return typeof parts === 'string'
    ? undefined
    : { image: repositoryName(parts), tag: parts.tag, imageId: digestIn(image.names), size, nodes: 0 };
}

function objectNameIn(name: string, namespaces: readonly string[]): string | undefined {
  const [object = ''] = name.split('@');
  const prefix = namespaces.map((one) => cachedObjectName(one, '')).find((one) => object.startsWith(one));
  return prefix === undefined ? undefined : object.slice(prefix.length);
}

function digestIn(names: readonly string[]): string | undefined {
  return names.find((name) => name.includes('@'))?.split('@')[1];
}

function sizeOf(image: ContainerImage | undefined): string | undefined {
  return image?.sizeBytes === undefined ? undefined : gigabytes(image.sizeBytes);
}
