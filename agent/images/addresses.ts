/** Which addresses images may come from: never this host's own services, nor those that clouds put at link-local addresses. */
import { lookup } from 'node:dns';
import { BlockList, isIP, type LookupFunction } from 'node:net';
import { ImageError } from './store.ts';

const FORBIDDEN = new BlockList();
FORBIDDEN.addSubnet('0.0.0.0', 8);
FORBIDDEN.addSubnet('127.0.0.0', 8);
FORBIDDEN.addSubnet('169.254.0.0', 16);
FORBIDDEN.addSubnet('224.0.0.0', 4);
FORBIDDEN.addSubnet('240.0.0.0', 4);
FORBIDDEN.addAddress('::', 'ipv6');
FORBIDDEN.addAddress('::1', 'ipv6');
FORBIDDEN.addSubnet('fe80::', 10, 'ipv6');
FORBIDDEN.addSubnet('ff00::', 8, 'ipv6');

/** A v4 address written as v6 (`::ffff:127.0.0.1`) is matched by the rules for v4. */
export function isForbiddenAddress(address: string): boolean {
  return FORBIDDEN.check(address, isIP(address) === 6 ? 'ipv6' : 'ipv4');
}

/** Literal addresses are never looked up, so they are checked here. Throws ImageError. */
export function checkLiteralAddress(url: URL): void {
  const host = url.hostname.replace(/^\[|\]$/g, '');
  if (isIP(host) !== 0 && isForbiddenAddress(host)) throw forbidden(host, host);
}

/** For connections: those that are made go to the addresses that were checked. A second look-up could answer otherwise. */
export const checkedLookup: LookupFunction = (hostname, options, callback) => {
  lookup(hostname, { ...options, all: true }, (error, addresses) => {
    if (error !== null) {
      callback(error, []);
      return;
    }
    const bad = addresses.find(({ address }) => isForbiddenAddress(address));
    if (bad !== undefined) callback(forbidden(hostname, bad.address), []);
    else if (options.all === true) callback(null, addresses);
    else callback(null, addresses[0]?.address ?? '', addresses[0]?.family ?? 4);
  });
};

function forbidden(host: string, address: string): ImageError {
  return new ImageError(
    'ImageFetchFailed',
    `${host} is ${address}, an address of this host or its link; images are not fetched from there unless the agent's configuration allows it (images.allowLoopbackHttp, or a registry named in images.registries)`,
  );
}
