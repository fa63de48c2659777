/** Attempts of a guest to reach its neighbours, its host and other addresses over IPv6. Receivers would answer or believe each packet. */
import { ETHERTYPE, ethernet, ipv6Packet, linkLocal, macBytes, PROTOCOL } from './frames.ts';

const ALL_NODES = ipv6Address('ff02::1');
const ALL_ROUTERS = ipv6Address('ff02::2');
const DHCP_SERVERS = ipv6Address('ff02::1:2');
const DHCP_PORT = 547;
/** Offset of the checksum in the body, by protocol. */
const CHECKSUM_AT = { [PROTOCOL.icmpv6]: 2, [PROTOCOL.udp]: 6, [PROTOCOL.tcp]: 16 };
const MULTICAST = 0xff;
const OWN_PORT = 5000;

export interface IPv6Targets {
  /** MAC address of the guest. */
  own: string;
  /** MAC address of the gateway, which leads to the host and to other networks. */
  gateway: string;
  /** MAC addresses of other guests on the link. */
  neighbours: readonly string[];
  /** Addresses of servers that answer datagrams and connections at `port`. */
  hosts: readonly string[];
  port: number;
}

/** Returns frames with their descriptions. Each packet is sent to its multicast group, if it has one, and to every other card. */
export function ipv6Attempts({ own, gateway, neighbours, hosts, port }: IPv6Targets): [string, Buffer][] {
  const from = linkLocal(own);
  const cards = [gateway, ...neighbours];
  const sourceCard = [1, 1, ...macBytes(own)];
  const targetCard = [2, 1, ...macBytes(own)];
  const attempt = (what: string, to: Buffer, next: number, body: number[]): [string, Buffer][] => {
    const packet = ipv6Packet({ from, to, next }, Buffer.from(body), CHECKSUM_AT[next] ?? 0);
    const groups = to[0] === MULTICAST ? [`33:33:${groupCard(to)}`] : [];
    return [...groups, ...cards].map((card) => [
      what,
      ethernet({ to: card, from: own, type: ETHERTYPE.ipv6 }, packet),
    ]);
  };
  const icmp = (what: string, to: Buffer, ...body: number[]): [string, Buffer][] =>
    attempt(what, to, PROTOCOL.icmpv6, body);
  const every = [...cards.map(linkLocal), ...hosts.map(ipv6Address)];
  return [
    ...icmp(
      'a router advertisement',
      ALL_NODES,
      134,
      0,
      0,
      0,
      64,
      0,
      7,
      8,
      ...Array(8).fill(0),
      ...sourceCard,
    ),
    ...icmp('a router solicitation', ALL_ROUTERS, 133, 0, 0, 0, 0, 0, 0, 0, ...sourceCard),
    ...icmp('a ping of all', ALL_NODES, 128, 0, 0, 0, 0, 1, 0, 1),
    ...attempt('a DHCPv6 message', DHCP_SERVERS, PROTOCOL.udp, datagram(DHCP_PORT, 'solicit')),
    ...every.flatMap((to) => [
      ...icmp('a neighbour solicitation', solicitedNode(to), 135, 0, 0, 0, 0, 0, 0, 0, ...to, ...sourceCard),
      ...icmp('a neighbour advertisement', ALL_NODES, 136, 0, 0, 0, 0x20, 0, 0, 0, ...to, ...targetCard),
      ...icmp('a ping', to, 128, 0, 0, 0, 0, 1, 0, 1),
      ...attempt('a datagram', to, PROTOCOL.udp, datagram(port, 'over IPv6')),
      ...attempt('a TCP connection', to, PROTOCOL.tcp, tcpSyn(port)),
    ]),
  ];
}

/** Returns the bytes of an address that is given as text. */
function ipv6Address(text: string): Buffer {
  const [before = [], after = []] = text.split('::').map((part) => part.split(':').filter(Boolean));
  const zeros = Array<string>(8 - before.length - after.length).fill('0');
  return Buffer.from([...before, ...zeros, ...after].map((group) => group.padStart(4, '0')).join(''), 'hex');
}

/** Returns the solicited-node multicast group of an address (RFC 4291). Neighbours ask this group for the MAC address. */
function solicitedNode(address: Buffer): Buffer {
  return Buffer.concat([ipv6Address('ff02::1:ff00:0').subarray(0, 13), address.subarray(13)]);
}

/** Returns the last four bytes of the MAC address of a multicast group. */
function groupCard(group: Buffer): string {
  return [...group.subarray(12)].map((byte) => byte.toString(16).padStart(2, '0')).join(':');
}

function datagram(port: number, text: string): number[] {
  return [...expected(OWN_PORT, port, 8 + text.length, 0), ...Buffer.from(text)];
}

function tcpSyn(port: number): number[] {
  const [noSequence, headerAndSyn, window] = [[0, 1, 0, 0], 0x5002, 0xffff];
  return expected(OWN_PORT, port, ...noSequence, headerAndSyn, window, 0, 0);
}

/** Returns the bytes of 16-bit numbers. */
function expected(...values: number[]): number[] {
  return values.flatMap((value) => [value >> 8, value & 255]);
}
