/** Lists objects of a namespace, and then shows each change. */
import { followAll } from '../../kube/follow.ts';
import type { KubeObject } from '../../kube/objects.ts';
import { withCluster } from '../cluster.ts';
import type { Globals } from '../globals.ts';
import { lineBelow, print } from '../output.ts';
import type { Terminal } from '../terminal.ts';
import { type Kind, listingOf } from './kind.ts';
import { forEachName, getNamed, placeOf } from './named.ts';

/**
 * Writes the objects. Then writes an object again each time it changes or is deleted, until the user ends the command. In a format for
 * programs, each change is a list of one object.
 *
 * @throws CommandError or AggregateError when named objects do not exist; ApiError; the signal's reason when the signal aborts.
 */
export async function watchList<T extends KubeObject>(
  terminal: Terminal,
  globals: Globals,
  kind: Kind<T>,
  names: readonly string[],
): Promise<void> {
  const { signal } = terminal;
  const isWanted = ({ metadata }: T) => names.length === 0 || names.includes(metadata.name);
  await withCluster(terminal, globals, async (cluster) => {
    const { client, watches, namespace } = cluster;
    const { type } = kind;
    const { items, resourceVersion } = await client.list(type, { namespace, signal });
    let above = items.filter(isWanted);
    const missing = names.filter((name) => above.every(({ metadata }) => metadata.name !== name));
    // As in kubectl, a name that does not exist is a mistake. The command does not wait until somebody creates the object.
    const { rethrow } = await forEachName(
      missing,
      async (name) => await getNamed(cluster, kind, name, signal),
    );
    rethrow();
    const none = `There are no ${kind.plural}${placeOf(type, namespace)}`;
    await print(terminal, globals.output, listingOf(kind, above, none));
    const isTable = globals.output === 'table' || globals.output === 'wide';
    const following = { client, watches, type, signal };
    for await (const object of followAll<T>(following, { namespace, resourceVersion })) {
      if (!isWanted(object)) {
        continue;
      }
      if (isTable && above.length > 0) {
        terminal.out(lineBelow(listingOf(kind, above), object, globals.output === 'wide'));
      } else {
        await print(terminal, globals.output, listingOf(kind, [object]));
        above = [object];
      }
    }
  });
}
