/**
 * The network section of the agent's configuration, and the driver that the section names. The section also names the networks that
 * nftables rules block for guests.
 */
import { createHash } from 'node:crypto';
import { BlockList } from 'node:net';
import { join } from 'node:path';
import type { Logger } from 'pino';
import * as z from 'zod';
import type { PortRules } from '../api/v1alpha1/ports.ts';
import { ReasonedError } from '../api/v1alpha1/reasons.ts';
import { LEASES_FILE, readLeases } from './network/leases.ts';
import type { MetadataPages } from './network/nat/metadata.ts';
import { NatNetwork } from './network/nat/nat.ts';
import type { Network } from './network/network.ts';
import { softnetBeside } from './network/softnet.ts';
import { UserGuard, UserNetwork } from './network/user.ts';
import { type KnownGuests, VmnetNetwork } from './network/vmnet.ts';

/**
 * Addresses of the metadata services of clouds, from which a host gets its identity and secrets. In this order: link-local (AWS, Google,
 * Azure, Oracle and most others), Azure's WireServer, Alibaba, link-local over IPv6, AWS over IPv6, Google over IPv6.
 */
export const METADATA_NETWORKS = [
  '169.254.0.0/16',
  '168.63.129.16/32',
  '100.100.100.200/32',
  'fe80::/10',
  'fd00:ec2::254/128',
  'fd20:ce::254/128',
];

const networks = z.array(z.union([z.cidrv4(), z.cidrv6()])).max(256);

/**
 * Networks of the cluster's Pods, Services and Nodes. A person configures these networks, because the agent has no right to read them from
 * the cluster. Guests cannot reach these networks. The agent pulls images from servers in these networks only if `images.registries` names
 * the server.
 */
export const clusterNetworks = networks.meta({ examples: [['10.244.0.0/16', 'fd00:10:244::/56']] });

/** Settings of the section `network` that apply to every driver. */
const reachSettings = {
  /** Networks that are blocked for guests. The default is the metadata services of clouds. A configured list replaces the whole default. */
  guestsMayNotReach: networks
    .default(METADATA_NETWORKS)
    .meta({ examples: [['192.0.2.0/24', '2001:db8::/32']] }),
};

const subnet = z.cidrv4();
const hostAddress = z.ipv4().optional();

/**
 * Default limit of tracked connections per guest. A desktop guest has several hundred connections. With this limit, 128 guests fill the
 * 262,144 entries of the kernel's connection table on hosts with at least 4 GiB of memory. For each new connection, the kernel searches the
 * list of the guest's connections. At this limit, the search takes about a millisecond.
 */
const CONNECTIONS_PER_GUEST = 2048;

const WHICH_DRIVER =
  'An agent that runs as root needs a network driver. Set network.driver to nat, or to user if you trust all guests';

/** Schema of the network section. The schema accepts unknown keys, because the agent's configuration adds further keys to this section. */
export const networkSchema = z.discriminatedUnion(
  'driver',
  [
    z.looseObject({
      driver: z.literal('user'),
      /** Host address on which reserved ports accept connections. The default is the Node's address; 0.0.0.0 means all addresses. */
      hostAddress,
      ...reachSettings,
      /**
       * If true, guests may reach the host's addresses. By default, an agent that runs as root blocks this traffic with nftables. Set the
       * value true on hosts without nftables.
       */
      guestsMayReachHost: z.boolean().default(false),
    }),
    z
      .looseObject({
        driver: z.literal('vmnet'),
        /** Host address on which reserved ports accept connections. The default is the Node's address; 0.0.0.0 means all addresses. */
        hostAddress,
      })
      .refine((network) => !('guestsMayNotReach' in network), {
        path: ['guestsMayNotReach'],
        message: 'The driver vmnet blocks nothing for guests. Remove this setting, or use the driver softnet',
      }),
    z.looseObject({
      driver: z.literal('softnet'),
      /** Host address on which reserved ports accept connections. The default is the Node's address; 0.0.0.0 means all addresses. */
      hostAddress,
      ...reachSettings,
      /** Private networks that guests may reach. Without this setting, guests reach public addresses and their gateway only. */
      guestsMayReach: z
        .array(
          z
            .cidrv4()
            .refine((network) => !network.endsWith('/0'), 'With this network, guests could reach each other'),
        )
        .max(256)
        .default([])
        .meta({ examples: [['192.0.2.0/24']] }),
    }),
    z.looseObject({
      driver: z.literal('nat'),
      /** Address at which reserved ports are reachable. The default is every address of the host except loopback. */
      hostAddress,
      bridge: z.string().default('berth0'),
      table: z.string().default('berth'),
      /** Addresses of the guests: a private network that the host does not use otherwise. */
      subnet: subnet.default('10.213.0.0/20'),
      /**
       * Network for test packets, with which the agent checks the traffic of guests. The host sends these packets to an endpoint that acts
       * like a computer outside the host. The addresses 16 to 127 of the network are for emulators. The default is in the range for tests
       * of network devices (RFC 2544).
       */
      probeSubnet: subnet.default('198.18.213.0/24'),
      /** Upstream DNS servers. If the list is empty, the servers in the host's resolv.conf are used. */
      dnsServers: z.array(z.ipv4()).max(8).default([]),
      ...reachSettings,
      /**
       * Largest number of tracked connections of one guest. Connections have a limit, because all guests share the host's table of
       * connections.
       */
      connectionsPerGuest: z.int().min(16).max(1_000_000).default(CONNECTIONS_PER_GUEST),
    }),
  ],
  { error: WHICH_DRIVER },
);

export type NetworkSettings = z.infer<typeof networkSchema>;

export interface NetworkSurroundings {
  /** The agent's data folder. No two agents share a data folder. The driver `nat` keeps a folder `network` in the data folder. */
  dataDirectory: string;
  /** The Node's IPv4 address. */
  nodeAddress: string;
  /** Rules for the ports that machines may reserve. */
  ports: PortRules;
  /** Networks of the cluster, which are blocked for guests. */
  clusterCIDRs: readonly string[];
  /**
   * Ranges of Linux user ids under which hypervisors run, for example `10-19`. If the agent does not run as root, the field is undefined
   * and hypervisors run under the agent's user.
   */
  machineUsers: readonly string[] | undefined;
  /** Guests of the program `tart`, and the path of this program, for the drivers `vmnet` and `softnet`. Undefined with other drivers of machines. */
  tart: { guests: KnownGuests; program: string } | undefined;
  /** Returns a page of the metadata server, which guests of the driver `nat` reach at 169.254.169.254. */
  metadata: MetadataPages;
  /** Path of the host's resolv.conf, which hypervisors read. Undefined if it is the /etc/resolv.conf of this process. */
  resolvConf: string | undefined;
  logger: Logger;
}

/**
 * Creates the network driver, but changes nothing on the host. @throws ReasonedError `NetworkUnavailable` when a subnet, or the name of the
 * bridge or table, is unusable.
 */
export function createNetwork(settings: NetworkSettings, surroundings: NetworkSurroundings): Network {
  const { dataDirectory, nodeAddress, ports, clusterCIDRs, metadata, resolvConf, logger } = surroundings;
  const { machineUsers: users = [] } = surroundings;
  if (settings.driver === 'vmnet' || settings.driver === 'softnet') {
    return createVmnet(settings, surroundings);
  }
  const { directory, runtimeDirectory, guardTable } = networkNames(dataDirectory);
  if (settings.driver === 'user') {
    const guard = userGuard(settings, surroundings, guardTable);
    return new UserNetwork({ hostAddress: settings.hostAddress ?? nodeAddress, ports, guard });
  }
  const { bridge, table, subnet, probeSubnet, dnsServers, connectionsPerGuest } = settings;
  const options = {
    directory,
    runtimeDirectory,
    bridge,
    table,
    subnet,
    probeSubnet,
    dnsServers,
    ports,
    connectionsPerGuest,
    users,
    forbidden: forbiddenNetworks({ ...settings, clusterCIDRs }).ipv4,
    ...(settings.hostAddress === undefined ? {} : { hostAddress: settings.hostAddress }),
    ...(resolvConf === undefined ? {} : { resolvConf }),
  };
  return new NatNetwork(options, metadata, logger);
}

function createVmnet(
  settings: Extract<NetworkSettings, { driver: 'vmnet' | 'softnet' }>,
  { nodeAddress, ports, clusterCIDRs, tart, logger }: NetworkSurroundings,
): Network {
  if (tart === undefined) {
    throw new ReasonedError(
      'NetworkUnavailable',
      `The network driver ${settings.driver} needs the driver tart of machines`,
    );
  }
  const leases = async () => await readLeases(LEASES_FILE, Date.now());
  const options = { hostAddress: settings.hostAddress ?? nodeAddress, ports, guests: tart.guests, leases };
  if (settings.driver === 'vmnet') {
    logger.warn('Guests can reach every address that this host reaches; run only guests you trust');
    return new VmnetNetwork(options);
  }
  // The program passes no IPv6 at all.
  const mayNotReach = forbiddenNetworks({ ...settings, clusterCIDRs }).ipv4;
  const filter = { mayReach: settings.guestsMayReach, mayNotReach };
  return new VmnetNetwork({ ...options, softnet: { filter, program: softnetBeside(tart.program) } });
}

/**
 * Returns a message for each network that guests of the driver `softnet` may reach, but that lies in a forbidden network. The program would let
 * them reach it, because the longest prefix counts.
 */
export function reachMistakes(settings: NetworkSettings, clusterCIDRs: readonly string[]): string[] {
  if (settings.driver !== 'softnet') {
    return [];
  }
  const forbidden = forbiddenNetworks({ ...settings, clusterCIDRs }).ipv4;
  return settings.guestsMayReach.flatMap((network) => {
    const around = forbidden.find((one) => isWithin(network, one));
    return around === undefined
      ? []
      : [
          `network.guestsMayReach: ${network} is in ${around}, which guests may not reach (guestsMayNotReach, clusterCIDRs)`,
        ];
  });
}

/** Returns whether a network of IPv4 is a part of another one, or the same. Both are in the form of a CIDR. */
function isWithin(inner: string, outer: string): boolean {
  const [address = '', bits] = inner.split('/');
  const [around = '', prefix] = outer.split('/');
  const list = new BlockList();
  list.addSubnet(around, Number(prefix), 'ipv4');
  return Number(bits) >= Number(prefix) && list.check(address, 'ipv4');
}

/**
 * Returns the packet filter for guests of the driver `user`. Returns undefined in three cases: guests may reach the host, the system is not
 * Linux, or the agent is not root and therefore cannot filter packets.
 */
function userGuard(
  settings: Extract<NetworkSettings, { driver: 'user' }>,
  { machineUsers, resolvConf = '/etc/resolv.conf', clusterCIDRs, logger }: NetworkSurroundings,
  table: string,
): UserGuard | undefined {
  if (machineUsers === undefined || process.platform !== 'linux' || settings.guestsMayReachHost) {
    logger.warn(
      'Guests can reach every address that this host reaches, including its loopback; run only guests you trust',
    );
    return undefined;
  }
  const forbidden = forbiddenNetworks({ ...settings, clusterCIDRs });
  return new UserGuard({ table, users: machineUsers, forbidden, resolvConf });
}

/** Number of hexadecimal digits that distinguish the networks of one host. */
const ID_LENGTH = 8;

interface NetworkNames {
  /** Folder in which the network keeps its files. */
  directory: string;
  /** Folder for the files of dnsmasq, for the driver `nat`. */
  runtimeDirectory: string;
  /** Name of the nftables table (`inet`) of the guard, for the driver `user`. */
  guardTable: string;
}

/** Returns the names for the agent with this data directory. No two agents share a data directory. */
export function networkNames(dataDirectory: string): NetworkNames {
  const directory = join(dataDirectory, 'network');
  const id = createHash('sha256').update(directory).digest('hex').slice(0, ID_LENGTH);
  return { directory, runtimeDirectory: `/run/berth-network-${id}`, guardTable: `berth-user-${id}` };
}

interface Reach {
  guestsMayNotReach: readonly string[];
  clusterCIDRs: readonly string[];
}

/** Returns all networks that are blocked for guests, separated by IP version as nftables needs them. */
export function forbiddenNetworks({ guestsMayNotReach, clusterCIDRs }: Reach): {
  ipv4: string[];
  ipv6: string[];
} {
  const all = [...new Set([...guestsMayNotReach, ...clusterCIDRs])];
  return { ipv4: all.filter((one) => !one.includes(':')), ipv6: all.filter((one) => one.includes(':')) };
}
