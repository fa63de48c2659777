/** Plans changes of the image caches of a namespace's hosts, for the HTTP API and the `berth` command. */
import { createHash } from 'node:crypto';
import { isDeepStrictEqual } from 'node:util';
import { type CacheTargets, referenceOf } from '../v1alpha1/cachetargets.ts';
import type { ImageCacheEntry, ImageCacheEntrySpec } from '../v1alpha1/imagecacheentry.ts';
import { type CacheHost, isEmpty, withHosts, withinLimit, withoutHosts, withoutNames } from './cachehosts.ts';
import { tagsOf } from '../v1alpha1/hosts.ts';
import type { HostNode } from './host.ts';
import type { CacheResult, CacheSelection } from './imagecache.ts';

type Item = CacheResult['items'][number];
type Planned = Pick<CacheChange, 'change' | 'result'>;

/**
 * Prefix of the name of each ImageCacheEntry that the HTTP API or the `berth` command creates. After the prefix comes a hash of the image's
 * name.
 */
export const ENTRY_PREFIX = 'cached-';
const HASH_LENGTH = 32;

/** The field of an ImageCacheEntry that names its image: `reference`, or `imageRef` for an Image object. */
export type CachedSource = Pick<ImageCacheEntrySpec, 'reference' | 'imageRef'>;

export interface CacheHosts {
  /** Hosts of the namespace. */
  readonly own: readonly HostNode[];
  /** Reports whether a host exists, in any namespace. */
  readonly exists: (name: string) => boolean;
}

export interface CacheChange {
  /** Names of all hosts of the namespace. */
  readonly own: ReadonlySet<string>;
  /** Selected names that do not belong to hosts of the namespace. */
  readonly missing: readonly string[];
  /**
   * Returns the new targets of the image's entry. `before` is the entry's present targets. If somebody else changes the entry before the
   * new targets are stored, call the function again with the changed targets.
   */
  readonly change: (before: CacheTargets) => CacheTargets;
  /** Returns one item of the answer for each host. Call this function after `change`, because an item can depend on the new targets. */
  readonly result: () => CacheResult;
}

export interface NewEntry {
  readonly metadata: { readonly name: string };
  readonly spec: ImageCacheEntrySpec;
}

/**
 * A planned change of an entry: a new entry, or a patch of an existing entry. If Berth must not make the change, `refusal` is the reason.
 * The API server refuses a patch if somebody else changed the entry at the same time.
 */
export type EntryWrite =
  | { readonly create: NewEntry }
  | { readonly name: string; readonly patch: object }
  | { readonly refusal: string };

/** Returns the name of the entry that Berth creates for an image. `reference` is the image's normalized name. */
export function entryName(reference: string): string {
  return ENTRY_PREFIX + createHash('sha256').update(reference).digest('hex').slice(0, HASH_LENGTH);
}

/** Returns the error message for a change that failed at every attempt, because other clients changed the entry at the same time. */
export function changedByOthers(reference: string): string {
  return `Other clients are changing the cache of ${reference}. Try again`;
}

/**
 * Returns the request that stores the changed targets in the image's entry, or the reason why the change is refused. The result is
 * undefined if the entry already has these targets. The result is also undefined if the image has no entry and the targets select no hosts.
 */
export function entryWrite(
  entry: Readonly<ImageCacheEntry> | undefined,
  source: CachedSource,
  change: (before: CacheTargets) => CacheTargets,
): EntryWrite | undefined {
  const reference = referenceOf({ spec: source });
  const before = entry?.spec.targets ?? {};
  const targets = change(before);
  if (entry === undefined) {
    const create = { metadata: { name: entryName(reference) }, spec: { ...source, targets } };
    return isEmpty(targets) ? undefined : { create };
  }
  if (isDeepStrictEqual(before, targets)) {
    return undefined;
  }
  const { name, resourceVersion, deletionTimestamp } = entry.metadata;
  if (deletionTimestamp !== undefined) {
    return { refusal: `The ImageCacheEntry ${name} is being deleted. Try again later` };
  }
  if (referenceOf(entry) !== reference) {
    return { refusal: `The ImageCacheEntry ${name} names another image. Delete this entry and try again` };
  }
  const { nodes, excludeNodes } = targets;
  return { name, patch: { metadata: { resourceVersion }, spec: { targets: { nodes, excludeNodes } } } };
}

/** Returns whether exactly one of the fields `nodes`, `tags` and `all` selects hosts. */
export function isOneSelection({ nodes, tags, all }: CacheSelection): boolean {
  const given = [namesIn(nodes).length > 0, namesIn(tags).length > 0, all === true];
  return given.filter(Boolean).length === 1;
}

/**
 * Plans a change that makes the selected hosts keep the image, or remove it. Exactly one field of the selection must be set. Otherwise the
 * change selects no host.
 */
export function cacheChange(
  action: 'add' | 'remove',
  hosts: CacheHosts,
  selection: CacheSelection,
): CacheChange {
  const left = new Set(selectedHosts(selection, hosts.own));
  const known = hosts.own
    .filter(({ metadata }) => left.delete(metadata.name))
    .map((node) => ({ name: node.metadata.name, tags: new Set(tagsOf(node)) }));
  const own = new Set(hosts.own.map(({ metadata }) => metadata.name));
  const missing = [...left];
  const { change, result } = action === 'add' ? addition(known, missing) : removal(known, missing, hosts);
  return { own, missing, change: (before) => withinLimit(change(before), hosts.exists), result };
}

function addition(known: readonly CacheHost[], missing: readonly string[]): Planned {
  let excluded: ReadonlySet<string> = new Set();
  const itemOf = ({ name }: CacheHost): Item =>
    excluded.has(name)
      ? failed(name, 409, 'The host does not keep this image, because excludeTags contains a tag of the host')
      : done(name);
  return {
    change: (before) => {
      const after = withHosts(before, known);
      ({ excluded } = after);
      return after.targets;
    },
    result: () => sorted([...known.map(itemOf), ...missing.map(notFound)]),
  };
}

/**
 * Plans the removal of an image from the selected hosts. If no host with a selected name exists, the removal counts as done for this name,
 * because a deleted host keeps no image. For a host of another namespace, the answer contains the code 404.
 */
function removal(known: readonly CacheHost[], missing: readonly string[], { exists }: CacheHosts): Planned {
  const gone = new Set(missing.filter((name) => !exists(name)));
  const strangers = missing.filter((name) => !gone.has(name));
  const leaving = [...known.map(({ name }) => name), ...gone];
  return {
    change: (before) => withoutHosts(withoutNames(before, gone), known),
    result: () => sorted([...leaving.map(done), ...strangers.map(notFound)]),
  };
}

/** Returns the names of the selected hosts. If the request contains names that no host has, the result contains these names, too. */
function selectedHosts(selection: CacheSelection, hosts: readonly HostNode[]): readonly string[] {
  if (!isOneSelection(selection)) {
    return [];
  }
  const named = namesIn(selection.nodes);
  const tagged = namesIn(selection.tags);
  return named.length > 0
    ? named
    : hosts.filter((host) => hasAll(new Set(tagsOf(host)), tagged)).map(({ metadata }) => metadata.name);
}

function hasAll(own: ReadonlySet<string>, wanted: readonly string[]): boolean {
  return wanted.every((tag) => own.has(tag));
}

function namesIn(given: string | readonly string[] = []): string[] {
  const names = typeof given === 'string' ? given.split(',') : given;
  return [...new Set(names.map((name) => name.trim()).filter((name) => name !== ''))];
}

function sorted(items: readonly Item[]): CacheResult {
  return { items: items.toSorted((a, b) => (a.node < b.node ? -1 : 1)) };
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
