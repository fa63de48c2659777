/** The metadata service of the `nat` network, asked by guests with a whole network stack, by their neighbours and from outside. */
import { mkdir, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { writeSeedDocuments } from '../../../agent/seed/seed.ts';
import { waitFor } from '../../../hack/wait.ts';
import { FrameGuest, tapBackend } from '../../worlds/frameguest.ts';
import {
  BLOCKED_MILLISECONDS,
  HOST_ADDRESS,
  NatWorld,
  OPEN_MILLISECONDS,
  type Worker,
  WORLD_ADDRESS,
  whyNotHere,
} from '../../worlds/nat.ts';
import { StackGuest } from '../../worlds/stackguest.ts';
import { BROADCAST, DHCP, dhcp, udp } from '../../wires/frames.ts';
import { unless } from '../../support/unless.ts';

const SERVICE = 'http://169.254.169.254';
const GATEWAY = '10.213.0.1';
/** Port of the gateway to which the rules lead guests. */
const GATEWAY_PORT = 254;
/** Connections that a guest can open at once, and a bound for those that it opens afterwards until the slowest attempt ends. */
const [BURST, SLOWED] = [128, 64];
/** Another port at which the metadata service of the host's cloud answers. */
const CLOUD_PORT = 8080;
const MACS = { a: '52:54:00:00:00:0a', b: '52:54:00:00:00:0b', c: '52:54:00:00:00:0c' } as const;
/** A packet that is dropped, or a connection that is refused. */
const NOTHING = /timeout|aborted|fetch failed|ECONNREFUSED|ECONNRESET|hang up/;

const missing = whyNotHere();

describe('the metadata service of the nat network', unless(missing), () => {
  let net: NatWorld;
  let host: Worker;
  let world: Worker;
  const guests = new Map<'a' | 'b', StackGuest>();
  const addresses = { a: '', b: '', c: '' };
  const taps = { a: '', b: '', c: '' };

  async function attach(name: 'a' | 'b' | 'c'): Promise<void> {
    const attached = await host.do('attach', name, { macAddress: MACS[name], ports: [] });
    taps[name] = attached.kind === 'tap' ? attached.device : '';
    addresses[name] = attached.address ?? '';
    const folder = join(net.directory, 'machines', name);
    await mkdir(folder, { recursive: true });
    await writeSeedDocuments(folder, {
      userData: `#cloud-config\n# of ${name}\n`,
      metaData: JSON.stringify({ 'instance-id': name }),
      values: { name: `desk-${name}` },
    });
  }

  function inside(name: 'a' | 'b'): Worker {
    const guest = guests.get(name);
    if (guest === undefined) {
      throw new Error(`guest ${name} does not run`);
    }
    return guest.worker;
  }

  async function isServed(name: 'a' | 'b'): Promise<void> {
    await waitFor(`guest ${name} to get its name`, () =>
      inside(name)
        .do('httpGet', `${SERVICE}/metadata/name`, BLOCKED_MILLISECONDS)
        .then(
          (page) => page === `desk-${name}`,
          () => false,
        ),
    );
  }

  async function isNotServed(name: 'a' | 'b'): Promise<void> {
    const asked = inside(name).do('httpGet', `${SERVICE}/metadata/name`, BLOCKED_MILLISECONDS);
    await expect(asked).rejects.toThrow(NOTHING);
  }

  beforeAll(async () => {
    net = await NatWorld.make('natm');
    host = net.worker('host');
    world = net.worker('world');
    // The world plays the cloud of the host, with its metadata service and routes to the guests.
    net.inWorld('ip', 'address', 'add', '169.254.169.254/32', 'dev', 'uplink');
    net.inWorld('ip', 'route', 'add', '10.213.0.0/20', 'via', HOST_ADDRESS);
    net.inHost('ip', 'route', 'add', 'default', 'via', WORLD_ADDRESS);
    await world.do('serveHttp', 80);
    await world.do('serveHttp', CLOUD_PORT);
    // The address stays closed to guests even if the host's configuration forbids them no network.
    await host.do('open', { ...net.natOptions(), forbidden: [] });
    for (const name of ['a', 'b'] as const) {
      await attach(name);
      const card = { macAddress: MACS[name], address: addresses[name], gateway: GATEWAY };
      guests.set(name, await StackGuest.start({ net, name, tap: taps[name], ...card }));
      await isServed(name);
    }
  });

  afterAll(async () => {
    for (const guest of guests.values()) {
      await guest[Symbol.asyncDispose]();
    }
    await net?.[Symbol.asyncDispose]();
  });

  test('each guest gets its own values and the files of NoCloud, and nothing else is there', async () => {
    for (const name of ['a', 'b'] as const) {
      const page = (path: string): Promise<string> => inside(name).do('httpGet', `${SERVICE}${path}`);
      expect(await page('/metadata/name')).toBe(`desk-${name}`);
      expect(await page('/metadata/')).toBe('name\n');
      expect(await page('/user-data')).toBe(`#cloud-config\n# of ${name}\n`);
      expect(await page('/meta-data')).toBe(`{"instance-id":"${name}"}`);
      expect(await page('/vendor-data')).toBe('');
      expect(await page('/network-config')).toBe('');
      for (const other of ['/', '/metadata', '/metadata/host', '/seed.json', '/latest/meta-data/']) {
        expect(await page(other)).toBe('');
      }
    }
  });

  test('a guest that sends with the address of its neighbour gets nothing', async () => {
    const url = `${SERVICE}/metadata/name`;
    expect(await inside('a').do('httpGetFrom', addresses.a, url)).toBe('desk-a');
    guests.get('a')?.run('ip', 'address', 'add', `${addresses.b}/32`, 'dev', 'eth0');
    // Without its entry for the gateway, the guest asks for the gateway's card and claims the address of its neighbour in doing so.
    guests.get('a')?.run('ip', 'neighbour', 'flush', 'dev', 'eth0');
    const spoofed = inside('a').do('httpGetFrom', addresses.b, url, BLOCKED_MILLISECONDS);
    await expect(spoofed).rejects.toThrow(NOTHING);
    guests.get('a')?.run('ip', 'address', 'delete', `${addresses.b}/32`, 'dev', 'eth0');
    expect(await inside('b').do('httpGet', url)).toBe('desk-b');
  });

  test('guests reach only this port of the address, and never the metadata service of the cloud', async () => {
    expect(await inside('a').do('tcpOpen', '169.254.169.254', CLOUD_PORT)).toBe(false);
    expect(await inside('a').do('tcpOpen', GATEWAY, GATEWAY_PORT)).toBe(false);
    expect(await inside('a').do('tcpOpen', WORLD_ADDRESS, CLOUD_PORT, OPEN_MILLISECONDS)).toBe(true);
  });

  test('the host still reaches the metadata service of its cloud', async () => {
    expect(await host.do('httpGet', SERVICE)).toBe(HOST_ADDRESS);
  });

  test('a guest that asks all the time is slowed down, and its neighbour is not', async () => {
    const attempts = Array.from({ length: 3 * BURST }, () =>
      inside('a').do('tcpOpen', '169.254.169.254', 80),
    );
    await isServed('b');
    const opened = (await Promise.all(attempts)).filter(Boolean);
    expect(opened.length).toBeGreaterThan(0);
    expect(opened.length).toBeLessThan(BURST + SLOWED);
    await isServed('a');
  });

  test('neither the host nor a computer outside reaches the service', async () => {
    for (const where of [host, world]) {
      expect(await where.do('tcpOpen', GATEWAY, GATEWAY_PORT)).toBe(false);
    }
  });

  test.each([
    [
      'the address of the gateway',
      ['ip', 'address', 'flush', 'dev', 'berth0'],
      'Device berth0 did not have the address 10.213.0.1/20',
    ],
    [
      'the rules that lead to it',
      ['nft', 'flush', 'chain', 'inet', 'berth', 'prerouting'],
      'The nftables rules were missing or changed',
    ],
  ])(
    '%s taken away: repaired and told, and guests are served again',
    async (_what, [file = '', ...args], repair) => {
      net.inHost(file, ...args);
      await isNotServed('a');
      expect((await host.do('check')).repaired).toContain(repair);
      await isServed('a');
      expect(await host.do('check')).toMatchObject({ healthy: true, repaired: [], faults: [] });
    },
  );

  test('DHCP tells guests the way to the address, for those that take it for a part of their own link', async () => {
    await attach('c');
    const c = await FrameGuest.start({
      spawn: (file, args) => net.spawnInHost(file, args),
      backend: tapBackend(taps.c),
      socketPath: join(net.directory, 'c.sock'),
      macAddress: MACS.c,
      address: addresses.c,
    });
    try {
      const discovery = dhcp({ operation: 1, kind: DHCP.discover, card: MACS.c });
      const [from, to] = [
        { address: '0.0.0.0', port: 68 },
        { address: '255.255.255.255', port: 67 },
      ];
      const route = [32, 169, 254, 169, 254, 10, 213, 0, 1];
      await waitFor('an offer with both routes', () => {
        c.sendPacket(BROADCAST, udp(from, to, discovery));
        const option = Buffer.from([121, route.length + 5, ...route, 0, 10, 213, 0, 1]);
        return c.frames.some((frame) => frame.includes(option));
      });
    } finally {
      await c.stop();
      await host.do('detach', 'c');
    }
  });

  test('the next agent serves the guests on, and a machine without a seed has no pages', async () => {
    await host.kill();
    await isNotServed('a');
    host = net.worker('host');
    await host.do('open', { ...net.natOptions(), forbidden: [] });
    await isServed('a');
    await isServed('b');
    await rm(join(net.directory, 'machines', 'a', 'seed.json'));
    expect(await inside('a').do('httpGet', `${SERVICE}/metadata/name`)).toBe('');
  });

  test('a port of the service that another program has is told, and guests do not reach that program', async () => {
    await host.kill();
    const other = net.worker('host');
    await other.do('serveHttp', GATEWAY_PORT);
    host = net.worker('host');
    await expect(host.do('open', { ...net.natOptions(), forbidden: [] })).rejects.toMatchObject({
      message: expect.stringContaining('The metadata service for guests was not running') as string,
    });
    await isNotServed('b');
    await other.kill();
    expect((await host.do('check')).repaired).toContain('The metadata service for guests was not running');
    await isServed('b');
  });
});
