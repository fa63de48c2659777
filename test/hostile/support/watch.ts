/** Counts the packets of guests that pass the rules of a host. Tables of the test count them behind all other rules. */
import type { NatWorld } from '../../worlds/nat.ts';

/** Priority of the test's chains, which run after every rule of the network under test. */
const LAST = 300;

/** @param probe address of the network's own probe, whose packets are no guest's. */
export function watchGuests(net: NatWorld, probe: string): void {
  const past = `iifname "berth0" ip saddr != ${probe}`;
  const tuple = 'type inet_proto . ipv4_addr . inet_service; size 65535; flags dynamic;';
  const pair = 'type inet_proto . ipv4_addr; size 65535; flags dynamic;';
  const update = (set: string): string[] => [
    `${past} meta l4proto { tcp, udp } update @${set}_ports { meta l4proto . ip daddr . th dport }`,
    `${past} meta l4proto != { tcp, udp } update @${set}_other { meta l4proto . ip daddr }`,
    'iifname "berth0" meta nfproto ipv6 counter name ipv6',
  ];
  const chain = (hook: string, set: string): string =>
    `chain ${hook} { type filter hook ${hook} priority ${LAST}; ${update(set).join('; ')}; }`;
  net.inHost(
    'nft',
    `table inet watch {
      counter ipv6 { }
      set host_ports { ${tuple} }
      set host_other { ${pair} }
      set beyond_ports { ${tuple} }
      set beyond_other { ${pair} }
      counter other_icmp { }
      ${chain('input', 'host')}
      ${chain('forward', 'beyond')}
      chain other_icmp { type filter hook input priority ${LAST}; ${past} icmp type != echo-request counter name other_icmp; }
    }
    table bridge watch {
      counter strange { }
      chain input { type filter hook input priority ${LAST}; iifname "bt*" ether type != { ip, arp } counter name strange; }
      chain forward { type filter hook forward priority ${LAST}; iifname "bt*" counter name strange; }
    }`,
  );
}

interface Listing {
  nftables: { set?: { elem?: unknown[] }; counter?: { packets: number } }[];
}

function listing(net: NatWorld, ...what: string[]): Listing['nftables'] {
  return (JSON.parse(net.inHost('nft', '--json', 'list', ...what)) as Listing).nftables;
}

/** Returns the packets that reached the host itself, or passed it: `udp 10.213.0.1 53`, `icmp 10.213.0.1`. */
export function arrived(net: NatWorld, where: 'host' | 'beyond'): string[] {
  return ['ports', 'other'].flatMap((kind) => {
    const [set] = listing(net, 'set', 'inet', 'watch', `${where}_${kind}`).flatMap((one) => one.set ?? []);
    return (set?.elem ?? []).map((element) => concatOf(element).join(' '));
  });
}

function concatOf(element: unknown): unknown[] {
  const inner = (element as { elem?: { val: unknown } }).elem?.val ?? element;
  return (inner as { concat: unknown[] }).concat;
}

/** Returns the number of frames of guests with unusual types that the host or another port of the bridge accepted. */
export function strangeFrames(net: NatWorld): number {
  const counters = [
    listing(net, 'counter', 'inet', 'watch', 'ipv6'),
    listing(net, 'counter', 'bridge', 'watch', 'strange'),
  ].flat();
  return counters.reduce((sum, { counter }) => sum + (counter?.packets ?? 0), 0);
}

/** Returns the number of ICMP packets of guests other than pings that reached the host itself. */
export function icmpBesidePings(net: NatWorld): number {
  return listing(net, 'counter', 'inet', 'watch', 'other_icmp').reduce(
    (sum, { counter }) => sum + (counter?.packets ?? 0),
    0,
  );
}

export function forgetArrived(net: NatWorld): void {
  for (const where of ['host', 'beyond']) {
    for (const kind of ['ports', 'other']) {
      net.inHost('nft', 'flush', 'set', 'inet', 'watch', `${where}_${kind}`);
    }
  }
  net.inHost('nft', 'reset', 'counters');
}
