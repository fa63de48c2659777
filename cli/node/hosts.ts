/** Reads and changes the hosts of a namespace. */
import type { HostAccess } from '../../actions/nodes.ts';
import { HOSTS_SELECTOR } from '../../api/http/host.ts';
import { hostsOf, ownerOfHost } from '../../api/v1alpha1/hosts.ts';
import { DEFAULT_NAMESPACE, HOST_MARK, HOST_VALUE, isObjectName } from '../../api/v1alpha1/names.ts';
import { undefinedIf } from '../../base/errors.ts';
import { NAMESPACES, type Node, NODES } from '../../kube/core.ts';
import { ApiError, isNotFound } from '../../kube/errors.ts';
import type { Cluster } from '../cluster.ts';
import { CommandError, EXIT } from '../errors.ts';
import { similarTo } from '../../base/similar.ts';
import { printable } from '../text.ts';

/** Returns the Nodes of all hosts. @throws ApiError when the user may not read Nodes. */
async function allHosts({ client }: Cluster, signal: AbortSignal): Promise<readonly Node[]> {
  return (await client.list(NODES, { labelSelector: HOSTS_SELECTOR, signal })).items;
}

/** Hosts of the cluster. */
interface KnownHosts {
  readonly all: readonly Node[];
  /** Hosts that VMs of the namespace of the command can run on, in the order of their names. */
  readonly own: readonly Node[];
}

/** Returns the hosts of all namespaces and those of the command's namespace. @throws ApiError when the user may not read Nodes. */
export async function readHosts(cluster: Cluster, signal: AbortSignal): Promise<KnownHosts> {
  const { client, namespace: name } = cluster;
  const [all, namespace] = await Promise.all([
    allHosts(cluster, signal),
    client.get(NAMESPACES, { name }, { signal }),
  ]);
  return { all, own: hostsOf(namespace, all) };
}

/**
 * Returns the error for a missing host. `meant` is a sentence at the end of the message, for example about the host that the user might
 * have meant.
 */
export function hostNotFound(name: string, namespace: string, meant = ''): CommandError {
  return new CommandError(
    `node ${JSON.stringify(printable(name))} not found in namespace ${namespace}${meant}`,
    EXIT.notFound,
  );
}

/** Returns the end of an error message: a question that suggests the most similar name. The result is empty if no name is similar. */
export function meantHost(mistyped: string, names: readonly string[]): string {
  const similar = similarTo(mistyped, names);
  return similar === undefined ? '' : `. Did you mean ${similar}?`;
}

/** Refuses names that no Node can have. Such a name could change the path of a request. @throws CommandError. */
export function requireHostName(name: string, namespace: string): void {
  if (!isObjectName(name)) {
    throw hostNotFound(name, namespace);
  }
}

/** Returns the host. @throws CommandError when it does not exist or belongs to another namespace; ApiError. */
export async function findHost(cluster: Cluster, name: string, signal: AbortSignal): Promise<Node> {
  const { client, namespace } = cluster;
  const asked = client.get(NODES, { name }, { signal });
  return requiredHost(await foundIn(cluster, name, asked), namespace);
}

/** Changes a host of the namespace. @throws CommandError when the host does not exist or belongs to another namespace; errors of `change`. */
export async function changingHost(
  cluster: Cluster,
  name: string,
  change: (access: HostAccess) => Promise<void>,
): Promise<void> {
  const { client } = cluster;
  const access = { client, defaultNamespace: DEFAULT_NAMESPACE, requireHost: requiredHost };
  await foundIn(cluster, name, change(access));
}

/** Resolves with the result of the work on a host. @throws CommandError when the host does not exist; other errors of `work`. */
async function foundIn<T>(cluster: Cluster, name: string, work: Promise<T>): Promise<T> {
  try {
    return await work;
  } catch (error) {
    throw isNotFound(error) ? hostNotFound(name, cluster.namespace, await suggestion(cluster, name)) : error;
  }
}

/**
 * Returns the Node if it is a host of the namespace.
 *
 * @throws CommandError when it is not a host, or when it belongs to another namespace.
 */
function requiredHost(node: Node, namespace: string): Node {
  const { name, labels } = node.metadata;
  if (labels?.[HOST_MARK] !== HOST_VALUE) {
    throw hostNotFound(name, namespace, '. The Node is not a host of Berth');
  }
  const owner = ownerOfHost(node, DEFAULT_NAMESPACE);
  if (owner !== namespace) {
    throw hostNotFound(name, namespace, `. It belongs to namespace ${owner}: use --namespace ${owner}`);
  }
  return node;
}

async function suggestion({ client, namespace }: Cluster, name: string): Promise<string> {
  const pages = client.pages(NODES, { labelSelector: HOSTS_SELECTOR });
  const page = await undefinedIf((error) => error instanceof ApiError, pages.next());
  const hosts = page?.done === false ? page.value.items : [];
  const own = hosts.filter((host) => ownerOfHost(host, DEFAULT_NAMESPACE) === namespace);
  return meantHost(
    name,
    own.map(({ metadata }) => metadata.name),
  );
}
