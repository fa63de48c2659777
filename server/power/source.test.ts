import type { IncomingMessage } from 'node:http';
import { expect, it } from 'vitest';
import { RequestSources } from './source.ts';

const sources = new RequestSources(['10.0.0.0/8', 'fd00::/8']);

function source(remoteAddress: string | undefined, forwarded?: string | string[]): string | undefined {
  const request = { socket: { remoteAddress }, headers: { 'x-forwarded-for': forwarded } };
  return sources.of(request as unknown as IncomingMessage);
}

it.each([
  ['the address of the peer', '192.0.2.1', undefined, '192.0.2.1'],
  ['an IPv4 peer of an IPv6 socket', '::ffff:192.0.2.1', undefined, '192.0.2.1'],
  ['the network of an IPv6 peer', '2001:db8:1:2:3:4:5:6', undefined, '2001:db8:1:2::/64'],
  ['the peer with a zone', 'fe80::1%eth0', undefined, 'fe80::/64'],
  ['the peer, whatever a stranger writes', '192.0.2.1', '198.51.100.1', '192.0.2.1'],
  ['the caller of a proxy', '10.0.0.1', '198.51.100.1', '198.51.100.1'],
  ['the last address that no proxy has', '10.0.0.1', '203.0.113.9, 198.51.100.1, 10.2.3.4', '198.51.100.1'],
  ['the caller of a proxy in two lines', '10.0.0.1', ['203.0.113.9', '198.51.100.1'], '198.51.100.1'],
  ['an address with a port', '10.0.0.1', '198.51.100.1:4711', '198.51.100.1'],
  ['an IPv6 address with a port', 'fd00::1', '[2001:db8::1]:4711', '2001:db8::/64'],
  ['the proxy after a mistake', '10.0.0.1', '198.51.100.1, unknown', '10.0.0.1'],
  ['the proxy without a header', '10.0.0.1', '', '10.0.0.1'],
  ['the first proxy if there are only proxies', '10.0.0.1', '10.0.0.3, 10.0.0.2', '10.0.0.3'],
  ['nothing of a closed connection', undefined, undefined, undefined],
])('is %s', (_what, peer, forwarded, expected) => {
  expect(source(peer, forwarded)).toBe(expected);
});
