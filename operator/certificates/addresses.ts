/**
 * Decides which addresses a host's serving certificate is allowed to contain. A host can report any address as its own. Therefore each
 * reported address is also compared with the configured ranges, the API server, the Services and the other Nodes.
 */
import { BlockList, isIP } from 'node:net';
import type { Logger } from 'pino';
import { canonicalAddress } from '../../base/address.ts';
import type { Reason } from '../../api/v1alpha1/reasons.ts';
import { ENDPOINT_SLICES, type Node, NODES, SERVICE_CIDRS, SERVICES } from '../../kube/core.ts';
import type { OperatorConfig } from '../config/config.ts';
import type { KubeClient } from '../../kube/client.ts';
import { unlessMissing } from '../../kube/errors.ts';
import { Informer } from '../../kube/informer.ts';

/** Reason for a denial. `reason` is for programs. `message` explains the mistake to people. */
export interface CertificateRefusal {
  readonly reason: Reason;
  readonly message: string;
}

/**
 * Returns the name of the host on the computer of a kubelet's Node. Nodes whose names differ only in dots and hyphens have the same host
 * name, and none of their agents gets a first certificate.
 */
export function hostNameOf(node: string, suffix: string): string {
  return `${node}${suffix}`.replaceAll('.', '-');
}

/** Facts that the decision about an address needs in addition to the request. */
export interface Surroundings {
  /** Returns the names of the Nodes that publish an address. The address has the form that {@link canonicalAddress} returns. */
  readonly nodesAt: (address: string) => readonly string[];
  /** Addresses of the API server and of its Service. */
  readonly apiServer: readonly string[];
  /** Address ranges of Services. */
  readonly serviceCIDRs: readonly string[];
  readonly settings: Pick<OperatorConfig['hosts'], 'addressCIDRs' | 'nodeNameSuffix'>;
}

/**
 * Ranges of addresses that do not identify one computer. For example, every computer has the same loopback address. A configured CIDR
 * allows such an address only if the whole CIDR lies within one of these ranges. For example, `0.0.0.0/0` does not allow a loopback
 * address.
 */
const SPECIAL_RANGES = [
  '0.0.0.0/8',
  '127.0.0.0/8',
  '169.254.0.0/16',
  '224.0.0.0/4',
  '240.0.0.0/4',
  '::/128',
  '::1/128',
  'fe80::/10',
  'ff00::/8',
] as const;

/**
 * Largest number of a Node's addresses that Berth reads. Computers have far fewer. The limit exists because no host gets a certificate for
 * an address of another Node, and a hostile host can publish any number of addresses.
 */
const ADDRESSES_LIMIT = 64;

/** Returns the first addresses that a Node publishes, each in the form of {@link canonicalAddress}. */
export function addressesOf(node: Readonly<Node>): string[] {
  return (node.status?.addresses ?? [])
    .slice(0, ADDRESSES_LIMIT)
    .map(({ address }) => canonicalAddress(address))
    .filter((address) => address !== undefined);
}

/**
 * Returns the reason why the host must not get a serving certificate for these addresses. The result is undefined if the host may get the
 * certificate.
 */
export function refusalOfAddresses(
  addresses: readonly string[],
  host: Readonly<Node>,
  surroundings: Surroundings,
): CertificateRefusal | undefined {
  return addresses
    .map((address) => refusalOf(address, host, surroundings))
    .find((refusal) => refusal !== undefined);
}

function refusalOf(address: string, host: Readonly<Node>, o: Surroundings): CertificateRefusal | undefined {
  const { name } = host.metadata;
  if (!addressesOf(host).includes(address)) {
    return { reason: 'ForeignAddress', message: `Node ${name} does not have the address ${address}` };
  }
  const { addressCIDRs, nodeNameSuffix } = o.settings;
  if (!isAllowed(address, addressCIDRs)) {
    return {
      reason: 'AddressNotAllowed',
      message: `The address ${address} is not allowed for hosts. The setting hosts.addressCIDRs of the operator allows ${addressCIDRs.join(', ')}. A loopback, link-local or multicast address needs a CIDR that contains only such addresses, for example 127.0.0.0/8`,
    };
  }
  if (o.apiServer.includes(address) || o.serviceCIDRs.some((cidr) => contains(cidr, address))) {
    return {
      reason: 'AddressOfService',
      message: `The address ${address} belongs to the API server or a Service`,
    };
  }
  const others = o
    .nodesAt(address)
    .filter((other) => other !== name && !isKubeletOf(other, name, nodeNameSuffix));
  return others.length === 0
    ? undefined
    : {
        reason: 'AddressTaken',
        message: `Node ${others.join(', ')} has the address ${address}, too. A host can share an address only with the kubelet on the same computer. In this case, the host must have the name of the kubelet’s Node plus the suffix "${nodeNameSuffix}" (hosts.nodeNameSuffix)`,
      };
}

/**
 * Returns true if the Nodes `node` and `host` belong to the same computer. If the DaemonSet runs an agent on a computer, this computer has
 * two Nodes. `node` is the name of the kubelet's Node, and `host` is the name of the agent's Node. The agent derives its name from the
 * kubelet's name: it replaces each dot by a hyphen and adds `suffix`.
 */
function isKubeletOf(node: string, host: string, suffix: string): boolean {
  return suffix !== '' && host === hostNameOf(node, suffix);
}

function isAllowed(address: string, cidrs: readonly string[]): boolean {
  const special = SPECIAL_RANGES.find((range) => contains(range, address));
  return cidrs.some((cidr) => contains(cidr, address) && (special === undefined || isWithin(cidr, special)));
}

function isWithin(cidr: string, range: string): boolean {
  const { base, bits } = partsOf(cidr);
  return contains(range, base) && bits >= partsOf(range).bits;
}

function contains(cidr: string, address: string): boolean {
  const { base, bits } = partsOf(cidr);
  if (isIP(base) !== isIP(address)) {
    return false;
  }
  const family = isIP(base) === 4 ? 'ipv4' : 'ipv6';
  const list = new BlockList();
  list.addSubnet(base, bits, family);
  return list.check(address, family);
}

function partsOf(cidr: string): { base: string; bits: number } {
  const [base = '', bits] = cidr.split('/');
  return { base, bits: Number(bits) };
}

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
export async function readSurroundings(o: {
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
