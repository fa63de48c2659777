/** The verbs of `imagecache`: shows and changes the image cache of a namespace. */
import {
  type CacheAccess,
  type CacheChange,
  changeCache as change,
  isOneSelection,
} from '../../actions/cache.ts';
import { cacheInfo, cacheList } from '../../actions/cacheinfo.ts';
import { ActionError } from '../../actions/error.ts';
import type { CacheInfo, CacheList, CacheResult } from '../../api/http/imagecache.ts';
import type { NodeItem } from '../../api/http/node.ts';
import { cachedReference } from '../../api/v1alpha1/cachetargets.ts';
import { DEFAULT_NAMESPACE } from '../../api/v1alpha1/names.ts';
import { formatSize } from '../../api/v1alpha1/quantity.ts';
import { isImageReference, readReference } from '../../api/v1alpha1/reference.ts';
import { isNotFound } from '../../kube/errors.ts';
import { type UserCluster, withCluster } from '../cluster.ts';
import { CommandError, EXIT } from '../errors.ts';
import type { Globals } from '../globals.ts';
import { directOrAsked, namespacePath, type HttpApi } from '../httpapi.ts';
import { hostNotFound, meantHost, readHosts, requireTag } from '../node.ts';
import { IMAGE_KIND } from '../image.ts';
import { findNamed, forEachName } from '../objects/named.ts';
import { type Column, print, printDone } from '../output.ts';
import type { Terminal } from '../terminal.ts';
import type { Command } from 'commander';
import { BooleanFlag, parseList } from '../flags.ts';
import { printable } from '../text.ts';

type InfoItem = CacheInfo['items'][number];
type ListItem = CacheList['items'][number];

/** Flags that select hosts. */
interface Selection {
  readonly nodes?: string[];
  readonly tags?: string[];
  readonly all?: boolean;
}

const LIST_COLUMNS: readonly Column<ListItem>[] = [
  { header: 'IMAGE', value: ({ image }) => image },
  { header: 'TAG', value: ({ tag }) => tag },
  { header: 'SIZE', value: ({ size }) => formatSize(size) },
  { header: 'NODES', value: ({ nodes }) => nodes },
  { header: 'STATUS', value: ({ status }) => status },
  { header: 'IMAGE-ID', value: ({ imageId }) => imageId, isWide: true },
  { header: 'MESSAGE', value: ({ message }) => message },
];
const INFO_COLUMNS: readonly Column<InfoItem>[] = [
  { header: 'NODE', value: ({ node }) => node },
  { header: 'STATUS', value: ({ status }) => status },
  { header: 'SIZE', value: ({ size }) => formatSize(size) },
  { header: 'MESSAGE', value: ({ message }) => message },
];

/** Lists the named images of the cache. Without names, lists all images. */
async function list(terminal: Terminal, globals: Globals, names: readonly string[]): Promise<void> {
  const { signal } = terminal;
  await withCluster(terminal, globals, async (cluster) => {
    const { namespace } = cluster;
    const { items: all } = await directOrAsked(
      cluster,
      signal,
      async () => await cacheList(await accessTo(cluster, signal)),
      async (server) =>
        (await server({ method: 'GET', path: namespacePath(namespace, 'cache', 'images') })) as CacheList,
    );
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
 * @throws CommandError when the reference is wrong; ActionError when no Image has this name; ApiError.
 */
async function info(terminal: Terminal, globals: Globals, image: string): Promise<void> {
  const { signal } = terminal;
  requireReference(image);
  await withCluster(terminal, globals, async (cluster) => {
    const { namespace } = cluster;
    const { items: rows } = await workOn(
      cluster,
      { image, signal },
      async (access) => await cacheInfo(access, image),
      async (server) => {
        const path = namespacePath(namespace, 'cache', 'images', image);
        return (await server({ method: 'GET', path })) as CacheInfo;
      },
    );
    const none = `No host of namespace ${namespace} has ${printable(image)} or is fetching it`;
    await print(terminal, globals.output, { rows, columns: INFO_COLUMNS, itemOf: (item) => item, none });
  });
}

/**
 * Requests the change of the cache. If the image or one of the named hosts does not exist, nothing changes.
 *
 * @throws CommandError, ActionError or AggregateError when a name is wrong or a host refuses the image; ApiError.
 */
async function changeCache(
  terminal: Terminal,
  globals: Globals,
  { action, image, flags }: Pick<CacheChange, 'action' | 'image'> & { flags: Selection },
): Promise<void> {
  const { signal } = terminal;
  const selection = selectionIn(flags);
  requireReference(image);
  const wanted = { action, image, selection };
  await withCluster(terminal, globals, async (cluster) => {
    const { namespace } = cluster;
    const { items } = await workOn(
      cluster,
      { image, signal },
      async (access) => {
        const own = access.hosts.map(({ metadata }) => metadata.name);
        return await change(access, { ...wanted, onUnknown: (names) => refuseHosts(names, own, namespace) });
      },
      async (server) => await ask(server, namespace, wanted),
    );
    await report(terminal, globals, wanted, items);
  });
}

/**
 * Works on the cache of one image, as {@link directOrAsked} does. If there is no such Image, the error names a similar Image.
 *
 * @throws CommandError; errors of the work.
 */
async function workOn<Result>(
  cluster: UserCluster,
  { image, signal }: { image: string; signal: AbortSignal },
  direct: (access: CacheAccess) => Promise<Result>,
  asked: (server: HttpApi) => Promise<Result>,
): Promise<Result> {
  try {
    const work = async () => await direct(await accessTo(cluster, signal));
    return await directOrAsked(cluster, signal, work, asked);
  } catch (error) {
    if (!isImageReference(image) && isMissing(error)) {
      await findNamed(cluster, IMAGE_KIND, image, signal);
    }
    throw error;
  }
}

function isMissing(error: unknown): boolean {
  return isNotFound(error) || (error instanceof ActionError && error.kind === 'missing');
}

async function accessTo(cluster: UserCluster, signal: AbortSignal): Promise<CacheAccess> {
  const { client, namespace } = cluster;
  const { own: hosts } = await readHosts(cluster, signal);
  return { client, namespace, defaultNamespace: DEFAULT_NAMESPACE, hosts };
}

/** @throws CommandError when the text looks like a reference of an image, and is none. */
function requireReference(image: string): void {
  const parts = isImageReference(image) ? readReference(image) : undefined;
  if (typeof parts === 'string') {
    const quoted = JSON.stringify(printable(image));
    throw new CommandError(`The image ${quoted} is not an image reference: ${parts}`, EXIT.usage);
  }
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

/**
 * Asks the HTTP API to change the cache. Before that, this function checks the names of the selected hosts, so that one wrong name prevents
 * the change on all hosts. The HTTP API alone would change the other hosts.
 */
async function ask(
  server: HttpApi,
  namespace: string,
  { action, image, selection }: { action: CacheChange['action']; image: string; selection: Selection },
): Promise<CacheResult> {
  if (selection.nodes !== undefined) {
    const answer = await server({ method: 'GET', path: namespacePath(namespace, 'nodes') });
    const own = (answer as { items: NodeItem[] }).items.map(({ name }) => name);
    refuseHosts(
      selection.nodes.filter((name) => !own.includes(name)),
      own,
      namespace,
    );
  }
  const path = namespacePath(namespace, 'cache', 'images', image, action);
  return (await server({ method: 'POST', path, body: selection })) as CacheResult;
}

/** @throws AggregateError with one CommandError for each unknown host. */
function refuseHosts(unknown: readonly string[], own: readonly string[], namespace: string): void {
  if (unknown.length > 0) {
    throw new AggregateError(unknown.map((name) => hostNotFound(name, namespace, meantHost(name, own))));
  }
}

async function report(
  terminal: Terminal,
  { output }: Globals,
  { action, image }: Pick<CacheChange, 'action' | 'image'>,
  items: CacheResult['items'],
): Promise<void> {
  const done = items.filter(({ status }) => status === 'Success');
  const text = action === 'add' ? `caching of ${printable(image)} on` : `removal of ${printable(image)} from`;
  await printDone(terminal, output, done, `Requested ${text} node`);
  const failed = items.filter(({ status }) => status === 'Failure');
  if (failed.length > 0) {
    throw new AggregateError(failed.map(({ node, message }) => new CommandError(`node ${node}: ${message}`)));
  }
}

/** Returns those of the items that belong to the named image. @throws CommandError when no host has the image. */
function namedIn(items: readonly ListItem[], name: string, namespace: string): ListItem[] {
  requireReference(name);
  const reference = isImageReference(name) ? cachedReference(name) : name;
  const named = items.filter(({ image, tag, imageId }) =>
    [tag === undefined ? image : `${image}:${tag}`, `${image}@${imageId}`].includes(reference),
  );
  if (named.length === 0) {
    const quoted = JSON.stringify(printable(name));
    throw new CommandError(`image ${quoted} not found on the hosts of namespace ${namespace}`, EXIT.notFound);
  }
  return named;
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
