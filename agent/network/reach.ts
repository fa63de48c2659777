/**
 * Defines the networks that are blocked for guests. The agent's configuration names these networks, and nftables rules of the host block
 * them.
 */
import * as z from 'zod';

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
export const reachSettings = {
  /** Networks that are blocked for guests. The default is the metadata services of clouds. A configured list replaces the whole default. */
  guestsMayNotReach: networks
    .default(METADATA_NETWORKS)
    .meta({ examples: [['192.0.2.0/24', '2001:db8::/32']] }),
};

export interface Reach {
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
