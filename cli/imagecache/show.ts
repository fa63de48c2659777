/** Shows the cache of images on the hosts of a namespace. */
import { formatSize } from '../../api/v1alpha1/quantity.ts';
import { listItems } from '../../api/http/cacheinfo.ts';
import type { CacheList } from '../../api/http/imagecache.ts';
import { DEFAULT_NAMESPACE } from '../../api/v1alpha1/names.ts';
import { type UserCluster, withCluster } from '../cluster.ts';
import { CommandError, EXIT } from '../errors.ts';
import type { Globals } from '../globals.ts';
import { directOrAsked, namespacePath } from '../httpapi.ts';
import { IMAGE_KIND } from '../image.ts';
import { readHosts } from '../node.ts';
import { findNamed, forEachName } from '../objects/named.ts';
import { type Column, print } from '../output.ts';
import type { Terminal } from '../terminal.ts';
import { printable } from '../text.ts';
import { type InfoItem, readInfo, referenceIn } from './cached.ts';

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
