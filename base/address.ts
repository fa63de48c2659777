/** One form for each IP address, so that addresses can be compared as texts. */
import { isIP, SocketAddress } from 'node:net';

/** An IPv4 address in the form of an IPv6 address. */
const MAPPED = /^::ffff:(\d+\.\d+\.\d+\.\d+)$/;

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
