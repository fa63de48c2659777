/** Derives all names and addresses of a NAT network from its options. All functions are pure. */
import { createHash } from 'node:crypto';
import { join } from 'node:path';
import type { PortRules } from '../../../api/v1alpha1/ports.ts';
import { ReasonedError } from '../../../api/v1alpha1/reasons.ts';
import { addressAt, parseSubnet, type Subnet, sizeOf } from './ipv4.ts';

export interface NatOptions {
  /** Folder for the files with the attached machines and programs. It must survive a reboot. If it is missing, the network creates it. */
  directory: string;
  /**
   * Folder for dnsmasq's files. The network creates and removes the folder. The parent folders must be readable for all users, because
   * dnsmasq runs as an unprivileged user.
   */
  runtimeDirectory: string;
  /** Name of the bridge, at most 15 characters. The names of all other devices derive from this name. */
  bridge: string;
  /** Name of the nftables tables (`inet` and `bridge`). */
  table: string;
  /** Subnet of the guests, for example 10.213.0.0/20. */
  subnet: string;
  /**
   * Subnet of size /24 with addresses that only this host uses. These addresses are for the outer end of the probe, which sends test
   * packets, and for the network namespaces of programs.
   */
  probeSubnet: string;
  /** IPv4 address of the host at which reserved ports are reached; undefined means every address except loopback. */
  hostAddress?: string;
  /**
   * IPv4 networks that are blocked for guests. In addition, guests can never reach each other. On the host, they can reach only DHCP, DNS,
   * ping and their metadata.
   */
  forbidden: readonly string[];
  /** Largest number of tracked connections of one guest at the same time. */
  connectionsPerGuest: number;
  /** Uids of the Linux users of hypervisors, in the form of nftables: `7`, `10-19`. No other process may run as one of these users. */
  users: readonly string[];
  /** Rules for the ports that machines may reserve. */
  ports: PortRules;
  /** Upstream DNS servers. If the list is empty, the servers of the host's resolv.conf are used. */
  dnsServers: string[];
  /** Path of the host's resolv.conf, if it is not the /etc/resolv.conf of this process. */
  resolvConf?: string;
}

export interface NatLayout {
  bridge: string;
  bridgeMac: string;
  table: string;
  subnet: Subnet;
  gateway: string;
  hostAddress: string | undefined;
  forbidden: readonly string[];
  connectionsPerGuest: number;
  users: readonly string[];
  tapPrefix: string;
  probe: ProbeLayout;
  namespaces: NamespaceLayout;
}

/**
 * Names and addresses of the two ends between which the probe sends test packets. The inner end is connected like a guest, and the outer
 * end like a computer beyond the host.
 */
export interface ProbeLayout {
  innerPort: string;
  innerMac: string;
  innerAddress: string;
  outerPort: string;
  outerSubnet: Subnet;
  /**
   * Address of the host on the link to the outer end. Packets from the inner end must arrive at the outer end with this address as their
   * sender.
   */
  outerGateway: string;
  outerAddress: string;
}

/** Names and addresses of the network namespaces of programs, for example emulators. */
export interface NamespaceLayout {
  /**
   * Prefix of the names of the devices that connect network namespaces to this host. For each namespace there are two devices with the same
   * name: one on the host, and one in the namespace.
   */
  prefix: string;
  /** Folder with a file for each network namespace. The file has the name of the namespace's device. */
  folder: string;
  /** Address of the host on the link to each namespace. */
  gateway: string;
  /** Name of the nftables table (`inet`) for the network namespaces. */
  table: string;
}

/**
 * Address of the host on the link to each network namespace. The host can have the same address on all these links, because packets with
 * this address never leave their link. The address is outside the configured subnets. If it were inside, an earlier release of the agent,
 * which does not know these devices, would report an overlap and not start.
 */
const NAMESPACE_GATEWAY = '169.254.213.1';

/**
 * Address and TCP port at which guests reach their metadata, and the port of the gateway (`gatewayPort`) to which nftables rules redirect
 * connections to this address. Only root can listen on `gatewayPort`, and by default no machine can reserve it. So this port stays free
 * while the agent is not running.
 */
export const METADATA = { address: '169.254.169.254', port: 80, gatewayPort: 254 } as const;

/** Number of the first guest address in the subnet. Lower numbers are for the gateway and the probe. */
const FIRST_GUEST = 16;
/**
 * In the probe's subnet, the addresses from number `first` to number `end` - 1 are for network namespaces. All others are for the probe.
 */
const NAMESPACE_NUMBERS = { first: 16, end: 128 };
const INTERFACE_NAME = /^[a-zA-Z][a-zA-Z0-9-]{0,14}$/;

function hash(text: string, length: number): string {
  return createHash('sha256').update(text).digest('hex').slice(0, length);
}

/** Returns a locally administered unicast MAC address. The same text always gives the same address. */
function stableMac(text: string): string {
  const bytes = hash(text, 10).match(/../g) ?? [];
  return ['02', ...bytes].join(':');
}

/** Returns the names and addresses of a NAT network. @throws ReasonedError `NetworkUnavailable` when a name or subnet is unusable. */
export function layoutOf(options: NatOptions): NatLayout {
  for (const name of [options.bridge, options.table]) {
    if (!INTERFACE_NAME.test(name)) {
      const rule = 'use at most 15 letters, digits and dashes, and begin with a letter';
      throw new ReasonedError(
        'NetworkUnavailable',
        `"${name}" is not a valid name for a bridge or table; ${rule}`,
      );
    }
  }
  const subnet = parseSubnet(options.subnet);
  const outerSubnet = parseSubnet(options.probeSubnet);
  if (outerSubnet.prefix !== 24) {
    throw new ReasonedError(
      'NetworkUnavailable',
      `network.probeSubnet must be a /24, not ${options.probeSubnet}`,
    );
  }
  if (subnet.prefix > 26) {
    throw new ReasonedError(
      'NetworkUnavailable',
      `network.subnet must be a /26 or larger, not ${options.subnet}`,
    );
  }
  const id = hash(options.bridge, 4);
  return {
    bridge: options.bridge,
    bridgeMac: stableMac(`bridge ${options.bridge}`),
    table: options.table,
    subnet,
    gateway: addressAt(subnet, 1),
    hostAddress: options.hostAddress,
    forbidden: options.forbidden,
    connectionsPerGuest: options.connectionsPerGuest,
    users: options.users,
    tapPrefix: `bt${id}`,
    probe: {
      innerPort: `bp${id}i`,
      innerMac: stableMac(`probe ${options.bridge}`),
      innerAddress: addressAt(subnet, 2),
      outerPort: `bp${id}o`,
      outerSubnet,
      outerGateway: addressAt(outerSubnet, 1),
      outerAddress: addressAt(outerSubnet, 2),
    },
    namespaces: {
      prefix: `bn${id}`,
      folder: join(options.directory, 'namespaces'),
      gateway: NAMESPACE_GATEWAY,
      table: namespacesTable(options.table),
    },
  };
}

/** Returns the name of the nftables table for the network namespaces. `table` is the name of the other tables. */
export function namespacesTable(table: string): string {
  return `${table}-namespaces`;
}

/** Returns the device name of a machine's tap, at most 15 characters. The same uid always gives the same name. */
export function tapName(layout: NatLayout, uid: string): string {
  return layout.tapPrefix + hash(uid, 8);
}

/** Returns the name of the device of a network namespace, at most 15 characters. The same uid always gives the same name. */
export function namespaceDevice({ namespaces }: NatLayout, uid: string): string {
  return namespaces.prefix + hash(uid, 8);
}

/** Returns the path of the file of a network namespace. `device` is the name of the namespace's device. */
export function namespacePath({ namespaces }: NatLayout, device: string): string {
  return join(namespaces.folder, device);
}

/** Returns the MAC addresses of the two devices that connect a network namespace to this host. Both devices have the name `device`. */
export function namespaceMacs(device: string): { outside: string; inside: string } {
  return { outside: stableMac(`outside ${device}`), inside: stableMac(`inside ${device}`) };
}

interface AddressRange {
  subnet: Subnet;
  /** Number of the range's first address in the subnet. */
  first: number;
  /** Number of the range's last address in the subnet, plus 1. */
  end: number;
}

/**
 * Returns a free address of the range; undefined if all addresses are in use. For the same uid, the function always tries the same address
 * first.
 */
function chooseFrom(
  { subnet, first, end }: AddressRange,
  uid: string,
  taken: ReadonlySet<string>,
): string | undefined {
  const room = end - first;
  const start = Number.parseInt(hash(uid, 8), 16) % room;
  for (let step = 0; step < room; step++) {
    const address = addressAt(subnet, first + ((start + step) % room));
    if (!taken.has(address)) {
      return address;
    }
  }
  return undefined;
}

/**
 * Returns a free guest address. For the same uid, the function always tries the same address first.
 * @throws ReasonedError `NetworkUnavailable` when the subnet is full.
 */
export function chooseAddress(layout: NatLayout, uid: string, taken: ReadonlySet<string>): string {
  const { subnet } = layout;
  const end = sizeOf(subnet) - 1;
  return (
    chooseFrom({ subnet, first: FIRST_GUEST, end }, uid, taken) ??
    refuse(`The ${end - FIRST_GUEST} addresses that network.subnet has for guests are all in use`)
  );
}

/**
 * Returns a free address for a network namespace. For the same uid, the function always tries the same address first.
 * @throws ReasonedError `NetworkUnavailable` when all addresses are in use.
 */
export function chooseNamespaceAddress(layout: NatLayout, uid: string, taken: ReadonlySet<string>): string {
  const { first, end } = NAMESPACE_NUMBERS;
  return (
    chooseFrom({ subnet: layout.probe.outerSubnet, first, end }, uid, taken) ??
    refuse(`The ${end - first} addresses that network.probeSubnet has for programs are all in use`)
  );
}

function refuse(message: string): never {
  throw new ReasonedError('NetworkUnavailable', message);
}
