/** The network section of the agent's configuration, and the driver it names. */
import { createHash } from 'node:crypto';
import { join } from 'node:path';
import type { Logger } from 'pino';
import * as z from 'zod';
import type { PortRules } from '../../api/v1alpha1/reservable.ts';
import { NatNetwork } from '../network/nat/nat.ts';
import type { Network } from '../network/network.ts';
import { forbiddenNetworks, reachSettings } from '../network/reach.ts';
import { UserGuard } from '../network/user/guard.ts';
import { UserNetwork } from '../network/user/user.ts';

const subnet = z.cidrv4();
const hostAddress = z.ipv4().optional();

/**
 * A desktop holds some hundreds. 128 guests with so many fill the 262,144 entries that the kernel has on hosts of 4 GiB and more.
 * The kernel goes through a guest's list for each new connection: about a millisecond with so many.
 */
const CONNECTIONS_PER_GUEST = 2048;

const WHICH_DRIVER =
  'an agent that runs as root needs one: nat, or user for guests you trust (without root it is user)';

/** Unknown keys are left to the agent, whose section this is part of. */
export const networkSchema = z.discriminatedUnion(
  'driver',
  [
    z.looseObject({
      driver: z.literal('user'),
      /** Where reserved ports listen; the Node's address when absent, 0.0.0.0 for all. */
      hostAddress,
      ...reachSettings,
      /** As root, without the rules that keep guests from the host's own addresses: where there is no nftables. */
      guestsMayReachHost: z.boolean().default(false),
    }),
    z.looseObject({
      driver: z.literal('nat'),
      /** Where reserved ports are reached; every address of the host but loopback when absent. */
      hostAddress,
      bridge: z.string().default('berth0'),
      table: z.string().default('berth'),
      /** The guests' addresses: a private network that the host has no other use for. */
      subnet: subnet.default('10.213.0.0/20'),
      /** Between the host and the outer end of its own probe; from the range set aside for tests of network devices (RFC 2544). */
      probeSubnet: subnet.default('198.18.213.0/24'),
      /** Upstream DNS servers; those of the host's resolv.conf when empty. */
      dnsServers: z.array(z.ipv4()).max(8).default([]),
      ...reachSettings,
      /** Tracked connections of one guest at once: the host's table of them is everybody's. */
      connectionsPerGuest: z.int().min(16).max(1_000_000).default(CONNECTIONS_PER_GUEST),
    }),
  ],
  { error: WHICH_DRIVER },
);

export type NetworkSettings = z.infer<typeof networkSchema>;

export interface NetworkSurroundings {
  /** The agent's data folder, one per agent; `nat` keeps a folder `network` in it. */
  dataDirectory: string;
  /** The Node's IPv4 address. */
  nodeAddress: string;
  /** Which ports machines may reserve. */
  ports: PortRules;
  /** Networks of the cluster, which guests may not reach. */
  clusterCIDRs: readonly string[];
  /** Users that hypervisors run as, `10-19`; undefined where the agent is not root, and machines are of its own user. */
  machineUsers: readonly string[] | undefined;
  /** The resolv.conf that hypervisors read. */
  resolvConf: string;
  logger: Logger;
}

/** @throws ReasonedError `NetworkUnavailable` for names and subnets that cannot be used; touches nothing on the host. */
export function createNetwork(settings: NetworkSettings, surroundings: NetworkSurroundings): Network {
  const { dataDirectory, nodeAddress, ports, clusterCIDRs, logger } = surroundings;
  const directory = join(dataDirectory, 'network');
  const id = createHash('sha256').update(directory).digest('hex').slice(0, 8);
  if (settings.driver === 'user') {
    const guard = userGuard(settings, surroundings, `berth-user-${id}`);
    return new UserNetwork({ hostAddress: settings.hostAddress ?? nodeAddress, ports, guard });
  }
  const { bridge, table, subnet, probeSubnet, dnsServers, connectionsPerGuest } = settings;
  const options = {
    directory,
    runtimeDirectory: `/run/berth-network-${id}`,
    bridge,
    table,
    subnet,
    probeSubnet,
    dnsServers,
    ports,
    connectionsPerGuest,
    forbidden: forbiddenNetworks({ ...settings, clusterCIDRs }).ipv4,
    ...(settings.hostAddress === undefined ? {} : { hostAddress: settings.hostAddress }),
  };
  return new NatNetwork(options, logger);
}

/** Only root can have rules about other users, and only Linux has nftables. */
function userGuard(
  settings: Extract<NetworkSettings, { driver: 'user' }>,
  { machineUsers, resolvConf, clusterCIDRs, logger }: NetworkSurroundings,
  table: string,
): UserGuard | undefined {
  if (machineUsers === undefined || process.platform !== 'linux' || settings.guestsMayReachHost) {
    logger.warn("guests reach what this host reaches, its loopback too: 'user' is for guests you trust");
    return undefined;
  }
  const forbidden = forbiddenNetworks({ ...settings, clusterCIDRs });
  return new UserGuard({ table, users: machineUsers, forbidden, resolvConf });
}
