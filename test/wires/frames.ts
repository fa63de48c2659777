/** Frames that a guest may send. The test chooses each field, also false values. */

export const ETHERTYPE = {
  ipv4: 0x0800,
  arp: 0x0806,
  vlan: 0x8100,
  ipv6: 0x86dd,
  qinq: 0x88a8,
  lldp: 0x88cc,
};
export const PROTOCOL = { icmp: 1, tcp: 6, udp: 17, icmpv6: 58 };
export const BROADCAST = 'ff:ff:ff:ff:ff:ff';
export const NO_CARD = '00:00:00:00:00:00';

export interface Endpoint {
  address: string;
  port: number;
}

export function macBytes(mac: string): Buffer {
  return Buffer.from(mac.replaceAll(':', ''), 'hex');
}

export function macText(bytes: Buffer): string {
  return bytes.toString('hex').replaceAll(/..(?=.)/g, '$&:');
}

function addressBytes(address: string): Buffer {
  return Buffer.from(address.split('.').map(Number));
}

function checksum(bytes: Buffer): number {
  let sum = 0;
  for (let i = 0; i + 1 < bytes.length; i += 2) {
    sum += bytes.readUInt16BE(i);
  }
  if (bytes.length % 2 === 1) {
    sum += (bytes.at(-1) ?? 0) << 8;
  }
  while (sum > 0xffff) {
    sum = (sum & 0xffff) + (sum >>> 16);
  }
  return ~sum & 0xffff;
}

export function ethernet(head: { to: string; from: string; type: number }, body: Buffer): Buffer {
  const type = Buffer.from([head.type >> 8, head.type & 255]);
  return Buffer.concat([macBytes(head.to), macBytes(head.from), type, body]);
}

/** Returns the body of a VLAN frame: the tag, the type of the inner frame, and the inner body. */
export function tagged(vlan: number, type: number, body: Buffer): Buffer {
  return Buffer.concat([Buffer.from([vlan >> 8, vlan & 255, type >> 8, type & 255]), body]);
}

export function ipv4(head: { from: string; to: string; protocol: number }, body: Buffer): Buffer {
  const header = Buffer.alloc(20);
  header[0] = 0x45;
  header.writeUInt16BE(20 + body.length, 2);
  header[8] = 64;
  header[9] = head.protocol;
  addressBytes(head.from).copy(header, 12);
  addressBytes(head.to).copy(header, 16);
  header.writeUInt16BE(checksum(header), 10);
  return Buffer.concat([header, body]);
}

/** Returns an IPv6 packet. Addresses have 16 bytes. The body already contains its checksum, if it has one. */
export function ipv6(head: { from: Buffer; to: Buffer; next: number }, body: Buffer): Buffer {
  const header = Buffer.alloc(8);
  header[0] = 0x60;
  header.writeUInt16BE(body.length, 4);
  header[6] = head.next;
  header[7] = 255;
  return Buffer.concat([header, head.from, head.to, body]);
}

/** Returns the link-local address that most systems give to a card with this MAC address (RFC 4291). */
export function linkLocal(mac: string): Buffer {
  const [first = 0, ...rest] = macBytes(mac);
  const card = [first ^ 2, ...rest.slice(0, 2), 0xff, 0xfe, ...rest.slice(2)];
  return Buffer.from([0xfe, 0x80, 0, 0, 0, 0, 0, 0, ...card]);
}

/**
 * Returns a packet with ICMPv6, UDP or TCP. The function writes a valid checksum at offset `checksumAt` of the body, so that receivers
 * accept the packet.
 */
export function ipv6Packet(
  head: { from: Buffer; to: Buffer; next: number },
  body: Buffer,
  checksumAt: number,
): Buffer {
  const length = Buffer.alloc(4);
  length.writeUInt32BE(body.length);
  const pseudo = Buffer.concat([head.from, head.to, length, Buffer.from([0, 0, 0, head.next])]);
  const checked = Buffer.from(body);
  checked.writeUInt16BE(checksum(Buffer.concat([pseudo, body])), checksumAt);
  return ipv6(head, checked);
}

export function udp(from: Endpoint, to: Endpoint, payload: Buffer): Buffer {
  const header = Buffer.alloc(8);
  header.writeUInt16BE(from.port, 0);
  header.writeUInt16BE(to.port, 2);
  header.writeUInt16BE(8 + payload.length, 4);
  const body = Buffer.concat([header, payload]);
  return ipv4({ from: from.address, to: to.address, protocol: PROTOCOL.udp }, body);
}

/** Returns the first packet of a TCP connection. */
export function tcpSyn(from: Endpoint, to: Endpoint): Buffer {
  const segment = Buffer.alloc(20);
  segment.writeUInt16BE(from.port, 0);
  segment.writeUInt16BE(to.port, 2);
  segment.writeUInt32BE(1, 4);
  segment[12] = 0x50;
  segment[13] = 0x02;
  segment.writeUInt16BE(0xffff, 14);
  const pseudo = Buffer.concat([
    addressBytes(from.address),
    addressBytes(to.address),
    Buffer.from([0, PROTOCOL.tcp, 0, segment.length]),
  ]);
  segment.writeUInt16BE(checksum(Buffer.concat([pseudo, segment])), 16);
  return ipv4({ from: from.address, to: to.address, protocol: PROTOCOL.tcp }, segment);
}

export function ping(from: string, to: string): Buffer {
  const message = Buffer.from([8, 0, 0, 0, 0, 1, 0, 1]);
  message.writeUInt16BE(checksum(message), 2);
  return ipv4({ from, to, protocol: PROTOCOL.icmp }, message);
}

export interface Station {
  mac: string;
  address: string;
}

export function arp(operation: 1 | 2, sender: Station, target: Station): Buffer {
  const head = Buffer.from([0, 1, 8, 0, 6, 4, 0, operation]);
  const parts = [sender, target].flatMap(({ mac, address }) => [macBytes(mac), addressBytes(address)]);
  return Buffer.concat([head, ...parts]);
}

/** Types of DHCP messages (RFC 2132). */
export const DHCP = { discover: 1, offer: 2, request: 3, decline: 4, acknowledge: 5, release: 7 };

export interface DhcpMessage {
  operation: 1 | 2;
  kind: number;
  /** MAC address in the message. It may differ from the sender of the frame. */
  card: string;
  client?: string;
  offered?: string;
  requested?: string;
  server?: string;
}

export function dhcp({ operation, kind, card, ...rest }: DhcpMessage): Buffer {
  const message = Buffer.alloc(236);
  message.set([operation, 1, 6, 0, 0x12, 0x34, 0x56, 0x78]);
  addressBytes(rest.client ?? '0.0.0.0').copy(message, 12);
  addressBytes(rest.offered ?? '0.0.0.0').copy(message, 16);
  macBytes(card).copy(message, 28);
  const option = (code: number, address: string | undefined): number[] =>
    address === undefined ? [] : [code, 4, ...addressBytes(address)];
  const options = [53, 1, kind, ...option(50, rest.requested), ...option(54, rest.server), 255];
  return Buffer.concat([message, Buffer.from([0x63, 0x82, 0x53, 0x63, ...options]), Buffer.alloc(60)]);
}
