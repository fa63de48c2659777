/** What guests may not reach, whichever driver connects them: said in the agent's configuration, held by rules of the host. */
import * as z from 'zod';

/**
 * Where clouds tell a host of its identity and its secrets: link-local (AWS, Google, Azure, Oracle and most others), Azure's
 * WireServer, Alibaba's, AWS' and Google's over IPv6.
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
 * Networks of the cluster's Pods, Services and Nodes, which an agent has no right to read. Guests may not reach them, and no
 * image is fetched from there but from servers named in `images.registries`.
 */
export const clusterNetworks = networks.meta({ examples: [['10.244.0.0/16', 'fd00:10:244::/56']] });

/** Of the section `network`, for every driver. */
export const reachSettings = {
  /** Replaced as a whole by another list; by default a cloud's metadata services. */
  guestsMayNotReach: networks
    .default(METADATA_NETWORKS)
    .meta({ examples: [['192.0.2.0/24', '2001:db8::/32']] }),
};

export interface Reach {
  guestsMayNotReach: readonly string[];
  clusterCIDRs: readonly string[];
}

/** Everything that guests may not reach, as nftables takes it. */
export function forbiddenNetworks({ guestsMayNotReach, clusterCIDRs }: Reach): {
  ipv4: string[];
  ipv6: string[];
} {
  const all = [...new Set([...guestsMayNotReach, ...clusterCIDRs])];
  return { ipv4: all.filter((one) => !one.includes(':')), ipv6: all.filter((one) => one.includes(':')) };
}
