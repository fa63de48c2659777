/** One form for each IP address, so that addresses can be compared as texts, and the source of the callers behind an address. */
import { isIP, type Socket, SocketAddress } from 'node:net';

/** An IPv4 address in the form of an IPv6 address. */
const MAPPED = /^::ffff:(\d+\.\d+\.\d+\.\d+)$/;
/** Groups of an IPv6 address, and those of its first 64 bits. One customer of a provider has all addresses with the same first 64 bits. */
const GROUPS = 8;
const NETWORK_GROUPS = 4;

/**
 * Returns the one form of an IP address: RFC 5952 for IPv6, and the IPv4 address for an IPv6 address that only carries one
 * (`::ffff:192.0.2.1`). The result is undefined if the text is no IP address, or if it has a zone (`fe80::1%eth0`), which means something
 * on one computer only.
 */
export function canonicalAddress(text: string): string | undefined {
  const family = isIP(text);
  if (family === 0 || text.includes('%')) {
    return undefined;
  }
  const { address } = new SocketAddress({ address: text, family: family === 4 ? 'ipv4' : 'ipv6' });
  return MAPPED.exec(address)?.[1] ?? address;
}

/** Returns the canonical address of the other end of a connection. The result is undefined if the connection is closed. */
export function peerAddress({ remoteAddress }: Pick<Socket, 'remoteAddress'>): string | undefined {
  return canonicalAddress(remoteAddress?.split('%')[0] ?? '');
}

/**
 * Returns the source of an address in its canonical form: an IPv4 address, or the /64 network of an IPv6 address. What callers may take is
 * counted by source.
 */
export function sourceOf(address: string): string {
  if (isIP(address) === 4) {
    return address;
  }
  const [before = [], after = []] = address.split('::').map(groupsOf);
  const zeros = Array.from({ length: GROUPS - before.length - after.length }, () => '0');
  const network = [...before, ...zeros, ...after].slice(0, NETWORK_GROUPS);
  return `${canonicalAddress(`${network.join(':')}::`)}/64`;
}

/** Returns the groups of a part of an IPv6 address. An IPv4 address at the end is in the last 64 bits, whose values do not count. */
function groupsOf(part: string): string[] {
  return part
    .replace(/[\d.]+\.\d+$/, '0:0')
    .split(':')
    .filter(Boolean);
}
