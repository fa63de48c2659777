import { once } from 'node:events';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { networkInterfaces } from 'node:os';
import { Agent, request } from 'undici';
import { describe, expect, it } from 'vitest';
import { AddressError, Addresses } from './addresses.ts';

const clusterCIDRs = ['10.96.0.0/12', 'fd77::/48'];
const advice = 'name the server';
const strict = new Addresses({ clusterCIDRs, ownAddresses: ['192.0.2.7'], advice });
const loopback = new Addresses({ allowsLocal: true, clusterCIDRs, advice });
const open = new Addresses({ refusesPrivate: true, advice });

const LOCAL = [
  '127.0.0.1',
  '0.0.0.0',
  '::1',
  '::',
  'fe80::1',
  'fe80::1%eth0',
  '::ffff:127.0.0.1',
  '169.254.9.9',
];
const METADATA = [
  '169.254.169.254',
  '169.254.170.2',
  '::ffff:169.254.169.254',
  '64:ff9b::a9fe:a9fe',
  'fd00:ec2::254',
  'fd20:ce::254',
  '100.100.100.200',
  '168.63.129.16',
  '192.0.0.192',
];
const CLUSTER = ['10.96.0.1', '10.111.255.255', '::ffff:10.96.0.1', '64:ff9b::a60:1', 'fd77::1'];
const SPECIAL = [
  '224.0.0.1',
  '255.255.255.255',
  'ff02::1',
  '::7f00:1',
  '2002:7f00:1::',
  '::ffff:0:7f00:1',
  '2001::1',
];
const PRIVATE = [
  '10.0.0.1',
  '10.112.0.1',
  '172.31.255.255',
  '192.168.1.1',
  '::ffff:192.168.1.1',
  '64:ff9b::a00:1',
  '100.64.0.1',
  '198.18.0.1',
  'fd00::1',
];
const PUBLIC = ['151.101.1.6', '172.32.0.1', '2001:db8::1', '64:ff9b::808:808'];

describe('an address', () => {
  it.each([...LOCAL, '64:ff9b::7f00:1', '192.0.2.7', '::ffff:192.0.2.7'])(
    '%s is of the host, or link-local',
    (address) => {
      expect(strict.refusal(address)).toContain('of this host or a link-local address');
    },
  );

  it('of an interface of the host is its own', () => {
    const addresses = Object.values(networkInterfaces()).flatMap((each) =>
      (each ?? []).map(({ address }) => address),
    );
    expect(addresses.filter((address) => strict.refusal(address)?.includes('of this host') !== true)).toEqual(
      [],
    );
  });

  it.each(METADATA)('%s belongs to the metadata service of a cloud', (address) => {
    expect(strict.refusal(address)).toContain('metadata');
  });

  it.each(CLUSTER)('%s belongs to the cluster', (address) =>
    expect(strict.refusal(address)).toMatch(/clusterCIDRs.*name the server/),
  );

  it.each(SPECIAL)('%s belongs to no server', (address) =>
    expect(strict.refusal(address)).toContain('a reserved address'),
  );

  it.each(PRIVATE)('%s of a private network is open unless private networks are refused', (address) => {
    expect(strict.refusal(address)).toBeUndefined();
    expect(open.refusal(address)).toContain('an address of a private network');
  });

  it.each(PUBLIC)('%s is open', (address) => {
    expect([strict.refusal(address), open.refusal(address)]).toEqual([undefined, undefined]);
  });

  it('that cannot be read is refused', () => expect(strict.refusal('0177.0.0.1')).toBeDefined());
});

it('a configured server may be at any address, but only that server', async () => {
  const servers = [createServer(), createServer()];
  const hosts: string[] = [];
  for (const server of servers) {
    server.on('request', (_request, response) => response.end());
    server.listen(0, '127.0.0.1');
    await once(server, 'listening');
    hosts.push(`127.0.0.1:${(server.address() as AddressInfo).port}`);
  }
  const [named = '', other = ''] = hosts;
  const addresses = new Addresses({ namedHosts: [named], advice });
  const dispatcher = new Agent({ connect: addresses.connector({}) });
  const status = async (host: string): Promise<number> => {
    const { statusCode, body } = await request(`http://${host}/disk`, { dispatcher });
    await body.dump();
    return statusCode;
  };
  try {
    expect(await status(named)).toBe(200);
    const refused: unknown = await status(other).catch((error: unknown) => error);
    expect(refused).toMatchObject({
      hostname: '127.0.0.1',
      message: expect.stringContaining('an address of this host') as string,
    });
  } finally {
    await dispatcher.destroy();
    for (const server of servers) {
      server.close();
    }
  }
});

it.each([
  ['127.0.0.1', 'http:', true],
  ['127.0.0.1', 'https:', true],
  ['127.0.0.1:80', 'http:', true],
  ['127.0.0.1:80', 'https:', false],
  ['127.0.0.1:443', 'https:', true],
  ['127.0.0.1:443', 'http:', false],
])('a server configured as %s is that of the usual port of %s: %s', async (host, protocol, isOpen) => {
  const addresses = new Addresses({ namedHosts: [host], advice });
  const target = { host: '127.0.0.1', hostname: '127.0.0.1', protocol, port: '' };
  const error = await new Promise<unknown>((resolve) => {
    addresses.connector({})(target, (failure, socket) => {
      socket?.destroy();
      resolve(failure);
    });
  });
  // Whether a program listens on this port does not matter. Only the rules refuse with a reason.
  expect(error instanceof AddressError).toBe(!isOpen);
});

it('an allowed loopback opens this host and its link, and nothing else', () => {
  expect(LOCAL.flatMap((address) => loopback.refusal(address) ?? [])).toEqual([]);
  const others = [...METADATA, ...CLUSTER, ...SPECIAL];
  expect(others.filter((address) => loopback.refusal(address) === undefined)).toEqual([]);
});
