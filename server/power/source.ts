/** Finds the source of a request. Failed sign-ins are counted by source. */
import type { IncomingMessage } from 'node:http';
import { BlockList, isIP } from 'node:net';
import { canonicalAddress, peerAddress, sourceOf } from '../../base/address.ts';

/** Longest item of the header that is read: an address in brackets, with a port. */
const ITEM_LENGTH = 64;

export class RequestSources {
  readonly #proxies = new BlockList();

  /** `trustedProxies` are the networks (CIDR) of the proxies whose header `X-Forwarded-For` is read. */
  constructor(trustedProxies: readonly string[]) {
    for (const network of trustedProxies) {
      const [address = '', bits] = network.split('/');
      this.#proxies.addSubnet(address, Number(bits), familyOf(address));
    }
  }

  /**
   * Returns the source: an IPv4 address, or the /64 network of an IPv6 address. It is the last address before the trusted proxies, which can
   * write into `X-Forwarded-For`. All other callers can write into this header, so their own address counts. The result is undefined if the
   * connection is already closed.
   */
  of({ socket, headers }: Pick<IncomingMessage, 'socket' | 'headers'>): string | undefined {
    const peer = peerAddress(socket);
    return peer === undefined ? undefined : sourceOf(this.#lastUntrusted(peer, headers['x-forwarded-for']));
  }

  #lastUntrusted(peer: string, forwarded: string | string[] | undefined): string {
    let last = peer;
    for (const item of [forwarded ?? []].flat().join(',').split(',').toReversed()) {
      const address = parseAddress(item);
      if (address === undefined || !this.#proxies.check(last, familyOf(last))) {
        return last;
      }
      last = address;
    }
    return last;
  }
}

/** Reads one item of the header. Some proxies add the port of the client. */
function parseAddress(item: string): string | undefined {
  const text = item.trim();
  if (text.length > ITEM_LENGTH) {
    return undefined;
  }
  const [, bracketed] = /^\[(.*)\](?::\d+)?$/.exec(text) ?? [];
  const [, withPort] = /^([\d.]+):\d+$/.exec(text) ?? [];
  return canonicalAddress(bracketed ?? withPort ?? text);
}

function familyOf(address: string): 'ipv4' | 'ipv6' {
  return isIP(address) === 4 ? 'ipv4' : 'ipv6';
}
