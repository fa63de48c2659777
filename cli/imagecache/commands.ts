/** The verbs of `imagecache`: they add images to the cache of hosts, remove them, and show the images of a namespace's hosts. */
import type { Command } from 'commander';
import { BooleanFlag, parseList } from '../flags.ts';
import type { Globals } from '../globals.ts';
import type { Terminal } from '../terminal.ts';
import {
  cacheChange,
  type CachedSource,
  changedByOthers,
  entryName,
  type EntryWrite,
  entryWrite,
  isOneSelection,
} from '../../api/http/cachechange.ts';
import type { CacheInfo, CacheList, CacheResult } from '../../api/http/imagecache.ts';
import type { NodeItem } from '../../api/http/node.ts';
import { cachedObjectName, keepingEntry, referenceOf } from '../../api/v1alpha1/cachetargets.ts';
import type { ImageCacheEntry } from '../../api/v1alpha1/imagecacheentry.ts';
import { DEFAULT_NAMESPACE } from '../../api/v1alpha1/names.ts';
import { IMAGE_CACHE_ENTRIES } from '../../api/v1alpha1/resources.ts';
import { isAlreadyExists, isConflict } from '../../kube/errors.ts';
import { type UserCluster, withCluster } from '../cluster.ts';
import { CommandError, EXIT } from '../errors.ts';
import { directOrAsked, type HttpApi, namespacePath } from '../httpapi.ts';
import { IMAGE_KIND } from '../image.ts';
import { hostNotFound, meantHost, readHosts, requireTag } from '../node.ts';
import { findNamed, forEachName } from '../objects/named.ts';
import { type Column, print, printDone } from '../output.ts';
import { printable } from '../text.ts';
import { formatSize } from '../../api/v1alpha1/quantity.ts';
import { infoItems, listItems, objectInfoItems } from '../../api/http/cacheinfo.ts';
import { isImageReference, normaliseImageName, readReference } from '../../api/v1alpha1/reference.ts';
import type { Node } from '../../kube/core.ts';

/** Flags that select hosts. */
export interface Selection {
  readonly nodes?: string[];
  readonly tags?: string[];
  readonly all?: boolean;
}

/**
 * Returns the selection. Removes spaces at the start and the end of the names.
 *
 * @throws CommandError when no flag or more than one flag selects hosts, or when a tag has a wrong form.
 */
export function selectionIn(flags: Selection): Selection {
  if (!isOneSelection(flags)) {
    throw new CommandError('Choose the hosts with exactly one of --nodes, --tags and --all', EXIT.usage);
  }
  const trimmed = (names: readonly string[] = []) => names.map((name) => name.trim());
  const [nodes, tags] = [trimmed(flags.nodes), trimmed(flags.tags)];
  for (const tag of tags) {
    requireTag('value of --tags', tag);
  }
  if (nodes.length > 0) {
    return { nodes };
  }
  return tags.length > 0 ? { tags } : { all: true };
}

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

type ListItem = CacheList['items'][number];

const LIST_COLUMNS: readonly Column<ListItem>[] = [
  { header: 'IMAGE', value: ({ image }) => image },
  { header: 'TAG', value: ({ tag }) => tag },
  { header: 'SIZE', value: ({ size }) => formatSize(size) },
  { header: 'NODES', value: ({ nodes }) => nodes },
  { header: 'IMAGE-ID', value: ({ imageId }) => imageId, isWide: true },
];
const INFO_COLUMNS: readonly Column<InfoItem>[] = [
  { header: 'NODE', value: ({ node }) => node },
  { header: 'STATUS', value: ({ status }) => status },
  { header: 'SIZE', value: ({ size }) => formatSize(size) },
  { header: 'MESSAGE', value: ({ message }) => message },
];

/** Lists the named images on the hosts of the namespace. Without names, lists all images on these hosts. */
export async function list(terminal: Terminal, globals: Globals, names: readonly string[]): Promise<void> {
  const { signal } = terminal;
  await withCluster(terminal, globals, async (cluster) => {
    const { namespace } = cluster;
    const all = await readList(cluster, signal);
    const { done, rethrow } = await forEachName(names, async (name) => namedIn(all, name, namespace));
    const rows = names.length === 0 ? all : done.flat();
    if (rows.length > 0 || names.length === 0) {
      const none = `The hosts of namespace ${namespace} have no images`;
      await print(terminal, globals.output, { rows, columns: LIST_COLUMNS, itemOf: (item) => item, none });
    }
    rethrow();
  });
}

/**
 * Shows the hosts that have, fetch or remove the image.
 *
 * @throws CommandError when no host has the image, and no Image has this name; ApiError.
 */
export async function info(terminal: Terminal, globals: Globals, image: string): Promise<void> {
  const { signal } = terminal;
  const isObject = referenceIn(image) === undefined;
  await withCluster(terminal, globals, async (cluster) => {
    const rows = await readInfo(cluster, image, signal);
    if (isObject && rows.length === 0) {
      await findNamed(cluster, IMAGE_KIND, image, signal);
    }
    const none = `No host of namespace ${cluster.namespace} has ${printable(image)} or is fetching it`;
    await print(terminal, globals.output, { rows, columns: INFO_COLUMNS, itemOf: (item) => item, none });
  });
}

async function readList(cluster: UserCluster, signal: AbortSignal): Promise<ListItem[]> {
  const { namespace } = cluster;
  return await directOrAsked(
    cluster,
    signal,
    async () => listItems((await readHosts(cluster, signal)).own, namespace, DEFAULT_NAMESPACE),
    async (server) => {
      const path = namespacePath(namespace, 'cache', 'images');
      return ((await server({ method: 'GET', path })) as CacheList).items;
    },
  );
}

/** Returns those of the items that belong to the named image. @throws CommandError when no host has the image. */
function namedIn(items: readonly ListItem[], name: string, namespace: string): ListItem[] {
  const reference = referenceIn(name) ?? name;
  const named = items.filter(({ image, tag, imageId }) =>
    [tag === undefined ? image : `${image}:${tag}`, `${image}@${imageId}`].includes(reference),
  );
  if (named.length === 0) {
    const quoted = JSON.stringify(printable(name));
    throw new CommandError(`image ${quoted} not found on the hosts of namespace ${namespace}`, EXIT.notFound);
  }
  return named;
}

type Item = CacheResult['items'][number];

interface Change {
  readonly action: 'add' | 'remove';
  readonly image: string;
  readonly selection: Selection;
  /** Namespace of the Image object. Absent if the image is in a registry, or if the Image object does not exist. */
  readonly imageNamespace?: string | undefined;
}

/** Largest number of attempts to write an ImageCacheEntry. An attempt fails if somebody else writes the entry at the same time. */
const ATTEMPTS = 10;

/**
 * Requests the change of the cache. If the image or one of the named hosts does not exist, nothing changes.
 *
 * @throws CommandError or AggregateError when a name is wrong or a host refuses the image; ApiError.
 */
export async function changeCache(
  terminal: Terminal,
  globals: Globals,
  { action, image, flags }: { action: Change['action']; image: string; flags: Selection },
): Promise<void> {
  const { signal } = terminal;
  const selection = selectionIn(flags);
  const isObject = referenceIn(image) === undefined;
  await withCluster(terminal, globals, async (cluster) => {
    const imageNamespace = isObject ? await namespaceOfImage(cluster, { action, image }, signal) : undefined;
    const change = { action, image, selection, imageNamespace };
    const items = await directOrAsked(
      cluster,
      signal,
      async () => await changeDirectly(cluster, change, signal),
      async (server) => await ask(server, cluster.namespace, change),
    );
    await report(terminal, globals, { change, items, namespace: cluster.namespace });
  });
}

/**
 * Returns the namespace of the Image object. If the Image object was deleted, hosts can still have its image, and a caller can remove it
 * there. The function then returns undefined.
 *
 * @throws CommandError when the image does not exist; ApiError.
 */
async function namespaceOfImage(
  cluster: UserCluster,
  { action, image }: Pick<Change, 'action' | 'image'>,
  signal: AbortSignal,
): Promise<string | undefined> {
  try {
    return (await findNamed(cluster, IMAGE_KIND, image, signal)).metadata.namespace;
  } catch (error) {
    const isMissing = error instanceof CommandError && error.exitCode === EXIT.notFound;
    if (!isMissing || action === 'add' || (await readInfo(cluster, image, signal)).length === 0) {
      throw error;
    }
    return undefined;
  }
}

/** Changes the ImageCacheEntry of the image at the API server, by the same rules as the HTTP API. */
async function changeDirectly(
  cluster: UserCluster,
  change: Change,
  signal: AbortSignal,
): Promise<readonly Item[]> {
  for (let attempt = 1; attempt <= ATTEMPTS; attempt += 1) {
    const { hosts, own, entries } = await readCache(cluster, signal);
    const source = sourceOf(change, entries, cluster.namespace);
    const reference = referenceOf({ spec: source });
    // If the image has no entry yet, the name of its new entry is computed from the name of the image. The entry of another image might
    // already have this computed name. In this case, the change is refused, and the code finds the other entry for the error message.
    const entry =
      entryFor(entries, reference) ?? entries.find(({ metadata }) => metadata.name === entryName(reference));
    const names = new Set(hosts.map(({ metadata }) => metadata.name));
    const exists = (name: string) => names.has(name);
    const planned = cacheChange(change.action, { own, exists }, change.selection);
    // The entry can still name a host that no longer exists. The user may remove such a host from the entry, so it does not count as
    // missing.
    const gone =
      change.action === 'add' ? [] : (entry?.spec.targets?.nodes ?? []).filter((one) => !exists(one));
    requireHosts(
      planned.missing.filter((name) => !gone.includes(name)),
      own.map(({ metadata }) => metadata.name),
      cluster.namespace,
    );
    if (await write(cluster, entryWrite(entry, source, planned.change), signal)) {
      return planned.result().items;
    }
  }
  throw new CommandError(changedByOthers(change.image), EXIT.noAnswer);
}

/**
 * Returns the image whose ImageCacheEntry changes. For the removal of an Image, the result is the Image of `namespace` if that Image has an
 * entry. Otherwise the result is the Image of the default namespace.
 */
function sourceOf(
  { action, image, imageNamespace = DEFAULT_NAMESPACE }: Change,
  entries: readonly ImageCacheEntry[],
  namespace: string,
): CachedSource {
  const reference = referenceIn(image);
  if (reference !== undefined) {
    return { reference };
  }
  const isOwn = entryFor(entries, cachedObjectName(namespace, image)) !== undefined;
  const kept = isOwn ? namespace : DEFAULT_NAMESPACE;
  return { imageRef: { namespace: action === 'add' ? imageNamespace : kept, name: image } };
}

/**
 * Writes the entry. Resolves with false if somebody else wrote the entry at the same time.
 *
 * @throws CommandError when the change is refused; ApiError.
 */
async function write(
  { client }: UserCluster,
  planned: EntryWrite | undefined,
  signal: AbortSignal,
): Promise<boolean> {
  if (planned === undefined) {
    return true;
  }
  if ('refusal' in planned) {
    throw new CommandError(planned.refusal);
  }
  try {
    if ('create' in planned) {
      await client.create(IMAGE_CACHE_ENTRIES, planned.create, { signal });
    } else {
      await client.mergePatch(IMAGE_CACHE_ENTRIES, { name: planned.name }, planned.patch, { signal });
    }
    return true;
  } catch (error) {
    if (!isConflict(error) && !isAlreadyExists(error)) {
      throw error;
    }
    return false;
  }
}

/**
 * Asks the HTTP API to change the cache. Before that, this function checks the names of the selected hosts, so that one wrong name prevents
 * the change on all hosts. The HTTP API alone would change the other hosts.
 */
async function ask(
  server: HttpApi,
  namespace: string,
  { action, image, selection }: Change,
): Promise<readonly Item[]> {
  if (selection.nodes !== undefined) {
    const answer = await server({ method: 'GET', path: namespacePath(namespace, 'nodes') });
    const own = (answer as { items: NodeItem[] }).items.map(({ name }) => name);
    const missing = selection.nodes.filter((name) => !own.includes(name));
    requireHosts(missing, own, namespace);
  }
  const path = namespacePath(namespace, 'cache', 'images', image, action);
  return ((await server({ method: 'POST', path, body: selection })) as CacheResult).items;
}

/** @throws AggregateError with one CommandError for each missing host. */
function requireHosts(missing: readonly string[], own: readonly string[], namespace: string): void {
  if (missing.length > 0) {
    throw new AggregateError(missing.map((name) => hostNotFound(name, namespace, meantHost(name, own))));
  }
}

async function report(
  terminal: Terminal,
  { output }: Globals,
  { change, items, namespace }: { change: Change; items: readonly Item[]; namespace: string },
): Promise<void> {
  const { action, image, selection } = change;
  if (items.length === 0) {
    const none = noneOf(selection, namespace);
    if (action === 'add') {
      throw new CommandError(none, EXIT.notFound);
    }
    await print(terminal, output, { rows: items, columns: [], itemOf: (item) => item, none });
    return;
  }
  const done = items.filter(({ status }) => status === 'Success');
  const text = action === 'add' ? `caching of ${printable(image)} on` : `removal of ${printable(image)} from`;
  await printDone(terminal, output, done, `Requested ${text} node`);
  const failed = items.filter(({ status }) => status === 'Failure');
  if (failed.length > 0) {
    throw new AggregateError(failed.map(({ node, message }) => new CommandError(`node ${node}: ${message}`)));
  }
}

function noneOf({ tags }: Selection, namespace: string): string {
  return tags === undefined
    ? `There are no hosts in namespace ${namespace}`
    : `No host of namespace ${namespace} has all of these tags: ${tags.join(', ')}`;
}

export function addImageCacheCommands(noun: Command, terminal: Terminal): void {
  noun
    .command('list')
    .alias('ls')
    .description('List the images on the hosts of the namespace')
    .argument('[images...]', 'images to list (default: all)')
    .action(async (images: string[], _flags, command: Command) => {
      await list(terminal, command.optsWithGlobals<Globals>(), images);
    });
  noun
    .command('info')
    .description('Show which hosts have an image, are fetching it or are removing it')
    .argument('<image>', 'image of a registry, or an Image of the cluster')
    .action(async (image: string, _flags, command: Command) => {
      await info(terminal, command.optsWithGlobals<Globals>(), image);
    });
  for (const [action, description] of [
    ['add', 'Make hosts keep an image. The command does not wait for the hosts'],
    [
      'remove',
      'Remove an image from hosts as soon as no VM there needs the image. The command does not wait for the hosts',
    ],
  ] as const) {
    noun
      .command(action)
      .description(description)
      .argument('<image>', 'image of a registry, or an Image of the cluster')
      .option('--nodes <names>', 'names of hosts, with commas between them', parseList)
      .option(
        '--tags <tags>',
        'tags, with commas between them; the command selects the hosts that now have all of these tags',
        parseList,
      )
      .addOption(new BooleanFlag('--all', 'all hosts of the namespace'))
      .action(async (image: string, flags: Selection, command: Command) => {
        await changeCache(terminal, command.optsWithGlobals<Globals>(), { action, image, flags });
      });
  }
}
