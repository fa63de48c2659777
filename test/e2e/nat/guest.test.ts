/** The `nat` network with real running guests while it breaks. Faults are repaired or reported in time, and guests are reachable again. */
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import { networkArguments } from '../../../agent/drivers/qemu/arguments.ts';
import type { NetworkReport } from '../../../agent/network/network.ts';
import { guestFile } from '../../fixtures/images.ts';
import { waitFor } from '../../../hack/wait.ts';
import {
  BLOCKED_MILLISECONDS,
  HOST_ADDRESS,
  NatWorld,
  OPEN_MILLISECONDS,
  type Worker,
  WORLD_ADDRESS,
  whyNotHere,
} from '../../worlds/nat.ts';
import { unless } from '../../support/unless.ts';

/** Time limit for an emulated guest on a busy machine. */
const BOOT_DEADLINE_MILLISECONDS = 120_000;
const REPAIR_DEADLINE_MILLISECONDS = 5_000;
/** Time limit. The guest itself gives up after two seconds. */
const CONNECT_DEADLINE_MILLISECONDS = 30_000;
/** Errors if a packet is dropped, or the host on the way refuses it. */
const UNREACHABLE = /timeout|fetch failed/;
const SERVICE_PORT = 8000;
const GUESTS = { a: { mac: '52:54:00:00:00:0a', port: 8080 }, b: { mac: '52:54:00:00:00:0b', port: 8081 } };

const missing = whyNotHere();

describe('nat with real guests', unless(missing), () => {
  let net: NatWorld;
  let host: Worker;
  let world: Worker;
  const addresses = { a: '', b: '' };

  async function boot(name: 'a' | 'b', image: string): Promise<void> {
    const { mac, port } = GUESTS[name];
    const reservation = { protocol: 'TCP' as const, hostPort: port, guestPort: 80 };
    const guest = await host.do('attach', name, { macAddress: mac, ports: [reservation] });
    addresses[name] = guest.address ?? '';
    const serial = join(net.directory, `${name}.log`);
    const machine = [
      '-nodefaults',
      '-display',
      'none',
      '-machine',
      'q35,accel=tcg',
      '-m',
      '128',
      '-snapshot',
    ];
    const disk = ['-drive', `file=${image},if=virtio,format=qcow2`, '-serial', `file:${serial}`];
    net.spawnInHost('qemu-system-x86_64', [...machine, ...disk, ...networkArguments(guest)]);
    await waitFor(
      `guest ${name}`,
      () => existsSync(serial) && readFileSync(serial, 'utf8').includes('berth-guest: ready'),
      {
        deadlineMilliseconds: BOOT_DEADLINE_MILLISECONDS,
      },
    );
  }

  function page(name: 'a' | 'b', timeoutMilliseconds = OPEN_MILLISECONDS): Promise<string> {
    return world.do('httpGet', `http://${HOST_ADDRESS}:${GUESTS[name].port}/`, timeoutMilliseconds);
  }

  async function isCutOff(): Promise<void> {
    await expect(page('a', BLOCKED_MILLISECONDS)).rejects.toThrow(UNREACHABLE);
  }

  /** Returns whether a guest gets through to an address and port. */
  async function canReach(name: 'a' | 'b', target: string): Promise<string> {
    const url = `http://${HOST_ADDRESS}:${GUESTS[name].port}/cgi-bin/do?connect=${target}`;
    return (await world.do('httpGet', url, CONNECT_DEADLINE_MILLISECONDS)).trim();
  }

  async function isReachable(): Promise<void> {
    const answers = async () => (await page('a', BLOCKED_MILLISECONDS)).includes('berth-guest');
    await waitFor('the guest to be reachable', answers);
  }

  beforeAll(async () => {
    const image = await guestFile('amd64');
    net = await NatWorld.make('natg');
    host = net.worker('host');
    world = net.worker('world');
    await world.do('serveHttp', 80);
    await host.do('serveHttp', SERVICE_PORT);
    await host.do('open', net.natOptions());
    await Promise.all([boot('a', image), boot('b', image)]);
  }, 2 * BOOT_DEADLINE_MILLISECONDS);

  afterEach(async () => {
    if (net.inHost('nft', 'list', 'tables').includes('other')) {
      net.inHost('nft', 'delete', 'table', 'inet', 'other');
    }
    await host.do('check');
  });

  afterAll(async () => {
    await net?.[Symbol.asyncDispose]();
  });

  test('each guest has the address that was chosen for it, by DHCP', async () => {
    expect(await page('a')).toContain(`address=${addresses.a}\n`);
    expect(await page('b')).toContain(`address=${addresses.b}\n`);
  });

  test('a reserved port is reached from the world and from the host itself', async () => {
    expect(await page('a')).toContain('berth-guest');
    expect(await host.do('httpGet', `http://${HOST_ADDRESS}:8080/`)).toContain('berth-guest');
  });

  test('a guest reaches the world and its DNS server, but no other guest and no service of the host', async () => {
    for (const target of [`${WORLD_ADDRESS}:80`, '10.213.0.1:53']) {
      await waitFor(`the guest to reach ${target}`, async () => (await canReach('a', target)) === 'open');
    }
    const forbidden = [
      `${addresses.b}:80`,
      `${HOST_ADDRESS}:${GUESTS.b.port}`,
      `${HOST_ADDRESS}:${SERVICE_PORT}`,
      `10.213.0.1:${SERVICE_PORT}`,
    ];
    const answers = await Promise.all(forbidden.map((target) => canReach('a', target)));
    expect(answers).toEqual(forbidden.map(() => 'closed'));
    expect(await host.do('tcpOpen', addresses.b, 80, OPEN_MILLISECONDS)).toBe(true);
  });

  test.each([
    ['the table flushed', ['nft', 'flush', 'ruleset'], 'The nftables rules were missing or changed'],
    ['the bridge set down', ['ip', 'link', 'set', 'berth0', 'down'], 'Device berth0 was down'],
    ['the bridge deleted', ['ip', 'link', 'delete', 'berth0'], 'Bridge berth0 was missing'],
    [
      'forwarding switched off',
      ['sysctl', '--quiet', '--write', 'net.ipv4.ip_forward=0'],
      'IPv4 forwarding was off',
    ],
  ])(
    '%s while Running: repaired, counted, reachable again within 5 s',
    async (_what, [file = '', ...args], repair) => {
      await isReachable();
      net.inHost(file, ...args);
      await isCutOff();
      const started = performance.now();
      const report = await host.do('check');
      await isReachable();
      expect(performance.now() - started).toBeLessThan(REPAIR_DEADLINE_MILLISECONDS);
      expect(report).toMatchObject({ healthy: true, faults: [] });
      expect(report.repaired.filter((one) => one === repair)).toHaveLength(1);
      expect(await host.do('check')).toMatchObject({ healthy: true, repaired: [] });
    },
  );

  test("another table dropping the guest's packets while Running: reported within 5 s, reachable once it's gone", async () => {
    const drop = `ip saddr ${addresses.a} drop`;
    net.inHost(
      'nft',
      `table inet other { chain theirs { type filter hook forward priority -10; ${drop}; }; }`,
    );
    await isCutOff();
    const started = performance.now();
    const report: NetworkReport = await host.do('check');
    expect(performance.now() - started).toBeLessThan(REPAIR_DEADLINE_MILLISECONDS);
    expect(report.repaired).toEqual([]);
    expect(report.machines['a']?.message).toContain('table inet other, chain theirs');
    expect(report.machines['b']?.healthy).toBe(true);
    net.inHost('nft', 'delete', 'table', 'inet', 'other');
    await isReachable();
    expect((await host.do('check')).machines['a']?.healthy).toBe(true);
  });
});
