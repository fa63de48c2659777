/** Network namespaces of programs under `nat`: who reaches the exposed port, what the program reaches, and what is repaired. */
import { execFileSync } from 'node:child_process';
import { existsSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { basename, dirname, join } from 'node:path';
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import { chooseAddress, layoutOf } from '../../../agent/network/nat/layout.ts';
import type { NatOptions } from '../../../agent/network/nat/layout.ts';
import type { NamespaceNetwork } from '../../../agent/network/network.ts';
import type { MachinePort } from '../../../api/v1alpha1/machine.ts';
import { unless } from '../../support/unless.ts';
import {
  CONNECTIONS_PER_GUEST,
  HOST_ADDRESS,
  NatWorld,
  OPEN_MILLISECONDS,
  type Worker,
  WORLD_ADDRESS,
  whyNotHere,
} from '../../worlds/nat.ts';
import { StackGuest } from '../../worlds/stackguest.ts';

const EXPOSED = 5555;
/** Port on the program's loopback that nobody else may reach, as an emulator's console. */
const CONSOLE = 5554;
const HOST_PORT = 5560;
const HOST_SERVICE = 8000;
const METADATA = '169.254.169.254';
/** Address in a network of the cluster, which guests and programs may not reach. */
const CLUSTER_ADDRESS = '10.244.0.5';
/** Address that rules of another program translate to the address of the cluster, as those of a Service do. */
const TRANSLATED_ADDRESS = '203.0.113.80';
/** Port of the host that rules of another program lead elsewhere, as those of a container. */
const PUBLISHED_PORT = 8090;
const ECHO_PORT = 7000;
const GATEWAY = '10.213.0.1';
const LINK_GATEWAY = '169.254.213.1';
const MACS = { a: '52:54:00:00:00:0a', b: '52:54:00:00:00:0b' } as const;
const NOBODY = 65_534;
const ON_HOST: MachinePort = { protocol: 'TCP', hostPort: HOST_PORT, guestPort: EXPOSED };

/** Three times the usual cost of a check, in starts of a program: 6 for the network, and 6 for each namespace. */
const QUIET_STARTS = 60;

const missing = whyNotHere();

describe('network namespaces of programs', unless(missing), () => {
  let net: NatWorld;
  let host: Worker;
  let world: Worker;
  let guests: { a: StackGuest; b: StackGuest };
  const addresses = { a: '', b: '' };

  /** Attaches a program's namespace. Its worker listens on the loopback address, on the exposed port and another one. */
  async function program(
    uid: string,
    options: { peer?: string; ports?: MachinePort[] } = {},
  ): Promise<NamespaceNetwork & { worker: Worker }> {
    const { peer, ports = [] } = options;
    const attached = await host.do('attachNamespace', uid, { exposedPort: EXPOSED, peer, ports });
    const worker = net.workerIn(attached.path);
    for (const port of [EXPOSED, CONSOLE]) {
      await worker.do('serveHttp', port, '127.0.0.1');
    }
    return { ...attached, worker };
  }

  function inside(path: string, ...command: string[]): string {
    return execFileSync('nsenter', [`--net=${path}`, ...command], { encoding: 'utf8', stdio: 'pipe' });
  }

  /** Returns the names of those targets that are reached. */
  async function reached(targets: Record<string, Promise<unknown>>): Promise<string[]> {
    const each = Object.entries(targets).map(async ([name, target]) => {
      const answer = await target.catch(() => undefined);
      return answer === undefined || answer === false ? [] : [name];
    });
    return (await Promise.all(each)).flat();
  }

  async function startGuest(name: 'a' | 'b'): Promise<StackGuest> {
    const macAddress = MACS[name];
    const attached = await host.do('attach', name, { macAddress, ports: [] });
    const tap = attached.kind === 'tap' ? attached.device : '';
    addresses[name] = attached.address ?? '';
    return await StackGuest.start({ net, name, tap, macAddress, address: addresses[name], gateway: GATEWAY });
  }

  /** Guests and programs may not reach the networks for tests of devices, in which the namespaces are. Peers still reach their programs. */
  function natOptions(): NatOptions {
    const usual = net.natOptions();
    return { ...usual, forbidden: [...usual.forbidden, '198.18.0.0/15'] };
  }

  beforeAll(async () => {
    net = await NatWorld.make('natn');
    host = net.worker('host');
    world = net.worker('world');
    // The world knows the way to the namespaces, and has an address of the cluster and one of a cloud's metadata service.
    net.inWorld('ip', 'route', 'add', '198.18.213.0/24', 'via', HOST_ADDRESS);
    for (const address of [METADATA, CLUSTER_ADDRESS]) {
      net.inWorld('ip', 'address', 'add', `${address}/32`, 'dev', 'uplink');
    }
    net.inHost('ip', 'route', 'add', 'default', 'via', WORLD_ADDRESS);
    await world.do('serveHttp', 80);
    await world.do('serveUdp', ECHO_PORT);
    await host.do('serveHttp', HOST_SERVICE);
    await host.do('open', natOptions());
    guests = { a: await startGuest('a'), b: await startGuest('b') };
  });

  async function detachPrograms(): Promise<void> {
    for (const uid of await host.do('attached')) {
      if (uid !== 'a' && uid !== 'b') {
        await host.do('detach', uid);
      }
    }
  }

  afterAll(async () => {
    for (const guest of Object.values(guests ?? {})) {
      await guest[Symbol.asyncDispose]();
    }
    await net?.[Symbol.asyncDispose]();
  });

  describe('reach and life', () => {
    afterEach(detachPrograms);

    test('its peer, root of the host and its host port reach the exposed port; nobody else does, and nobody the console', async () => {
      const { address, worker } = await program('emulator', { peer: 'a', ports: [ON_HOST] });
      const other = await program('other', { peer: 'b' });
      const url = `http://${address}:${EXPOSED}/`;
      // The answer is the sender's address as the program sees it.
      expect(await guests.a.worker.do('httpGet', url)).toBe(addresses.a);
      expect(await host.do('httpGet', url)).toBe(LINK_GATEWAY);
      expect(await world.do('httpGet', `http://${HOST_ADDRESS}:${HOST_PORT}/`)).toBe(WORLD_ADDRESS);
      const asNobody = (port: number): Promise<unknown> => host.do('tcpOpenAs', NOBODY, address, port);
      const refused = await reached({
        'another guest': guests.b.worker.do('tcpOpen', address, EXPOSED),
        'another namespace': other.worker.do('tcpOpen', address, EXPOSED),
        'another namespace by the host port': other.worker.do('tcpOpen', HOST_ADDRESS, HOST_PORT),
        'another guest by the host port': guests.b.worker.do('tcpOpen', HOST_ADDRESS, HOST_PORT),
        'an unprivileged user': asNobody(EXPOSED),
        'a computer beyond the host': world.do('tcpOpen', address, EXPOSED),
        'itself by the host port': worker.do('tcpOpen', HOST_ADDRESS, HOST_PORT),
        'the console from the peer': guests.a.worker.do('tcpOpen', address, CONSOLE),
        'the console from root': host.do('tcpOpen', address, CONSOLE),
        'the console from a user': asNobody(CONSOLE),
        'the console from beyond': world.do('tcpOpen', address, CONSOLE),
      });
      expect(refused).toEqual([]);
      expect(await host.do('tcpOpenAs', NOBODY, HOST_ADDRESS, HOST_PORT, OPEN_MILLISECONDS)).toBe(true);
    });

    test('a program reaches the outside and DNS as a guest does, and nothing else', async () => {
      const { path, dnsServer, worker } = await program('emulator', { peer: 'a' });
      const other = await program('other');
      await guests.a.worker.do('serveUdp', ECHO_PORT);
      const service = `ip daddr ${TRANSLATED_ADDRESS} dnat to ${CLUSTER_ADDRESS}`;
      const published = `ip daddr ${HOST_ADDRESS} tcp dport ${PUBLISHED_PORT} dnat to ${WORLD_ADDRESS}:80`;
      net.inHost(
        'nft',
        `table ip other { chain services { type nat hook prerouting priority -110; ${service}; ${published}; }; }`,
      );
      expect(await worker.do('httpGet', `http://${WORLD_ADDRESS}/`)).toBe(HOST_ADDRESS);
      expect(await worker.do('lookUp', dnsServer, 'probe.berth.internal')).toEqual([GATEWAY]);
      expect(await worker.do('tcpOpen', dnsServer, 53, OPEN_MILLISECONDS)).toBe(true);
      const refused = await reached({
        'a service of the host': worker.do('tcpOpen', HOST_ADDRESS, HOST_SERVICE),
        'a service of the host by the gateway': worker.do('tcpOpen', GATEWAY, HOST_SERVICE),
        'a service of the host by the link': worker.do('tcpOpen', LINK_GATEWAY, HOST_SERVICE),
        'DNS by the link': worker.do('tcpOpen', LINK_GATEWAY, 53),
        'the port of the metadata service': worker.do('tcpOpen', GATEWAY, 254),
        'the metadata service': worker.do('tcpOpen', METADATA, 80),
        'the cluster': worker.do('tcpOpen', CLUSTER_ADDRESS, 80),
        'its own peer': worker.do('udpExchange', addresses.a, ECHO_PORT, 'to the peer'),
        'another namespace': worker.do('tcpOpen', other.address, EXPOSED),
        'the cluster by an address that others translate': worker.do('tcpOpen', TRANSLATED_ADDRESS, 80),
        'a container of the host by its published port': worker.do('tcpOpen', HOST_ADDRESS, PUBLISHED_PORT),
        'the probe': worker.do('udpExchange', '198.18.213.2', 20_000, 'to the probe'),
      });
      expect(refused).toEqual([]);
      net.inHost('nft', 'delete', 'table', 'ip', 'other');
      // As root in its namespace the program could lie about its address, which QEMU or an emulator cannot.
      const lies = [addresses.a, other.address, '203.0.113.7'];
      for (const lie of lies) {
        inside(path, 'ip', 'address', 'add', `${lie}/32`, 'dev', 'lo');
        await worker.do('udpFlood', WORLD_ADDRESS, { first: ECHO_PORT, last: ECHO_PORT }, lie);
      }
      const truth = worker.do('udpExchange', WORLD_ADDRESS, ECHO_PORT, 'true', OPEN_MILLISECONDS);
      expect(await truth).toBe('true');
      expect(await world.do('heard')).toEqual({ true: HOST_ADDRESS });
    });

    test('quiet checks with two namespaces repair nothing', async () => {
      await program('emulator', { peer: 'a', ports: [ON_HOST] });
      await program('other');
      const { repaired, faults, starts } = await host.do('checks', 5);
      expect({ repaired, faults }).toEqual({ repaired: [], faults: [] });
      expect(starts).toBeLessThan(QUIET_STARTS);
    });

    test('a namespace that was removed under its program is made again, and the program named that must start again', async () => {
      const { path } = await program('emulator');
      execFileSync('umount', [path]);
      const reported = { healthy: false, message: expect.stringContaining('until its next start') as string };
      const report = await host.do('check');
      expect(report.repaired).toContain(`Network namespace ${basename(path)} was missing`);
      expect(report).toMatchObject({ healthy: true, machines: { emulator: reported, a: { healthy: true } } });
      await host.do('attachNamespace', 'emulator', {
        exposedPort: EXPOSED,
        peer: undefined,
        ports: [],
        running: true,
      });
      expect((await host.do('check')).machines['emulator']).toMatchObject(reported);
      const { address } = await program('emulator');
      expect(await host.do('check')).toMatchObject({
        repaired: [],
        machines: { emulator: { healthy: true } },
      });
      expect(await host.do('tcpOpen', address, EXPOSED, OPEN_MILLISECONDS)).toBe(true);
    });

    test('leftovers of unknown programs are removed', async () => {
      const { path } = await program('emulator');
      const device = `${basename(path).slice(0, 6)}00000000`;
      const left = join(dirname(path), device);
      writeFileSync(left, '');
      execFileSync('unshare', [`--net=${left}`, 'true']);
      net.inHost('ip', 'link', 'add', device, 'type', 'veth', 'peer', 'name', 'theirs');
      const { repaired } = await host.do('check');
      expect(repaired.toSorted()).toEqual([
        `Device ${device} was left over`,
        `Network namespace ${device} was left over`,
      ]);
      expect(readdirSync(dirname(path))).toEqual([basename(path)]);
      expect(net.inHost('ip', '-brief', 'link')).not.toContain(device);
    });

    test('a device of others with the name of the connection is the fault of its program alone', async () => {
      const { path } = await program('emulator');
      const device = basename(path);
      await host.do('detach', 'emulator');
      net.inHost('ip', 'link', 'add', device, 'type', 'bridge');
      const reported = expect.stringContaining(`Device ${device} is of kind "bridge"`) as string;
      const options = { exposedPort: EXPOSED, peer: undefined, ports: [] };
      await expect(host.do('attachNamespace', 'emulator', options)).rejects.toMatchObject({
        message: reported,
      });
      const report = await host.do('check');
      expect(report).toMatchObject({
        healthy: true,
        repaired: [],
        machines: { emulator: { message: reported }, a: { healthy: true } },
      });
      net.inHost('ip', 'link', 'delete', device);
    });

    test('a program that opens connections without end is limited and told, and its peer still reaches it', async () => {
      const { address, worker } = await program('emulator', { peer: 'a' });
      await host.do('check');
      await worker.do('udpFlood', WORLD_ADDRESS, { first: 10_000, last: 10_000 + 3 * CONNECTIONS_PER_GUEST });
      const { refusedConnections } = await host.do('check');
      expect(refusedConnections['emulator']).toBeGreaterThan(CONNECTIONS_PER_GUEST);
      // The connections still count after the rules have changed.
      await program('another');
      await worker.do('udpFlood', WORLD_ADDRESS, { first: 20_000, last: 20_000 + 3 * CONNECTIONS_PER_GUEST });
      const tracked = net.inHost('conntrack', '-L', '--orig-src', address).trim().split('\n');
      expect(tracked.length).toBeLessThanOrEqual(CONNECTIONS_PER_GUEST);
      // Entries in the namespace itself are not limited by the rules of the host, so that there are none.
      expect(
        net
          .inHost(
            'nsenter',
            `--net=${net.directory}/network/namespaces/${readdirSync(join(net.directory, 'network/namespaces'))[0]}`,
            'conntrack',
            '-C',
          )
          .trim(),
      ).toBe('0');
      expect(await guests.a.worker.do('tcpOpen', address, EXPOSED, OPEN_MILLISECONDS)).toBe(true);
    });

    test('programs keep their network over the death of the agent, and the next agent knows them', async () => {
      const { path, address } = await program('emulator', { peer: 'a', ports: [ON_HOST] });
      await host.kill();
      const url = `http://${HOST_ADDRESS}:${HOST_PORT}/`;
      expect(await world.do('httpGet', url)).toBe(WORLD_ADDRESS);
      host = net.worker('host');
      await host.do('open', natOptions());
      expect((await host.do('attached')).toSorted()).toEqual(['a', 'b', 'emulator']);
      expect(await host.do('address', 'emulator')).toBe(address);
      const options = { exposedPort: EXPOSED, peer: 'a', ports: [ON_HOST], running: true };
      expect(await host.do('attachNamespace', 'emulator', options)).toMatchObject({ path, address });
      expect(await host.do('check')).toMatchObject({ healthy: true, repaired: [], faults: [] });
      expect(await world.do('httpGet', url)).toBe(WORLD_ADDRESS);
      await expect(host.do('attachNamespace', 'other', { ...options, running: false })).rejects.toMatchObject(
        {
          reason: 'PortTaken',
        },
      );
    });

    test('nothing is left of a detached program', async () => {
      const seen = (): unknown => [
        net.inHost('ip', '-brief', 'link'),
        net.inHost('ip', 'route'),
        net.inHost('nft', 'list', 'ruleset'),
        readdirSync(join(net.directory, 'network')).filter((one) => one !== 'namespaces'),
      ];
      const before = seen();
      const { path, address, worker } = await program('emulator', { peer: 'a', ports: [ON_HOST] });
      expect(await world.do('httpGet', `http://${HOST_ADDRESS}:${HOST_PORT}/`)).toBe(WORLD_ADDRESS);
      expect(await worker.do('httpGet', `http://${WORLD_ADDRESS}/`)).toBe(HOST_ADDRESS);
      await worker.kill();
      await host.do('detach', 'emulator');
      expect(seen()).toEqual(before);
      expect(existsSync(path)).toBe(false);
      expect(net.inHost('conntrack', '-L')).not.toContain(address);
      expect(readFileSync('/proc/self/mountinfo', 'utf8')).not.toContain(path);
    });

    // The last test with guest b, which has ended then.
    test('the next owner of the address of a peer does not reach the program, also not through a connection of the peer', async () => {
      const { address } = await program('emulator', { peer: 'b' });
      const url = `http://${address}:${EXPOSED}/`;
      expect(await guests.b.worker.do('httpGet', url)).toBe(addresses.b);
      const layout = layoutOf(natOptions());
      const isHeir = (uid: string): boolean => chooseAddress(layout, uid, new Set()) === addresses.b;
      let heir = 'heir';
      for (let number = 0; !isHeir(heir); number++) {
        heir = `heir-${number}`;
      }
      await guests.b[Symbol.asyncDispose]();
      await host.do('detach', 'b');
      expect(net.inHost('conntrack', '-L')).not.toContain(addresses.b);
      const attached = await host.do('attach', heir, { macAddress: MACS.b, ports: [] });
      expect(attached.address).toBe(addresses.b);
      const tap = attached.kind === 'tap' ? attached.device : '';
      const card = { macAddress: MACS.b, address: addresses.b, gateway: GATEWAY };
      const guest = await StackGuest.start({ net, name: 'heir', tap, ...card });
      expect(await guest.worker.do('lookUp', GATEWAY, 'probe.berth.internal')).toEqual([GATEWAY]);
      expect(await guest.worker.do('tcpOpen', address, EXPOSED)).toBe(false);
      await guest[Symbol.asyncDispose]();
      await host.do('detach', heir);
    });
  });

  describe('repairs', () => {
    let repaired: NamespaceNetwork;

    beforeAll(async () => {
      repaired = await program('emulator', { peer: 'a' });
    });

    afterAll(async () => {
      await host?.do('detach', 'emulator');
    });

    test.each([
      [
        'the device on the host',
        'outside',
        ['ip', 'link', 'delete', 'DEVICE'],
        'Network namespace DEVICE was not connected to this host',
      ],
      [
        'the device in the namespace',
        'inside',
        ['ip', 'link', 'delete', 'DEVICE'],
        'Network namespace DEVICE was not connected to this host',
      ],
      [
        'the address in the namespace',
        'inside',
        ['ip', 'address', 'flush', 'dev', 'DEVICE'],
        'Network namespace DEVICE did not have the address ADDRESS, its routes',
      ],
      [
        'the route in the namespace',
        'inside',
        ['ip', 'route', 'flush', 'default'],
        'Network namespace DEVICE did not have its routes',
      ],
      [
        'the device in the namespace up',
        'inside',
        ['ip', 'link', 'set', 'DEVICE', 'down'],
        'Network namespace DEVICE did not have an active device, its routes',
      ],
      [
        'the loopback device up',
        'inside',
        ['ip', 'link', 'set', 'lo', 'down'],
        'Network namespace DEVICE did not have an active loopback device',
      ],
      [
        'the way to the loopback address',
        'inside',
        ['sysctl', '--write', 'net.ipv4.conf.DEVICE.route_localnet=0'],
        'Network namespace DEVICE did not have the forwarding to its loopback address',
      ],
      [
        'the rules in the namespace',
        'inside',
        ['nft', 'flush', 'ruleset'],
        'The nftables rules in network namespace DEVICE were missing or changed',
      ],
      [
        'the rules on the host',
        'outside',
        ['nft', 'delete', 'table', 'inet', 'berth-namespaces'],
        'The nftables rules were missing or changed',
      ],
      [
        'the route on the host',
        'outside',
        ['ip', 'route', 'delete', 'ADDRESS'],
        'Device DEVICE did not have the route to ADDRESS',
      ],
      [
        'the address on the host',
        'outside',
        ['ip', 'address', 'flush', 'dev', 'DEVICE'],
        `Device DEVICE did not have the address ${LINK_GATEWAY}/32, the route to ADDRESS`,
      ],
      [
        'the device on the host up',
        'outside',
        ['ip', 'link', 'set', 'DEVICE', 'down'],
        'Device DEVICE did not have the state "up", the route to ADDRESS',
      ],
    ])('without %s: repaired, counted once, reachable', async (_what, where, command, repair) => {
      const { path, address } = repaired;
      const device = basename(path);
      const named = (text: string): string =>
        text.replaceAll('DEVICE', device).replaceAll('ADDRESS', address);
      const [file = '', ...args] = command.map(named);
      if (where === 'inside') {
        inside(path, file, ...args);
      } else {
        net.inHost(file, ...args);
      }
      const report = await host.do('check');
      expect(report).toMatchObject({ healthy: true, faults: [] });
      expect(report.repaired.filter((one) => one === named(repair))).toHaveLength(1);
      expect(await guests.a.worker.do('httpGet', `http://${address}:${EXPOSED}/`)).toBe(addresses.a);
      expect(await host.do('check')).toMatchObject({ healthy: true, repaired: [] });
    });
  });
});
