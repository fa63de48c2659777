/** Shows the image cache of a namespace: which images its hosts have, fetch or remove. */
import { type CachedContent, gigabytes, type HostNode } from '../api/http/host.ts';
import type { CacheInfo, CacheList } from '../api/http/imagecache.ts';
import {
  cachedObjectName,
  cachedReference,
  contentName,
  digestsIn,
  digestsOf,
  referenceOf,
  targetTest,
} from '../api/v1alpha1/cachetargets.ts';
import { tagsOf } from '../api/v1alpha1/hosts.ts';
import type { Image } from '../api/v1alpha1/image.ts';
import type {
  ImageCacheEntry,
  ImageCacheEntryStatus,
  NodeCacheState,
} from '../api/v1alpha1/imagecacheentry.ts';
import { isSha256, readReference, repositoryName } from '../api/v1alpha1/reference.ts';
import { IMAGES } from '../api/v1alpha1/resources.ts';
import { undefinedIf } from '../base/errors.ts';
import { isForbidden } from '../kube/errors.ts';
import {
  type CacheAccess,
  checkedReference,
  entriesOf,
  entryFor,
  findImage,
  firstOf,
  imageNotFound,
  isStaying,
} from './cache.ts';

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
/** States in the order in which one of them stands for all hosts of an entry. */
const STATES = ['Failed', 'Caching', 'Queued', 'Removing', 'Outdated'];

/**
 * Returns the hosts of the namespace that have, fetch or remove the image. The name in the answer of an Image does not contain a namespace.
 * A digest alone, or a reference with a digest, means exactly this content. Its entry may name the content by another reference.
 *
 * @throws ActionError when the reference is wrong, or there is no such Image; ApiError.
 */
export async function cacheInfo(access: CacheAccess, image: string): Promise<CacheInfo> {
  const entries = await entriesOf(access);
  if (isSha256(image)) {
    return { image, items: infoItems(access.hosts, entryOf(entries, image), matcherOf(undefined, [image])) };
  }
  const reference = checkedReference(image);
  if (reference !== undefined) {
    return referenceInfo(access, entries, cachedReference(reference));
  }
  const object = await findImage(access, image);
  const namespaces = [object?.metadata.namespace, access.namespace, access.defaultNamespace];
  const entry = namespaces
    .map((namespace = '') => entryFor(entries, cachedObjectName(namespace, image)))
    .find((found) => found !== undefined);
  if (object === undefined && entry === undefined) {
    throw imageNotFound(image);
  }
  const kept = entry === undefined ? [] : digestsOf(entry);
  const digests = [...kept, ...(object === undefined ? [] : contentDigests(object))];
  return { image, items: infoItems(access.hosts, entry, matcherOf(undefined, digests)) };
}

function referenceInfo(
  { hosts }: CacheAccess,
  entries: readonly ImageCacheEntry[],
  image: string,
): CacheInfo {
  const named = entryFor(entries, image);
  const pinned = digestOf(image);
  const entry = named ?? (pinned === undefined ? undefined : entryOf(entries, pinned));
  const digests = named === undefined ? [] : digestsOf(named);
  return { image, items: infoItems(hosts, entry, matcherOf(image, digests)) };
}

/** Returns the entry that keeps the content with this digest, or else one that is being deleted. */
function entryOf(entries: readonly ImageCacheEntry[], digest: string): ImageCacheEntry | undefined {
  return firstOf(entries.filter(({ status }) => status?.digest === digest));
}

/** Returns the digest in the reference; undefined if it has none. */
function digestOf(reference: string): string | undefined {
  const parts = readReference(reference);
  return typeof parts === 'string' ? undefined : parts.digest;
}

/** Returns the digests by which hosts list the content of an Image. */
function contentDigests({ status: { digest, content } = {} }: Image): string[] {
  const pinned = content?.reference === undefined ? undefined : digestOf(content.reference);
  return [digest, pinned].filter((one) => one !== undefined);
}

/** Reports whether a name in the status of a Node is a name of the image. */
type Matcher = (name: string) => boolean;

/** Hosts list a reference only if everybody may fetch the image. They list the digests of all images. */
function matcherOf(reference: string | undefined, digests: readonly string[]): Matcher {
  // A host lists a reference in the spelling in which it was fetched, with or without the usual port of registries.
  const contents = new Set(digests.map(contentName));
  const pinned = reference === undefined ? undefined : digestOf(reference);
  if (pinned !== undefined) {
    contents.add(contentName(pinned));
  }
  if (reference !== undefined) {
    contents.add(reference).add(reference.replace('/', ':443/'));
  }
  return (name) => contents.has(name);
}

function infoItems(
  hosts: readonly HostNode[],
  entry: ImageCacheEntry | undefined,
  isNamed: Matcher,
): InfoItem[] {
  const wishes = wishesOf(entry);
  return hosts.flatMap((host) => {
    const image = host.status?.images?.find(({ names }) => names?.some(isNamed));
    const status = statusOn(host, image !== undefined, wishes);
    return status === undefined ? [] : [{ node: host.metadata.name, ...status, size: sizeOf(image) }];
  });
}

/** The content of an entry, in a form that is searched quickly. An entry can name thousands of hosts. */
interface Wishes {
  readonly isTarget: ReturnType<typeof targetTest>;
  /** State of each host that the status of the entry lists, by the name of the host. */
  readonly rows: ReadonlyMap<string, NodeCacheState>;
  readonly holders: ReadonlySet<string>;
}

function wishesOf(entry: ImageCacheEntry | undefined): Wishes {
  const { nodes = [], holders } = entry?.status ?? {};
  return {
    isTarget: targetTest(entry !== undefined && isStaying(entry) ? (entry.spec.targets ?? {}) : {}),
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
  const isHeld = holders.has(name);
  if (isWanted) {
    return { status: isThere && isHeld ? 'ready' : 'queued' };
  }
  return isThere ? { status: isHeld ? 'removing' : 'ready' } : undefined;
}

/**
 * Returns the images of the cache: those that entries of the namespace name, Images of the namespace and of the default one that its hosts
 * have, and images on its hosts that everybody may fetch.
 *
 * @throws ApiError when the user may not list ImageCacheEntries or Images of the namespace.
 */
export async function cacheList(access: CacheAccess): Promise<CacheList> {
  const [entries, images] = await Promise.all([entriesOf(access), imagesOf(access)]);
  const contents = contentsOf(access.hosts);
  const byImage = Map.groupBy(entries, referenceOf);
  const kept = [...byImage.values()].map(firstOf).filter((entry) => entry !== undefined);
  const own = kept.map((entry) => ({ ...nameOf(entry, access, images), ...entryItem(entry, contents) }));
  const objects = images.flatMap((image) => imageItem(image, contents));
  const items = new Map<string, ListItem>();
  // An entry tells most about an image, so its item replaces the others.
  for (const item of [...publicItems(access.hosts), ...objects, ...own]) {
    items.set(keyOfItem(item), item);
  }
  return { items: [...items].toSorted(([a], [b]) => (a < b ? -1 : 1)).map(([, item]) => item) };
}

async function imagesOf({ client, namespace, defaultNamespace }: CacheAccess): Promise<readonly Image[]> {
  const { items: own } = await client.list(IMAGES, { namespace });
  if (namespace === defaultNamespace) {
    return own;
  }
  const names = new Set(own.map(({ metadata }) => metadata.name));
  // A user without rights in the default namespace gets only the Images of the own namespace.
  const shared = await undefinedIf(isForbidden, client.list(IMAGES, { namespace: defaultNamespace }));
  return [...own, ...(shared?.items ?? []).filter(({ metadata }) => !names.has(metadata.name))];
}

/** Content on the hosts. */
interface Content {
  readonly size: string | undefined;
  nodes: number;
}

/**
 * Returns the contents on the hosts by their digests. A host can list a digest twice, as a disk alone and as a disk with memory. It counts
 * once, and the size is that of the record which the host lists first.
 */
function contentsOf(hosts: readonly HostNode[]): ReadonlyMap<string, Content> {
  const found = new Map<string, Content>();
  for (const { status } of hosts) {
    const counted = new Set<string>();
    for (const image of status?.images ?? []) {
      for (const digest of digestsIn(image.names ?? [])) {
        const known = found.get(digest) ?? { size: sizeOf(image), nodes: 0 };
        known.nodes += counted.has(digest) ? 0 : 1;
        counted.add(digest);
        found.set(digest, known);
      }
    }
  }
  return found;
}

/** Name of an image in a list. */
type ImageName = Pick<ListItem, 'image' | 'tag'>;

/**
 * Returns the name of the entry's image. The name of an Image has its namespace if a user of this namespace would get another Image by the
 * bare name.
 */
function nameOf({ spec }: ImageCacheEntry, access: CacheAccess, images: readonly Image[]): ImageName {
  const { imageRef, reference = '' } = spec;
  if (imageRef === undefined) {
    return nameIn(cachedReference(reference));
  }
  const { namespace, name } = imageRef;
  const found = images.find(({ metadata }) => metadata.name === name)?.metadata.namespace;
  const meant = found ?? (namespace === access.namespace ? namespace : access.defaultNamespace);
  return { image: meant === namespace ? name : `${namespace}/${name}` };
}

/** Returns the name of the image with this reference. The digest of a reference belongs to the name. */
function nameIn(reference: string): ImageName {
  const parts = readReference(reference);
  return typeof parts === 'string' || parts.digest !== undefined
    ? { image: reference }
    : { image: repositoryName(parts), tag: parts.tag };
}

function entryItem({ status = {} }: ImageCacheEntry, contents: ReadonlyMap<string, Content>) {
  const { digest = '', cached = 0 } = status;
  const known = { imageId: status.digest, size: contents.get(digest)?.size, nodes: cached };
  return { ...known, ...summaryOf(status) };
}

/** Returns the status of an image on all hosts of its entry. The host in the worst state decides. */
function summaryOf({
  cached,
  nodes,
  conditions,
}: ImageCacheEntryStatus): Pick<ListItem, 'status' | 'message'> {
  const [row] = STATES.flatMap((state) => nodes?.find((one) => one.state === state) ?? []);
  const status = STATUS_BY_STATE[row?.state ?? ''];
  return status === undefined ? atRest(cached, conditions) : { status, message: row?.message };
}

/** Returns the status of an image on which no host works. */
function atRest(
  cached = 0,
  conditions: ImageCacheEntryStatus['conditions'] = [],
): Pick<ListItem, 'status' | 'message'> {
  const ready = conditions.find(({ type }) => type === 'Ready');
  const status = cached > 0 || ready?.status === 'True' ? 'ready' : 'queued';
  return ready?.status === 'False' ? { status, message: ready.message } : { status };
}

/** Returns the item of an Image. The result is empty if no host has its content. */
function imageItem(image: Image, contents: ReadonlyMap<string, Content>): ListItem[] {
  const digests = contentDigests(image).toReversed();
  const found = digests.map((digest) => contents.get(digest)).find((content) => content !== undefined);
  return found === undefined
    ? []
    : [{ image: image.metadata.name, imageId: image.status?.digest, ...found, status: 'ready' }];
}

/** Returns an item for each reference that hosts list, because everybody may fetch the image. */
function publicItems(hosts: readonly HostNode[]): ListItem[] {
  // Most hosts have the same images. The names of equal images are parsed only once, because parsing them for each host of a large fleet
  // would block the process for seconds.
  const parsed = new Map<string, ListItem[]>();
  for (const { status } of hosts) {
    countHost(status?.images ?? [], parsed);
  }
  const found = new Map<string, ListItem>();
  for (const item of [...parsed.values()].flat()) {
    const key = keyOfItem(item);
    const known = found.get(key) ?? { ...item, nodes: 0 };
    // Hosts can have several versions of a tag. The one that most of them have stands for all.
    const shown = known.nodes > item.nodes ? known : item;
    found.set(key, { ...shown, nodes: known.nodes + item.nodes });
  }
  return [...found.values()];
}

/** Counts a host once for each name of its images. `parsed` has the items of the images by their sizes and names. */
function countHost(images: readonly CachedContent[], parsed: Map<string, ListItem[]>): void {
  const counted = new Set<string>();
  for (const image of images) {
    const key = `${image.sizeBytes} ${image.names?.join(' ')}`;
    const items = parsed.get(key) ?? itemsOf(image);
    parsed.set(key, items);
    for (const item of items) {
      const name = keyOfItem(item);
      item.nodes += counted.has(name) ? 0 : 1;
      counted.add(name);
    }
  }
}

/** Returns a key that is the same for items of the same image name. */
function keyOfItem({ image, tag }: ImageName): string {
  return [image, tag].join(' ');
}

function itemsOf(image: CachedContent): ListItem[] {
  const names = image.names ?? [];
  const references = names.filter((name) => digestsIn([name]).length === 0);
  const tagged = references.filter((name) => !name.includes('@'));
  const shown = tagged.length > 0 ? tagged : references.slice(0, 1);
  const [imageId] = digestsIn(names);
  const content = { imageId, size: sizeOf(image), nodes: 0, status: 'ready' } as const;
  return shown.map((name) => ({ ...nameIn(name), ...content }));
}

function sizeOf(image: CachedContent | undefined): string | undefined {
  return image?.sizeBytes === undefined ? undefined : gigabytes(image.sizeBytes);
}
