/**
 * The nftables script for a NAT network: two tables, replaced whole in one transaction. Tracked connections keep
 * their translation meanwhile, so that replacing costs no connection.
 */
import type { Attachment } from './attachments.ts';
import { formatSubnet } from './ipv4.ts';
import type { Layout } from './layout.ts';

/** The outer end's ports that lead to the inner end; many, so that each probe is a new connection to the rules. */
export const PROBE_PORTS = { first: 20_000, last: 29_999 };
/** UDP port on which both ends of the probe listen. */
export const PROBE_PORT = 20_000;

function elements(lines: readonly string[]): string {
  return lines.length === 0 ? '' : `elements = { ${lines.join(', ')} }`;
}

function reservations(attachments: readonly Attachment[]): string[] {
  return attachments.flatMap((one) =>
    one.ports.map(
      (port) => `${port.protocol.toLowerCase()} . ${port.hostPort} : ${one.address} . ${port.guestPort}`,
    ),
  );
}

/** What a reservation listens on. Never loopback: an answer could not find its way back to 127.0.0.1. */
function reservedDestination(layout: Layout): string {
  if (layout.hostAddress !== undefined) return `ip daddr ${layout.hostAddress}`;
  return 'fib daddr type local ip daddr != 127.0.0.0/8';
}

function routed(layout: Layout, attachments: readonly Attachment[]): string {
  const { bridge, gateway, probe } = layout;
  const toReservation = `${reservedDestination(layout)} dnat ip to meta l4proto . th dport map @reservations`;
  return `table inet ${layout.table} {
  map reservations {
    type inet_proto . inet_service : ipv4_addr . inet_service
    ${elements(reservations(attachments))}
  }
  chain prerouting {
    type nat hook prerouting priority dstnat; policy accept;
    iifname "${probe.outerPort}" udp dport ${PROBE_PORTS.first}-${PROBE_PORTS.last} dnat ip to ${probe.innerAddress}:${PROBE_PORT}
    iifname != { "${bridge}", "${probe.outerPort}" } ${toReservation}
  }
  chain output {
    type nat hook output priority -100; policy accept;
    ${toReservation}
  }
  chain input {
    type filter hook input priority filter; policy accept;
    iifname "${probe.outerPort}" drop
    iifname != "${bridge}" accept
    udp dport 67 accept
    ip daddr ${gateway} meta l4proto { tcp, udp } th dport 53 accept
    ip daddr ${gateway} icmp type echo-request accept
    ct state established,related accept
    drop
  }
  chain forward {
    type filter hook forward priority filter; policy accept;
    iifname "${bridge}" jump from_guests
    oifname "${bridge}" jump to_guests
  }
  chain from_guests {
    oifname "${bridge}" drop
    ip saddr != ${formatSubnet(layout.subnet)} drop
    meta nfproto ipv6 drop
    ip daddr 169.254.0.0/16 drop
    accept
  }
  chain to_guests {
    ct state established,related accept
    ct status dnat accept
    drop
  }
  chain postrouting {
    type nat hook postrouting priority srcnat; policy accept;
    ip saddr ${formatSubnet(layout.subnet)} oifname != "${bridge}" masquerade
  }
}`;
}

interface Port {
  name: string;
  macAddress: string;
  address: string;
}

function portsOf(layout: Layout, attachments: readonly Attachment[]): Port[] {
  const { probe } = layout;
  return [
    { name: probe.innerPort, macAddress: probe.innerMac, address: probe.innerAddress },
    ...attachments.map((one) => ({ name: one.tap, macAddress: one.macAddress, address: one.address })),
  ];
}

/** Nothing leaves a port but frames with its own card's and its own machine's address, and DHCP requests. */
function bridged(layout: Layout, attachments: readonly Attachment[]): string {
  const ports = portsOf(layout, attachments);
  const cards = ports.map((port) => `"${port.name}" . ${port.macAddress}`);
  const machines = ports.map((port) => `"${port.name}" . ${port.macAddress} . ${port.address}`);
  const ours = [`"${layout.tapPrefix}*"`, `"${layout.probe.innerPort}"`];
  return `table bridge ${layout.table} {
  set cards {
    type ifname . ether_addr
    ${elements(cards)}
  }
  set machines {
    type ifname . ether_addr . ipv4_addr
    ${elements(machines)}
  }
  chain prerouting {
    type filter hook prerouting priority -300; policy accept;
    ${ours.map((port) => `iifname ${port} jump from_guest`).join('\n    ')}
  }
  chain from_guest {
    iifname . ether saddr != @cards drop
    ether type ip iifname . ether saddr . ip saddr @machines accept
    ether type ip ip saddr 0.0.0.0 ip daddr 255.255.255.255 udp sport 68 udp dport 67 accept
    ether type arp iifname . arp saddr ether . arp saddr ip @machines accept
    ether type arp iifname . arp saddr ether @cards arp saddr ip 0.0.0.0 accept
    drop
  }
  chain forward {
    type filter hook forward priority filter; policy accept;
    ${ours.flatMap((port) => [`iifname ${port} drop`, `oifname ${port} drop`]).join('\n    ')}
  }
}`;
}

/** Makes the tables anew; nothing of others is touched. */
export function rulesetScript(layout: Layout, attachments: readonly Attachment[]): string {
  return [removalScript(layout), routed(layout, attachments), bridged(layout, attachments), ''].join('\n');
}

/** Removes both tables, whether they are there or not. */
export function removalScript(layout: Layout): string {
  return ['inet', 'bridge']
    .flatMap((family) => [`add table ${family} ${layout.table}`, `delete table ${family} ${layout.table}`])
    .join('\n');
}
