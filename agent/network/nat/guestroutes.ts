/** Checks whether this host sends the packets for guests to the bridge. All functions are pure. */
import { formatSubnet, isInOneNetwork } from './ipv4.ts';
import type { Layout } from './layout.ts';
import type { Links, Route } from './observe.ts';

/** Returns whether one of the routes leads to the bridge for all guests. */
export function isSubnetRouted({ bridge, subnet }: Layout, routes: readonly Route[]): boolean {
  return routes.some(({ dst, dev }) => dst === formatSubnet(subnet) && dev === bridge);
}

/**
 * Returns a message if the host sends packets for a guest's address elsewhere. The cause is a smaller network that contains the address:
 * another device has such a network, or a route leads to it, for example from a VPN. `findOverlap` in plan.ts finds networks of devices
 * only when the agent starts.
 */
export function misrouting(
  layout: Layout,
  address: string,
  { links, guestRoutes }: { links: Links; guestRoutes: readonly Route[] },
): string | undefined {
  const holds = (network: string): boolean => {
    const [host = '', length = '32'] = network.split('/');
    const prefix = Number(length);
    return prefix > layout.subnet.prefix && isInOneNetwork(host, address, prefix);
  };
  for (const [name, link] of links) {
    const network = link.addresses.find(holds);
    if (name !== layout.bridge && network !== undefined) {
      const cause = `Device ${name} has the network ${network}, so the host sends packets for ${address} there`;
      return `${cause}; remove this network, or choose another network.subnet`;
    }
  }
  const route = guestRoutes.find(({ dst, dev }) => dev !== layout.bridge && holds(dst));
  return (
    route &&
    `The route to ${route.dst} leads packets for ${address} to ${route.dev === '' ? 'no device' : `device ${route.dev}`}; remove this route, or choose another network.subnet`
  );
}
