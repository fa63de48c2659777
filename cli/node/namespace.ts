/** Gives hosts to namespaces. */
import { dedicate } from '../../actions/nodes.ts';
import { DEFAULT_NAMESPACE, isObjectName, NAMESPACE_PREFIX } from '../../api/v1alpha1/names.ts';
import { NAMESPACES } from '../../kube/core.ts';
import { isNotFound } from '../../kube/errors.ts';
import { type Cluster, withCluster } from '../cluster.ts';
import { CommandError, EXIT } from '../errors.ts';
import type { Globals } from '../globals.ts';
import { directOrAsked, namespacePath } from '../httpapi.ts';
import { isServed } from '../namespace/served.ts';
import { printDone } from '../output.ts';
import type { Terminal } from '../terminal.ts';
import { printable } from '../text.ts';
import { changingHost, findHost, requireHostName } from './hosts.ts';

interface Gift {
  readonly name: string;
  /** Namespace that gets the host. */
  readonly target: string;
}

/**
 * Gives a host of the current namespace to another namespace.
 *
 * @throws CommandError when machines run on the host, or when a name is wrong; ApiError.
 */
export async function giveHost(terminal: Terminal, globals: Globals, gift: Gift): Promise<void> {
  const { name, target } = gift;
  if (!isServed(target) || !isObjectName(target)) {
    throw new CommandError(
      `The target ${JSON.stringify(printable(target))} must be ${DEFAULT_NAMESPACE}, or a namespace whose name begins with ${NAMESPACE_PREFIX}`,
      EXIT.usage,
    );
  }
  const { signal } = terminal;
  await withCluster(terminal, globals, async (cluster) => {
    const { namespace } = cluster;
    requireHostName(name, namespace);
    await directOrAsked(
      cluster,
      signal,
      async () => await giveDirectly(cluster, gift, signal),
      async (server) => {
        const path = namespacePath(namespace, 'nodes', name, 'namespace');
        await server({ method: 'POST', path, body: { namespace: target } });
      },
    );
    const words = `Namespace ${target} now owns the node`;
    const item = { name, namespace: target };
    await printDone(terminal, globals.output, [item], words);
  });
}

async function giveDirectly(cluster: Cluster, { name, target }: Gift, signal: AbortSignal): Promise<void> {
  const { namespace } = cluster;
  await requireNamespace(cluster, target, signal);
  await findHost(cluster, name, signal);
  const dedication = { host: name, from: namespace, to: target };
  await changingHost(cluster, name, async (access) => await dedicate(access, dedication));
}

/** @throws CommandError when the namespace does not exist; ApiError. */
async function requireNamespace({ client }: Cluster, name: string, signal: AbortSignal): Promise<void> {
  try {
    await client.get(NAMESPACES, { name }, { signal });
  } catch (error) {
    throw isNotFound(error)
      ? new CommandError(`namespace ${JSON.stringify(name)} not found`, EXIT.notFound)
      : error;
  }
}
