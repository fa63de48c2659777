/** Shows the images in the caches of a namespace's hosts. All functions are pure. */
import { cachedObjectName, targetTest } from '../v1alpha1/cachetargets.ts';
import type { ImageCacheEntry, NodeCacheState } from '../v1alpha1/imagecacheentry.ts';
import { readReference, repositoryName } from '../v1alpha1/reference.ts';
import { tagsOf } from '../v1alpha1/hosts.ts';
import { type CachedContent, gigabytes, type HostNode } from './host.ts';
import type { CacheInfo, CacheList } from './imagecache.ts';

type InfoItem = CacheInfo['items'][number];
type ListItem = CacheList['items'][number];

/** Maps the state that an ImageCacheEntry reports for a host to the status of the host in an answer. */
const STATUS_BY_STATE: Readonly<Record<string, InfoItem['status']>> = {
  Queued: 'queued',
  Caching: 'caching',
  Removing: 'removing',
  Failed: 'failed',
  Outdated: 'outdated',
};

/**
 * Returns the hosts that have the image, fetch it or remove it. `reference` is the normalized name of the image. `entry` is the
 * ImageCacheEntry that makes hosts keep the image.
 */
export function infoItems(
  reference: string,
  hosts: readonly HostNode[],
  entry: Readonly<ImageCacheEntry> | undefined,
): InfoItem[] {
  const isNamed = matcherOf(reference);
  const wishes = wishesOf(entry);
  return hosts.flatMap((host) => {
    const image = host.status?.images?.find(({ names }) => names?.some(isNamed));
    const status = statusOn(host, image !== undefined, wishes);
    return status === undefined ? [] : [{ node: host.metadata.name, ...status, size: sizeOf(image) }];
  });
}

/**
 * Returns the hosts that have, fetch or remove the content of an Image object. `image` is the name of an Image in the caller's namespace.
 * If there is no such host, the function looks for the Image with this name in the default namespace.
 */
export function objectInfoItems(
  image: string,
  namespaces: { readonly own: string; readonly default: string },
  hosts: readonly HostNode[],
  entryFor: (reference: string) => Readonly<ImageCacheEntry> | undefined,
): InfoItem[] {
  const itemsIn = (namespace: string) => {
    const reference = cachedObjectName(namespace, image);
    return infoItems(reference, hosts, entryFor(reference));
  };
  const items = itemsIn(namespaces.own);
  return items.length > 0 ? items : itemsIn(namespaces.default);
}

/**
 * Returns a function that reports whether a name in the status of a Node is a name of this image. For Image objects, the name in the status
 * also contains a digest. The reference is parsed only once, because the function is called for thousands of names.
 */
function matcherOf(reference: string): (name: string) => boolean {
  const parts = readReference(reference);
  const pinned =
    typeof parts === 'string' || parts.digest === undefined
      ? undefined
      : `${repositoryName(parts)}@${parts.digest}`;
  return (name) => name === reference || name === pinned || name.startsWith(`${reference}@`);
}

/** The content of an entry, in a form that is searched quickly. An entry can name thousands of hosts. */
interface Wishes {
  readonly isTarget: ReturnType<typeof targetTest>;
  /** State of each host that the status of the entry lists, by the name of the host. */
  readonly rows: ReadonlyMap<string, NodeCacheState>;
  readonly holders: ReadonlySet<string>;
}

function wishesOf(entry: Readonly<ImageCacheEntry> | undefined): Wishes {
  const { nodes = [], holders } = entry?.status ?? {};
  return {
    isTarget: targetTest(entry?.spec.targets ?? {}),
    rows: new Map(nodes.map((row) => [row.node, row])),
    holders: new Set(holders),
  };
}

function statusOn(
  host: HostNode,
  isThere: boolean,
  wishes: Wishes,
): Pick<InfoItem, 'status' | 'message'> | undefined {
  const row = wishes.rows.get(host.metadata.name);
  const status = STATUS_BY_STATE[row?.state ?? ''];
  return status === undefined ? statusAtRest(host, isThere, wishes) : { status, message: row?.message };
}

/** Returns the status of the image on a host, if the status of the entry does not list this host. */
function statusAtRest(
  host: HostNode,
  isThere: boolean,
  { isTarget, holders }: Wishes,
): Pick<InfoItem, 'status'> | undefined {
  const { name } = host.metadata;
  const isWanted = isTarget({ name, tags: new Set(tagsOf(host)) });
  if (isThere) {
    return { status: !isWanted && holders.has(name) ? 'removing' : 'ready' };
  }
  return isWanted ? { status: 'queued' } : undefined;
}

/** Returns the images that the hosts have. The result contains Image objects only from `namespace` and from the default namespace. */
export function listItems(
  hosts: readonly HostNode[],
  namespace: string,
  defaultNamespace: string,
): ListItem[] {
  // Most hosts have the same images. The names of equal images are parsed only once, because parsing them for each host of a large fleet
  // would block the process for seconds.
  const parsed = new Map<string, ListItem[]>();
  const items = new Map<string, ListItem>();
  for (const { status } of hosts) {
    // An Image can be a copy with the same name as its original in the default namespace. A host that has both counts only once.
    const listed = new Set<ListItem>();
    for (const image of status?.images ?? []) {
      const key = `${image.sizeBytes} ${image.names?.join(' ')}`;
      const known =
        parsed.get(key) ?? itemsOf(image, [namespace, defaultNamespace]).map((item) => shared(item, items));
      parsed.set(key, known);
      known.forEach((item) => listed.add(item));
    }
    listed.forEach((item) => {
      item.nodes += 1;
    });
  }
  return [...items].toSorted(([a], [b]) => (a < b ? -1 : 1)).map(([, item]) => item);
}

/** Returns the item of `items` that has the content and the name of `item`. If there is none, adds `item` and returns it. */
function shared(item: ListItem, items: Map<string, ListItem>): ListItem {
  const key = [item.image, item.tag, item.imageId].join(' ');
  const known = items.get(key) ?? item;
  items.set(key, known);
  return known;
}

/**
 * Returns an item for each Image object in the namespaces and for each tag among the names of `image`. If one of the names is a tag or
 * belongs to an Image object, references without a tag get no items. Such a reference can be an address in the image storage, and this
 * address would reveal the namespace and name of an Image.
 */
function itemsOf(image: CachedContent, namespaces: readonly string[]): ListItem[] {
  const names = image.names ?? [];
  const size = sizeOf(image);
  const objects = names.filter((name) => name.startsWith('berth.dev/'));
  const references = names.filter((name) => !name.startsWith('berth.dev/'));
  const tagged = references.filter((name) => !name.includes('@'));
  const shown = tagged.length > 0 || objects.length > 0 ? tagged : references.slice(0, 1);
  return [
    ...objects.flatMap((name) => {
      const object = parseObjectName(name, namespaces);
      return object === undefined ? [] : [{ image: object, imageId: digestIn([name]), size, nodes: 0 }];
    }),
    ...shown.flatMap((name) => {
      const parts = readReference(name);
      return typeof parts === 'string'
        ? []
        : [{ image: repositoryName(parts), tag: parts.tag, imageId: digestIn(names), size, nodes: 0 }];
    }),
  ];
}

function parseObjectName(name: string, namespaces: readonly string[]): string | undefined {
  const [object = ''] = name.split('@');
  const prefix = namespaces.map((one) => cachedObjectName(one, '')).find((one) => object.startsWith(one));
  return prefix === undefined ? undefined : object.slice(prefix.length);
}

function digestIn(names: readonly string[]): string | undefined {
  return names.find((name) => name.includes('@'))?.split('@')[1];
}

function sizeOf(image: CachedContent | undefined): string | undefined {
  return image?.sizeBytes === undefined ? undefined : gigabytes(image.sizeBytes);
}
