/** Changes the image cache of a namespace: which of its hosts keep an image. Creates and changes ImageCacheEntries of the namespace. */
import { createHash } from 'node:crypto';
import { isDeepStrictEqual } from 'node:util';
import type { HostNode } from '../api/http/host.ts';
import type { CacheResult, CacheSelection } from '../api/http/imagecache.ts';
import {
  cachedObjectName,
  type CacheTargets,
  keepingEntry,
  referenceOf,
} from '../api/v1alpha1/cachetargets.ts';
import { tagsOf } from '../api/v1alpha1/hosts.ts';
import type { ImageCacheEntry, ImageCacheEntrySpec } from '../api/v1alpha1/imagecacheentry.ts';
import { CACHE_NODES_LIMIT, isObjectName } from '../api/v1alpha1/names.ts';
import { isImageReference, normaliseImageName, readReference } from '../api/v1alpha1/reference.ts';
import { IMAGE_CACHE_ENTRIES, IMAGES } from '../api/v1alpha1/resources.ts';
import { undefinedIf } from '../base/errors.ts';
import type { KubeClient } from '../kube/client.ts';
import { isAlreadyExists, isConflict, isForbidden, isNotFound } from '../kube/errors.ts';
import { changeObject } from './change.ts';
import { ActionError } from './error.ts';

interface CacheHost {
  readonly name: string;
  readonly tags: ReadonlySet<string>;
}

/**
 * Returns the targets with these hosts added. If the targets exclude a tag of a host, this host is not added, and `excluded` contains its
 * name.
 */
export function withHosts(
  targets: CacheTargets,
  hosts: readonly CacheHost[],
): { targets: CacheTargets; excluded: ReadonlySet<string> } {
  const { isWide, isExcluded } = rulesOf(targets);
  const [nodes, excludeNodes] = [new Set(targets.nodes), new Set(targets.excludeNodes)];
  const excluded = new Set(hosts.filter(isExcluded).map(({ name }) => name));
  for (const host of hosts.filter(({ name }) => !excluded.has(name))) {
    excludeNodes.delete(host.name);
    if (!isWide(host)) {
      nodes.add(host.name);
    }
  }
  return { targets: changed(targets, nodes, excludeNodes), excluded };
}

/**
 * Returns the targets without these hosts. If the targets select such a host by a tag or select all hosts, the result excludes the host by
 * its name.
 */
export function withoutHosts(targets: CacheTargets, hosts: readonly CacheHost[]): CacheTargets {
  const { isWide, isExcluded } = rulesOf(targets);
  const [nodes, excludeNodes] = [new Set(targets.nodes), new Set(targets.excludeNodes)];
  for (const host of hosts) {
    nodes.delete(host.name);
    if (isWide(host) && !isExcluded(host)) {
      excludeNodes.add(host.name);
    }
  }
  return changed(targets, nodes, excludeNodes);
}

/**
 * Returns two functions that take a host. `isWide` reports whether the targets select the host by a tag, or select all hosts. `isExcluded`
 * reports whether the targets exclude a tag of the host.
 */
function rulesOf({ all = false, tags = [], excludeTags = [] }: CacheTargets) {
  const [wanted, unwanted] = [new Set(tags), new Set(excludeTags)];
  return {
    isWide: ({ tags: own }: CacheHost) => all || [...own].some((tag) => wanted.has(tag)),
    isExcluded: ({ tags: own }: CacheHost) => [...own].some((tag) => unwanted.has(tag)),
  };
}

/**
 * Returns the targets with the given `nodes` and `excludeNodes`. If both lists are the same as in `targets`, the result is `targets`
 * itself. The function compares only the lengths, because a change either adds names to a list or removes names from it.
 */
function changed(
  targets: CacheTargets,
  nodes: ReadonlySet<string>,
  excludeNodes: ReadonlySet<string>,
): CacheTargets {
  const isSame =
    nodes.size === (targets.nodes ?? []).length && excludeNodes.size === (targets.excludeNodes ?? []).length;
  return isSame ? targets : { ...targets, nodes: [...nodes], excludeNodes: [...excludeNodes] };
}

/**
 * Removes from the targets the names of hosts that do not exist. The function does not add these names to `excludeNodes`, for two reasons.
 * A later host with the same name can belong to another namespace, and the list of excluded hosts has a limit.
 */
export function withoutNames(targets: CacheTargets, names: ReadonlySet<string>): CacheTargets {
  const { nodes = [] } = targets;
  const kept = nodes.filter((name) => !names.has(name));
  return kept.length === nodes.length ? targets : { ...targets, nodes: kept };
}

/**
 * Removes from a list that is longer than allowed the names of hosts that do not exist. Otherwise the list keeps these names, because the
 * Node of a host can be deleted for a moment. Such a host loses its name only if a change happens in that moment.
 */
function withinLimit(targets: CacheTargets, exists: (name: string) => boolean): CacheTargets {
  const { nodes = [], excludeNodes = [] } = targets;
  const kept = (names: string[]) => (names.length > CACHE_NODES_LIMIT ? names.filter(exists) : names);
  return Math.max(nodes.length, excludeNodes.length) > CACHE_NODES_LIMIT
    ? { ...targets, nodes: kept(nodes), excludeNodes: kept(excludeNodes) }
    : targets;
}

/** Returns true if the targets can never select a host, not even a host that is added later. */
export function isEmpty({ all = false, nodes = [], tags = [] }: CacheTargets): boolean {
  return !all && nodes.length === 0 && tags.length === 0;
}

type Item = CacheResult['items'][number];

/**
 * Prefix of the name of each ImageCacheEntry that the HTTP API or the `berth` command creates. After the prefix comes a hash of the image's
 * name.
 */
const ENTRY_PREFIX = 'cached-';
const HASH_LENGTH = 32;

/** The field of an ImageCacheEntry that names its image: `reference`, or `imageRef` for an Image object. */
type CachedSource = Pick<ImageCacheEntrySpec, 'reference' | 'imageRef'>;

/** The cache of one namespace, with the rights of a user. */
export interface CacheAccess {
  readonly client: KubeClient;
  readonly namespace: string;
  /** Namespace whose Images all namespaces can use. */
  readonly defaultNamespace: string;
  /** Hosts that VMs of the namespace can run on. */
  readonly hosts: readonly HostNode[];
}

/** The change that somebody asks for. */
export interface CacheChange {
  readonly action: 'add' | 'remove';
  /** Reference of an image, or name of an Image. */
  readonly image: string;
  /** Selection for which {@link isOneSelection} is true. */
  readonly selection: CacheSelection;
  /** Called with selected names of hosts that the namespace does not have, before anything changes. @throws an error to refuse the change. */
  readonly onUnknown?: (names: readonly string[]) => void;
}

/** Returns whether exactly one of the fields `nodes`, `tags` and `all` selects hosts. */
export function isOneSelection({ nodes, tags, all }: CacheSelection): boolean {
  const given = [namesIn(nodes).length > 0, namesIn(tags).length > 0, all === true];
  return given.filter(Boolean).length === 1;
}

/**
 * Makes the selected hosts keep the image, or remove it. Resolves with one item for each selected host. The hosts do the work later.
 *
 * @throws ActionError when the image is wrong, no host is selected, or others change the entry in each attempt; errors of
 * {@link CacheChange.onUnknown}; ApiError.
 */
export async function changeCache(access: CacheAccess, change: CacheChange): Promise<CacheResult> {
  const { action } = change;
  return await changeObject(
    () => `the cache of ${change.image}`,
    async () => {
      const entries = await entriesOf(access);
      const source = await sourceOf(access, change, entries);
      const reference = referenceOf({ spec: source });
      const name = entryName(entries, reference);
      const staying = entries.filter(isStaying);
      const entry = entryFor(staying, reference) ?? staying.find(({ metadata }) => metadata.name === name);
      const selected = selectedHosts(access, change, entry);
      const before = entry?.spec.targets ?? {};
      const { targets, items } = (action === 'add' ? addition : removal)(before, selected);
      const names = new Set(access.hosts.map(({ metadata }) => metadata.name));
      const after = withinLimit(targets, (name) => names.has(name));
      return (await write(access, { entry, name, source, targets: after }))
        ? { items: items.toSorted((a, b) => (a.node < b.node ? -1 : 1)) }
        : undefined;
    },
  );
}

/** Returns the entries of the namespace. @throws ApiError when the user may not list them. */
export async function entriesOf({ client, namespace }: CacheAccess): Promise<readonly ImageCacheEntry[]> {
  return (await client.list(IMAGE_CACHE_ENTRIES, { namespace })).items;
}

/**
 * Returns the entry that keeps the image with this normalized name, or else one that is being deleted. The result is undefined if there is
 * no entry.
 */
export function entryFor(
  entries: readonly ImageCacheEntry[],
  reference: string,
): ImageCacheEntry | undefined {
  return firstOf(entries.filter((entry) => referenceOf(entry) === reference));
}

/** Returns the entry that keeps the image, of the entries for one image, or else one that is being deleted. */
export function firstOf(entries: readonly ImageCacheEntry[]): ImageCacheEntry | undefined {
  return keepingEntry(entries.filter(isStaying)) ?? entries[0];
}

/** Returns whether nobody has deleted the entry. A deleted entry stays until its hosts have removed the image. */
export function isStaying({ metadata }: ImageCacheEntry): boolean {
  return metadata.deletionTimestamp === undefined;
}

/**
 * Returns the reference if `image` is the reference of an image. The result is undefined if it is the name of an Image.
 *
 * @throws ActionError when it is neither.
 */
export function checkedReference(image: string): string | undefined {
  if (!isImageReference(image)) {
    if (!isObjectName(image)) {
      throw imageNotFound(image);
    }
    return undefined;
  }
  const parts = readReference(image);
  if (typeof parts === 'string') {
    throw new ActionError('invalid', `not an image reference: ${parts}`, { field: 'image' });
  }
  return image;
}

/** Returns the error for an Image that exists neither in the namespace nor in the default one. */
export function imageNotFound(image: string): ActionError {
  return new ActionError('missing', `images.berth.dev ${JSON.stringify(image)} not found`);
}

/**
 * Returns the image whose entry changes. An image to add must exist. An image to remove may have been deleted after hosts cached it.
 *
 * @throws ActionError when the image is wrong or missing; ApiError.
 */
async function sourceOf(
  access: CacheAccess,
  { action, image }: CacheChange,
  entries: readonly ImageCacheEntry[],
): Promise<CachedSource> {
  const reference = checkedReference(image);
  if (reference !== undefined) {
    return { reference: normaliseImageName(reference) };
  }
  const kept = [access.namespace, access.defaultNamespace].find(
    (namespace) => entryFor(entries, cachedObjectName(namespace, image)) !== undefined,
  );
  if (action === 'remove' && kept !== undefined) {
    return { imageRef: { namespace: kept, name: image } };
  }
  const found = await findImage(access, image);
  if (found === undefined) {
    throw imageNotFound(image);
  }
  return { imageRef: { namespace: found.metadata.namespace ?? '', name: image } };
}

/** Returns the Image of the namespace or, if there is none, that of the default namespace. @throws ApiError. */
export async function findImage({ client, namespace, defaultNamespace }: CacheAccess, name: string) {
  const own = await undefinedIf(isNotFound, client.get(IMAGES, { namespace, name }));
  const isHidden = (error: unknown): boolean => isNotFound(error) || isForbidden(error);
  return own ?? (await undefinedIf(isHidden, client.get(IMAGES, { namespace: defaultNamespace, name })));
}

/** The hosts that a change selects. */
interface Selected {
  readonly known: readonly CacheHost[];
  /** Names that are not of the namespace's hosts, and that the entry has. A removal removes them from the entry. */
  readonly gone: readonly string[];
  /** Other names that are not of the namespace's hosts. */
  readonly unknown: readonly string[];
}

/** @throws ActionError when the selection is empty; errors of {@link CacheChange.onUnknown}. */
function selectedHosts(
  { hosts, namespace }: CacheAccess,
  { action, selection, onUnknown }: CacheChange,
  entry: ImageCacheEntry | undefined,
): Selected {
  const named = namesIn(selection.nodes);
  const tags = namesIn(selection.tags);
  const all = hosts.map((node) => ({ name: node.metadata.name, tags: new Set(tagsOf(node)) }));
  if (named.length === 0) {
    const known = all.filter((host) => tags.every((tag) => host.tags.has(tag)));
    if (known.length === 0) {
      throw new ActionError('missing', emptySelection(namespace, tags));
    }
    return { known, gone: [], unknown: [] };
  }
  const left = new Set(named);
  const known = all.filter(({ name }) => left.delete(name));
  const kept = new Set(action === 'remove' ? entry?.spec.targets?.nodes : []);
  const unknown = [...left].filter((name) => !kept.has(name));
  if (unknown.length > 0) {
    onUnknown?.(unknown);
  }
  return { known, gone: [...left].filter((name) => kept.has(name)), unknown };
}

function emptySelection(namespace: string, tags: readonly string[]): string {
  return tags.length === 0
    ? `There are no hosts in namespace ${namespace}`
    : `No host of namespace ${namespace} has all of these tags: ${tags.join(', ')}`;
}

interface Planned {
  readonly targets: CacheTargets;
  readonly items: readonly Item[];
}

function addition(before: CacheTargets, { known, unknown }: Selected): Planned {
  const { targets, excluded } = withHosts(before, known);
  const itemOf = ({ name }: CacheHost): Item =>
    excluded.has(name)
      ? failed(name, 409, 'The host does not keep this image, because excludeTags contains a tag of the host')
      : done(name);
  return { targets, items: [...known.map(itemOf), ...unknown.map(notFound)] };
}

function removal(before: CacheTargets, { known, gone, unknown }: Selected): Planned {
  const leaving = [...known.map(({ name }) => name), ...gone];
  return {
    targets: withoutHosts(withoutNames(before, new Set(gone)), known),
    items: [...leaving.map(done), ...unknown.map(notFound)],
  };
}

interface Write {
  readonly entry: ImageCacheEntry | undefined;
  /** Name of an entry that is created. */
  readonly name: string;
  readonly source: CachedSource;
  readonly targets: CacheTargets;
}

/**
 * Stores the targets in the image's entry. An entry that Berth created is deleted when it has no targets left. Resolves with false if
 * somebody else wrote the entry at the same time.
 *
 * @throws ActionError when the entry names another image; ApiError.
 */
async function write(
  { client, namespace }: CacheAccess,
  { entry, name: created, source, targets }: Write,
): Promise<boolean> {
  if (entry === undefined) {
    if (isEmpty(targets)) {
      return true;
    }
    const object = { metadata: { name: created, namespace }, spec: { ...source, targets } };
    return await doneUnless(isAlreadyExists, client.create(IMAGE_CACHE_ENTRIES, object));
  }
  const { name, uid, resourceVersion } = entry.metadata;
  if (referenceOf(entry) !== referenceOf({ spec: source })) {
    const message = `The ImageCacheEntry ${name} names another image. Delete this entry and try again`;
    throw new ActionError('refused', message);
  }
  if (isEmpty(targets) && name.startsWith(ENTRY_PREFIX)) {
    const deleted = client.delete(IMAGE_CACHE_ENTRIES, { namespace, name }, { uid, resourceVersion });
    return await doneUnless((error) => isConflict(error) || isNotFound(error), deleted);
  }
  if (isDeepStrictEqual(entry.spec.targets ?? {}, targets)) {
    return true;
  }
  const { nodes, excludeNodes } = targets;
  const patch = { metadata: { resourceVersion }, spec: { targets: { nodes, excludeNodes } } };
  return await doneUnless(isConflict, client.mergePatch(IMAGE_CACHE_ENTRIES, { namespace, name }, patch));
}

/** Waits for the work and returns true. Returns false if the work fails with an error after which another attempt can succeed. */
async function doneUnless(mayRetry: (error: unknown) => boolean, work: Promise<unknown>): Promise<boolean> {
  try {
    await work;
    return true;
  } catch (error) {
    if (!mayRetry(error)) {
      throw error;
    }
    return false;
  }
}

/**
 * Returns the name of the entry that Berth creates for an image. `reference` is the image's normalized name. An entry that is being deleted
 * has its name until its hosts have removed the image, so the next entry for the image gets another name.
 */
function entryName(entries: readonly ImageCacheEntry[], reference: string): string {
  const leaving = entries.filter((entry) => !isStaying(entry) && referenceOf(entry) === reference);
  const uids = leaving.map(({ metadata: { uid = '' } }) => uid).toSorted();
  const hash = createHash('sha256').update([reference, ...uids].join(' '));
  return ENTRY_PREFIX + hash.digest('hex').slice(0, HASH_LENGTH);
}

function namesIn(given: string | readonly string[] = []): string[] {
  const names = typeof given === 'string' ? given.split(',') : given;
  return [...new Set(names.map((name) => name.trim()).filter((name) => name !== ''))];
}

function done(node: string): Item {
  return { node, code: 200, status: 'Success' };
}

function notFound(node: string): Item {
  return failed(node, 404, `nodes ${JSON.stringify(node)} not found`);
}

function failed(node: string, code: number, message: string): Item {
  return { node, code, status: 'Failure', message };
}
