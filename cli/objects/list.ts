/** Lists objects of a namespace. */
import { DEFAULT_NAMESPACE } from '../../api/v1alpha1/names.ts';
import { undefinedIf } from '../../base/errors.ts';
import { isForbidden } from '../../kube/errors.ts';
import type { KubeObject } from '../../kube/objects.ts';
import { type Cluster, withCluster } from '../cluster.ts';
import type { Globals } from '../globals.ts';
import { print } from '../output.ts';
import type { Terminal } from '../terminal.ts';
import { type Kind, listingOf } from './kind.ts';
import { findNamed, forEachName, placeOf } from './named.ts';

/** Lists the named objects. Without names, lists all objects of the namespace. */
export async function list<T extends KubeObject>(
  terminal: Terminal,
  globals: Globals,
  kind: Kind<T>,
  names: readonly string[],
): Promise<void> {
  const { signal } = terminal;
  await withCluster(terminal, globals, async (cluster) => {
    if (names.length === 0) {
      const all = await listAll(cluster, kind, signal);
      const none = `There are no ${kind.plural}${placeOf(kind.type, cluster.namespace)}`;
      await print(terminal, globals.output, listingOf(kind, all, none));
      return;
    }
    const { done, rethrow } = await forEachName(
      names,
      async (name) => await findNamed(cluster, kind, name, signal),
    );
    if (done.length > 0) {
      await print(terminal, globals.output, listingOf(kind, done));
    }
    rethrow();
  });
}

/**
 * Returns the objects of the namespace. If the kind is shared, also returns the objects of the default namespace. If both namespaces have
 * an object with the same name, leaves out the object of the default namespace.
 */
async function listAll<T extends KubeObject>(
  { client, namespace }: Cluster,
  { type, isShared }: Kind<T>,
  signal: AbortSignal,
): Promise<readonly T[]> {
  const { items } = await client.list(type, { namespace, signal });
  if (!isShared || namespace === DEFAULT_NAMESPACE) {
    return items;
  }
  const asked = client.list(type, { namespace: DEFAULT_NAMESPACE, signal });
  // A user without rights in the default namespace gets only the objects of the chosen namespace.
  const { items: shared = [] } = (await undefinedIf(isForbidden, asked)) ?? {};
  const own = new Set(items.map(({ metadata }) => metadata.name));
  return [...items, ...shared.filter(({ metadata }) => !own.has(metadata.name))];
}
