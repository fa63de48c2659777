/** The network section of the agent's configuration, and the driver it names. */
import { createHash } from 'node:crypto';
import { join } from 'node:path';
import type { Logger } from 'pino';
import { z } from 'zod';
import type { PortRules } from '../../api/v1alpha1/reservable.ts';
import { NatNetwork } from './nat/nat.ts';
import type { Network } from './network.ts';
import { UserNetwork } from './user/user.ts';

const subnet = z.cidrv4();
const hostAddress = z.ipv4().optional();

/** Unknown keys are left to the agent, whose section this is part of. */
export const networkSchema = z.discriminatedUnion('driver', [
  z.looseObject({
    driver: z.literal('user'),
    /** Where reserved ports listen; the Node's address when absent, 0.0.0.0 for all. */
    hostAddress,
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
  }),
]);

export type NetworkSettings = z.infer<typeof networkSchema>;

export interface NetworkSurroundings {
  /** The agent's data folder, one per agent; `nat` keeps a folder `network` in it. */
  dataDirectory: string;
  /** The Node's IPv4 address. */
  nodeAddress: string;
  /** Which ports machines may reserve. */
  ports: PortRules;
  logger: Logger;
}

/** Throws NetworkSetupError for names and subnets that cannot be used; touches nothing on the host. */
export function createNetwork(settings: NetworkSettings, surroundings: NetworkSurroundings): Network {
  if (settings.driver === 'user') {
    const hostAddress = settings.hostAddress ?? surroundings.nodeAddress;
    return new UserNetwork({ hostAddress, ports: surroundings.ports });
  }
  const { bridge, table, subnet, probeSubnet, dnsServers } = settings;
  const directory = join(surroundings.dataDirectory, 'network');
  const reached = settings.hostAddress === undefined ? {} : { hostAddress: settings.hostAddress };
  const id = createHash('sha256').update(directory).digest('hex').slice(0, 8);
  const runtimeDirectory = `/run/berth-network-${id}`;
  const { ports } = surroundings;
  const options = {
    ports,
    directory,
    runtimeDirectory,
    bridge,
    table,
    subnet,
    probeSubnet,
    dnsServers,
    ...reached,
  };
  return new NatNetwork(options, surroundings.logger);
}
