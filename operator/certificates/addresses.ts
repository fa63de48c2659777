/** Which addresses a host's serving certificate may be for. What the host says of itself is not enough. Pure. */
import { BlockList, isIP } from 'node:net';
import type { Node } from '../../kube/core.ts';
import type { OperatorConfig } from '../config/config.ts';
import type { Refusal } from './content.ts';

/** The facts that the decision on an address needs, beside the request. */
export interface Surroundings {
  /** Names of the Nodes that publish an address, which is written as {@link plainAddress} does. */
  readonly nodesAt: (address: string) => readonly string[];
  /** The addresses of the API server and of its Service. */
  readonly apiServer: readonly string[];
  /** The ranges in which Services have their addresses. */
  readonly serviceCIDRs: readonly string[];
  readonly settings: Pick<OperatorConfig['hosts'], 'addressCIDRs' | 'nodeNameSuffix'>;
}

/** Addresses that mean another machine to each reader, or no machine. A CIDR that is wider than these does not allow them. */
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

/** An IP address in its one shortest form (RFC 5952 for IPv6); undefined when the text is none. */
export function plainAddress(text: string): string | undefined {
  return isIP(text) === 6
    ? URL.parse(`http://[${text}]`)?.hostname.slice(1, -1)
    : isIP(text) === 4
      ? text
      : undefined;
}

/** The addresses that a Node publishes, in their one form. */
export function addressesOf(node: Readonly<Node>): string[] {
  return (node.status?.addresses ?? [])
    .map(({ address }) => plainAddress(address))
    .filter((address) => address !== undefined);
}

/** Undefined when the host may have a serving certificate for all of these addresses. */
export function refusalOfAddresses(
  addresses: readonly string[],
  host: Readonly<Node>,
  surroundings: Surroundings,
): Refusal | undefined {
  for (const address of addresses) {
    const refusal = refusalOf(address, host, surroundings);
    if (refusal !== undefined) {
      return refusal;
    }
  }
  return undefined;
}

function refusalOf(address: string, host: Readonly<Node>, o: Surroundings): Refusal | undefined {
  const { name } = host.metadata;
  if (!addressesOf(host).includes(address)) {
    return { reason: 'ForeignAddress', message: `not an address of Node ${name}: ${address}` };
  }
  const { addressCIDRs, nodeNameSuffix } = o.settings;
  if (!isAllowed(address, addressCIDRs)) {
    return {
      reason: 'AddressNotAllowed',
      message: `no host may have the address ${address}: hosts.addressCIDRs of the operator's configuration allows ${addressCIDRs.join(', ')} (loopback, link-local and multicast addresses only where a CIDR of it lies within those)`,
    };
  }
  if (o.apiServer.includes(address) || o.serviceCIDRs.some((cidr) => contains(cidr, address))) {
    return {
      reason: 'AddressOfService',
      message: `${address} is an address of the API server or of a Service, which no host has`,
    };
  }
  const others = o
    .nodesAt(address)
    .filter((other) => other !== name && !isKubeletOf(other, name, nodeNameSuffix));
  return others.length === 0
    ? undefined
    : {
        reason: 'AddressTaken',
        message: `${address} is an address of Node ${others.join(', ')} too: a host shares it only with the kubelet's Node it is named after (NODE${nodeNameSuffix}, hosts.nodeNameSuffix of the operator's configuration)`,
      };
}

/** The DaemonSet's agent is a Node of its own on the machine of a kubelet's. */
function isKubeletOf(node: string, host: string, suffix: string): boolean {
  return suffix !== '' && host === `${node.replaceAll('.', '-')}${suffix}`;
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
