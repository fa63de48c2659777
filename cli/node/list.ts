/** Lists the hosts of a namespace. */
import { nodeItem, WORKLOADS_SELECTOR } from '../../api/http/host.ts';
import type { NodeItem } from '../../api/http/node.ts';
import { ownerOfHost } from '../../api/v1alpha1/hosts.ts';
import { DEFAULT_NAMESPACE } from '../../api/v1alpha1/names.ts';
import { PODS } from '../../kube/core.ts';
import { type Cluster, withCluster } from '../cluster.ts';
import type { Globals } from '../globals.ts';
import { directOrAsked, namespacePath } from '../httpapi.ts';
import { forEachName } from '../objects/named.ts';
import { type Column, print } from '../output.ts';
import type { Terminal } from '../terminal.ts';
import { hostNotFound, readHosts } from './hosts.ts';

const COLUMNS: readonly Column<NodeItem>[] = [
  { header: 'NAME', value: ({ name }) => name },
  { header: 'STATUS', value: ({ phase }) => phase },
  { header: 'IP', value: ({ nodeIP }) => nodeIP },
  { header: 'CPU', value: ({ availableCpu, allocatableCpu }) => `${availableCpu}/${allocatableCpu}` },
  {
    header: 'MEMORY',
    value: ({ availableMemory, allocatableMemory }) => `${availableMemory}/${allocatableMemory}`,
  },
  { header: 'SLOTS', value: ({ slotsFree, slots }) => `${slotsFree}/${slots}` },
  { header: 'ARCHITECTURE', value: ({ architecture }) => architecture },
  { header: 'TAGS', value: ({ tags }) => tags.join(',') },
  { header: 'AGENT', value: ({ versions }) => versions.agent, isWide: true },
  { header: 'OS', value: ({ versions }) => versions.os, isWide: true },
];

/**
 * Lists the named hosts. Without names, lists all hosts of the namespace. In a cell like `3/8`, the first number is the free amount, and
 * the second number is the total amount.
 */
export async function list(terminal: Terminal, globals: Globals, names: readonly string[]): Promise<void> {
  const { signal } = terminal;
  await withCluster(terminal, globals, async (cluster) => {
    const { namespace } = cluster;
    const hosts = await directOrAsked(
      cluster,
      signal,
      async () => await readItems(cluster, signal),
      async (server) => {
        const answer = await server({ method: 'GET', path: namespacePath(namespace, 'nodes') });
        return (answer as { items: NodeItem[] }).items;
      },
    );
    const { done: rows, rethrow } = await forEachName(
      names.length === 0 ? hosts.map(({ name }) => name) : names,
      async (name) => {
        const host = hosts.find((one) => one.name === name);
        if (host === undefined) {
          throw hostNotFound(name, namespace);
        }
        return host;
      },
    );
    if (rows.length > 0 || names.length === 0) {
      const none = `There are no hosts in namespace ${namespace}`;
      await print(terminal, globals.output, { rows, columns: COLUMNS, itemOf: (item) => item, none });
    }
    rethrow();
  });
}

async function readItems(cluster: Cluster, signal: AbortSignal): Promise<NodeItem[]> {
  const { client } = cluster;
  const [{ own }, { items: pods }] = await Promise.all([
    readHosts(cluster, signal),
    client.list(PODS, { labelSelector: WORKLOADS_SELECTOR, signal }),
  ]);
  return own.map((host) => {
    const { name } = host.metadata;
    return nodeItem(
      host,
      pods.filter(({ spec }) => spec.nodeName === name),
      ownerOfHost(host, DEFAULT_NAMESPACE),
    );
  });
}
