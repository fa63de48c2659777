/** Makes and recognises the DNS and DHCP messages of the probe. All functions are pure. */
import { toNumber } from './ipv4.ts';

/** Returns a DNS query for the IPv4 address of a name. */
export function dnsQuery(id: number, name: string): Buffer {
  const labels = name.split('.').map((label) => Buffer.from([label.length, ...Buffer.from(label)]));
  const header = Buffer.alloc(12);
  header.writeUInt16BE(id, 0);
  header.writeUInt16BE(0x0100, 2); // recursion desired
  header.writeUInt16BE(1, 4); // one question
  return Buffer.concat([header, ...labels, Buffer.from([0, 0, 1, 0, 1])]); // type A, class IN
}

/** Returns whether the payload answers this query without an error and with at least one record. */
export function isDnsAnswer(payload: Buffer, query: Buffer): boolean {
  if (payload.length < 12 || payload.readUInt16BE(0) !== query.readUInt16BE(0)) {
    return false;
  }
  const flags = payload.readUInt16BE(2);
  return (flags & 0x8000) !== 0 && (flags & 0x000f) === 0 && payload.readUInt16BE(6) > 0;
}

/** Offsets of fields in a DHCP message, and the number that begins its options (RFC 2131). */
const DHCP = { transaction: 4, yourAddress: 16, clientMac: 28, options: 236, cookie: 0x63825363 };
/** Smallest length of a BOOTP message. Some servers ignore shorter messages (RFC 1542). */
const DHCP_BYTES = 300;

/** Returns the first DHCP message of a guest, which asks every server for an address. */
export function dhcpDiscover(transaction: number, macAddress: string): Buffer {
  const message = Buffer.alloc(DHCP_BYTES);
  message.set([1, 1, 6, 0]); // request, Ethernet, length of a MAC address, no hops
  message.writeUInt32BE(transaction, DHCP.transaction);
  message.set(Buffer.from(macAddress.replaceAll(':', ''), 'hex'), DHCP.clientMac);
  message.writeUInt32BE(DHCP.cookie, DHCP.options);
  message.set([53, 1, 1, 255], DHCP.options + 4); // message type DISCOVER, end of the options
  return message;
}

/** Returns whether the payload offers this address in answer to the message. */
export function isDhcpOffer(payload: Buffer, discover: Buffer, address: string): boolean {
  return (
    payload.length > DHCP.options &&
    payload[0] === 2 && // answer
    payload.readUInt32BE(DHCP.transaction) === discover.readUInt32BE(DHCP.transaction) &&
    payload.readUInt32BE(DHCP.yourAddress) === toNumber(address)
  );
}
