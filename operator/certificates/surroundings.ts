/**
 * Collects the facts for a decision about addresses: the Nodes that publish these addresses, and the addresses of the API server
 * and of Services.
 */
import type { Logger } from 'pino';
import { canonicalAddress } from '../../base/address.ts';
import type { KubeClient } from '../../kube/client.ts';
import { ENDPOINT_SLICES, type Node, NODES, SERVICE_CIDRS, SERVICES } from '../../kube/core.ts';
import { unlessMissing } from '../../kube/errors.ts';
import { Informer } from '../../kube/informer.ts';
import type { OperatorConfig } from '../config/config.ts';
import { addressesOf, type Surroundings } from './addresses.ts';
import { hostNameOf } from './joining.ts';

/** Name of the API server's Service. The EndpointSlice with the API server's own addresses has the same name. */
const API_SERVER = { namespace: 'default', name: 'kubernetes' } as const;
const BY_ADDRESS = 'address';
const BY_HOST_NAME = 'host';

/**
 * Creates an informer of all Nodes, including Nodes that are not hosts. Its indexes find a Node by the addresses that the Node publishes,
 * and by the name of the host on the same computer.
 */
export function watchAddresses(
  client: KubeClient,
  logger: Logger,
  { hosts }: Pick<OperatorConfig, 'hosts'>,
): Informer<Node> {
  const indexes = {
    [BY_ADDRESS]: addressesOf,
    [BY_HOST_NAME]: ({ metadata: { name } }: Node) => [hostNameOf(name, hosts.nodeNameSuffix)],
  };
  return new Informer(client, NODES, { logger, transform: trimmed, indexes });
}

/** Returns the names of the Nodes from which an agent derives this name of a host. */
export function namesakesOf(addresses: Informer<Node>, host: string): string[] {
  return addresses.cache.byIndex(BY_HOST_NAME, host).map(({ metadata }) => metadata.name);
}

/** Reads the current facts for a decision about addresses. `addresses` is the informer that {@link watchAddresses} created. */
export async function surroundings(o: {
  readonly client: KubeClient;
  readonly addresses: Informer<Node>;
  readonly config: Pick<OperatorConfig, 'hosts'>;
}): Promise<Surroundings> {
  const [service, slice, ranges] = await Promise.all([
    unlessMissing(o.client.get(SERVICES, API_SERVER)),
    unlessMissing(o.client.get(ENDPOINT_SLICES, API_SERVER)),
    o.client.list(SERVICE_CIDRS),
  ]);
  const apiServer = [
    ...(service?.spec?.clusterIPs ?? []),
    ...(slice?.endpoints ?? []).flatMap((endpoint) => endpoint.addresses),
  ];
  return {
    nodesAt: (address) => o.addresses.cache.byIndex(BY_ADDRESS, address).map(({ metadata }) => metadata.name),
    apiServer: apiServer.map(canonicalAddress).filter((address) => address !== undefined),
    serviceCIDRs: ranges.items.flatMap(({ spec }) => spec?.cidrs ?? []),
    settings: o.config.hosts,
  };
}

/** Returns only those parts of a Node that this file reads. */
function trimmed(node: Node): Node {
  const { labels: _labels, annotations: _annotations, ...metadata } = node.metadata;
  return { ...node, metadata, spec: {}, status: { addresses: node.status?.addresses ?? [] } };
}
