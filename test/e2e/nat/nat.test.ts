/** The `nat` network in namespaces of its own, with guests that send exactly the frames they are told to. */
import { existsSync, mkdirSync, readdirSync, readFileSync, rmdirSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import { identify, isAlive } from '../../../agent/processes/process.ts';
import type { MachinePort } from '../../../api/v1alpha1/machine.ts';
import { waitFor } from '../../../hack/wait.ts';
import { FrameGuest, tapBackend } from '../../worlds/frameguest.ts';
import {
  CONNECTIONS_PER_GUEST,
  HOST_ADDRESS,
  NatWorld,
  OPEN_MILLISECONDS,
  type Worker,
  WORLD_ADDRESS,
  whyNotHere,
} from '../../worlds/nat.ts';
import { BROADCAST, DHCP, dhcp, udp } from '../../wires/frames.ts';
import { unless } from '../../support/unless.ts';

/** A guest is attached and its QEMU started meanwhile; who waits gets on as soon as there is an answer. */
const START_MILLISECONDS = 60_000;
/** Twice the usual cost of a check: the CPU time of seven starts of a program. */
const QUIET_STARTS = 14;
const SERVICE_PORT = 8000;
const ECHO_PORT = 7000;

const missing = whyNotHere();

function reservation(protocol: 'TCP' | 'UDP', hostPort: number, guestPort: number): MachinePort {
  return { protocol, hostPort, guestPort };
}

const DHCP_CLIENT = { address: '0.0.0.0', port: 68 };
const DHCP_SERVERS = { address: '255.255.255.255', port: 67 };
const MACS = { a: '52:54:00:00:00:0a', b: '52:54:00:00:00:0b' } as const;

describe('nat', unless(missing), () => {
  let net: NatWorld;
  let host: Worker;
  let world: Worker;
  const guests: FrameGuest[] = [];
  /** By machine, as last attached. */
  const taps = { a: '', b: '' };

  async function guest(name: 'a' | 'b', ports: MachinePort[], on = host): Promise<FrameGuest> {
    const macAddress = MACS[name];
    const attached = await on.do('attach', name, { macAddress, ports });
    const tap = attached.kind === 'tap' ? attached.device : '';
    taps[name] = tap;
    const one = await FrameGuest.start({
      spawn: (file, args) => net.spawnInHost(file, args),
      backend: tapBackend(tap),
      socketPath: join(net.directory, `${name}.sock`),
      macAddress,
      address: attached.address ?? '',
    });
    guests.push(one);
    return one;
  }

  /** Starts a guest, and waits until its hypervisor has opened the tap, which a check remembers. */
  async function heldGuest(name: 'a' | 'b'): Promise<void> {
    await guest(name, []);
    const isOpen = async (): Promise<boolean> =>
      await Promise.resolve(net.inHost('ip', 'link', 'show', taps[name]).includes('LOWER_UP'));
    await waitFor(`the tap of guest ${name} to be open`, isOpen);
  }

  async function gatewayOf(one: FrameGuest): Promise<string> {
    return await one.resolve('10.213.0.1', { deadlineMilliseconds: START_MILLISECONDS });
  }

  async function echoes(text: string): Promise<void> {
    await waitFor(
      'the guest to answer through its reserved port',
      async () => (await world.do('udpExchange', HOST_ADDRESS, 5353, text)) === text,
    );
  }

  beforeAll(async () => {
    net = await NatWorld.make('nat');
    host = net.worker('host');
    world = net.worker('world');
    await world.do('serveHttp', 80);
    await world.do('serveUdp', ECHO_PORT);
    await host.do('serveHttp', SERVICE_PORT);
    await host.do('serveUdp', ECHO_PORT);
    await host.do('open', net.natOptions());
  });

  afterEach(async () => {
    for (const one of guests.splice(0)) {
      await one.stop();
    }
    for (const uid of await host.do('attached')) {
      await host.do('detach', uid);
    }
  });

  afterAll(async () => {
    await net?.[Symbol.asyncDispose]();
  });

  test('a datagram goes out under the host address and in through a reserved port', async () => {
    const a = await guest('a', [reservation('UDP', 5353, 53)]);
    a.sendDatagram(await gatewayOf(a), { address: WORLD_ADDRESS, port: ECHO_PORT }, 'out');
    await waitFor('the answer from the world', () => a.received.includes('out'));
    expect(await world.do('heard')).toMatchObject({ out: HOST_ADDRESS });
    await echoes('in');
    const own = 'from the host itself';
    expect(await host.do('udpExchange', HOST_ADDRESS, 5353, own, OPEN_MILLISECONDS)).toBe(own);
  });

  test('a sender that tried a reserved port before it led anywhere is not left out', async () => {
    const sending = world.do('udpExchange', HOST_ADDRESS, 5353, 'early', START_MILLISECONDS);
    await waitFor('the first packet', () =>
      net.inHost('conntrack', '-L', '--proto', 'udp').includes('dport=5353'),
    );
    await guest('a', [reservation('UDP', 5353, 53)]);
    expect(await sending).toBe('early');
  });

  test('200 quiet checks repair nothing and cost little', async () => {
    await guest('a', [reservation('UDP', 5353, 53), reservation('TCP', 8080, 80)]);
    const { repaired, faults, starts } = await host.do('checks', 200);
    expect({ repaired, faults }).toEqual({ repaired: [], faults: [] });
    expect(starts).toBeLessThan(QUIET_STARTS);
  });

  test.each([
    ['all rules flushed', ['nft', 'flush', 'ruleset'], 'The nftables rules were missing or changed'],
    [
      'a rule of ours removed',
      ['nft', 'flush', 'chain', 'inet', 'berth', 'postrouting'],
      'The nftables rules were missing or changed',
    ],
    [
      'a reservation removed',
      ['nft', 'flush', 'map', 'inet', 'berth', 'reservations'],
      'The nftables rules were missing or changed',
    ],
    [
      'a rule added to ours',
      ['nft', 'insert', 'rule', 'inet', 'berth', 'forward', 'drop'],
      'The nftables rules were missing or changed',
    ],
    ['the bridge set down', ['ip', 'link', 'set', 'berth0', 'down'], 'Device berth0 was down'],
    ['the route gone', ['ip', 'route', 'flush', 'dev', 'berth0'], 'The route to the guests was missing'],
    ['the bridge deleted', ['ip', 'link', 'delete', 'berth0'], 'Bridge berth0 was missing'],
    [
      'the bridge without its address',
      ['ip', 'address', 'flush', 'dev', 'berth0'],
      'Device berth0 did not have the address 10.213.0.1/20',
    ],
    ['forwarding switched off', ['sysctl', '--write', 'net.ipv4.ip_forward=0'], 'IPv4 forwarding was off'],
    [
      'forwarding of the bridge switched off',
      ['sysctl', '--write', 'net.ipv4.conf.berth0.forwarding=0'],
      'IPv4 forwarding was off',
    ],
  ])('%s: repaired, counted once, guest reachable', async (_what, [file = '', ...args], repair) => {
    await guest('a', [reservation('UDP', 5353, 53)]);
    await echoes('before');
    net.inHost(file, ...args);
    const report = await host.do('check');
    expect(report).toMatchObject({ healthy: true, faults: [] });
    expect(report.repaired.filter((one) => one === repair)).toHaveLength(1);
    await echoes('after');
    expect(await host.do('check')).toMatchObject({ healthy: true, repaired: [] });
  });

  test('a tap taken off the bridge or no longer isolated is put back', async () => {
    await guest('a', [reservation('UDP', 5353, 53)]);
    const tap = taps.a;
    net.inHost('ip', 'link', 'set', tap, 'nomaster');
    expect((await host.do('check')).repaired).toContain(
      `Device ${tap} was not connected to berth0 as an isolated port`,
    );
    net.inHost('ip', 'link', 'set', tap, 'type', 'bridge_slave', 'isolated', 'off');
    expect((await host.do('check')).repaired).toEqual([
      `Device ${tap} was not connected to berth0 as an isolated port`,
    ]);
    expect(net.inHost('ip', '-details', 'link', 'show', tap)).toMatch(/ master berth0 [^]* isolated on /);
    await echoes('after');
  });

  test('a tap deleted under a running hypervisor is made again, and the machine named that must restart', async () => {
    await heldGuest('a');
    expect(await host.do('check')).toMatchObject({ healthy: true, repaired: [] });
    const tap = taps.a;
    net.inHost('ip', 'link', 'delete', tap);
    const report = await host.do('check');
    expect(report.repaired).toContain(`Tap ${tap} was missing`);
    expect(net.inHost('ip', '-details', 'link', 'show', tap)).toContain(' tun type tap ');
    expect(report.machines['a']).toMatchObject({
      healthy: false,
      message: expect.stringContaining('restart') as string,
    });
    expect(report.healthy).toBe(true);
  });

  test('a tap that a device of others replaced for a while is made again, and the machine named that must restart', async () => {
    await heldGuest('a');
    await host.do('check');
    net.inHost('ip', 'link', 'delete', taps.a);
    net.inHost('ip', 'link', 'add', taps.a, 'type', 'veth', 'peer', 'name', 'theirs');
    const replaced = `Device ${taps.a} is of kind "veth"`;
    expect((await host.do('check')).machines['a']?.message).toContain(replaced);
    net.inHost('ip', 'link', 'delete', taps.a);
    await host.do('attach', 'b', { macAddress: MACS.b, ports: [] });
    expect(net.inHost('ip', '-details', 'link', 'show', taps.a)).toContain(' tun type tap ');
    const report = await host.do('check');
    expect(report).toMatchObject({ healthy: true, repaired: [] });
    expect(report.machines['a']).toMatchObject({
      healthy: false,
      message: expect.stringContaining('restart') as string,
    });
  });

  test('connections of an earlier owner of an address are forgotten, also if the first attach fails', async () => {
    const options = { macAddress: MACS.a, ports: [] };
    const attached = await host.do('attach', 'a', options);
    const tap = attached.kind === 'tap' ? attached.device : '';
    await host.do('detach', 'a');
    net.inHost('ip', 'link', 'add', tap, 'type', 'veth', 'peer', 'name', 'theirs');
    await expect(host.do('attach', 'a', options)).rejects.toMatchObject({ reason: 'NetworkUnavailable' });
    const address = (await host.do('address', 'a')) ?? '';
    const ends = ['--src', address, '--dst', WORLD_ADDRESS, '--sport', '1000', '--dport', '2000'];
    net.inHost('conntrack', '-I', '--proto', 'udp', ...ends, '--timeout', '600');
    net.inHost('ip', 'link', 'delete', tap);
    await host.do('attach', 'a', options);
    expect(net.inHost('conntrack', '-L')).not.toContain(address);
  });

  test('connections of a guest still count after another machine has come and gone', async () => {
    const a = await guest('a', []);
    const gateway = await gatewayOf(a);
    const { address } = await host.do('attach', 'a', { macAddress: MACS.a, ports: [] });
    let port = 1024;
    const flood = async (): Promise<void> => {
      for (const last = port + 2 * CONNECTIONS_PER_GUEST; port < last; port += 1) {
        a.sendDatagram(gateway, { address: WORLD_ADDRESS, port: ECHO_PORT }, 'a flow', { port });
      }
      await waitFor('the refused packets to be counted', async () => {
        const report = await host.do('check');
        expect(report).toMatchObject({ healthy: true, repaired: [] });
        return (report.refusedConnections['a'] ?? 0) > 0;
      });
    };
    await flood();
    await host.do('attach', 'b', { macAddress: MACS.b, ports: [] });
    await host.do('detach', 'b');
    await flood();
    const tracked = net
      .inHost('conntrack', '-L', '--orig-src', address ?? '')
      .trim()
      .split('\n');
    expect(tracked.length).toBeLessThanOrEqual(CONNECTIONS_PER_GUEST);
  });

  test('a detach that failed is completed by the next one', async () => {
    const { address = '' } = await host.do('attach', 'a', { macAddress: MACS.a, ports: [] });
    const ends = ['--src', address, '--dst', WORLD_ADDRESS, '--sport', '1000', '--dport', '2000'];
    net.inHost('conntrack', '-I', '--proto', 'udp', ...ends, '--timeout', '600');
    const list = join(net.directory, 'run/dhcp-hosts');
    const saved = join(net.directory, 'network/attachments.json');
    rmSync(list);
    mkdirSync(list);
    await expect(host.do('detach', 'a')).rejects.toThrow('EISDIR');
    expect(readFileSync(saved, 'utf8')).toContain(address);
    rmdirSync(list);
    await host.do('detach', 'a');
    expect(net.inHost('conntrack', '-L')).not.toContain(address);
    expect(readFileSync(saved, 'utf8')).not.toContain(address);
  });

  test('a dead dnsmasq is started again', async () => {
    const pid = Number(readFileSync(join(net.directory, 'run/dnsmasq.pid'), 'utf8'));
    process.kill(pid, 'SIGKILL');
    const report = await waitFor('the repair', async () => {
      const one = await host.do('check');
      return one.repaired.length > 0 && one;
    });
    expect(report).toMatchObject({ healthy: true, repaired: ['The program dnsmasq was not running'] });
    const next = Number(readFileSync(join(net.directory, 'run/dnsmasq.pid'), 'utf8'));
    expect(next).not.toBe(pid);
    expect(await identify(next)).toBeDefined();
  });

  test('a dnsmasq whose pid file and folder somebody has removed is replaced', async () => {
    const earlier = await identify(Number(readFileSync(join(net.directory, 'run/dnsmasq.pid'), 'utf8')));
    rmSync(join(net.directory, 'run'), { recursive: true });
    const report = await waitFor('the repair', async () => {
      const one = await host.do('check');
      return one.repaired.length > 0 && one;
    });
    expect(report).toMatchObject({ healthy: true, faults: [] });
    expect(report.repaired).toContain('The program dnsmasq was not running');
    expect(earlier !== undefined && (await isAlive(earlier))).toBe(false);
  });

  test('a machine gets by DHCP the address of one that is gone, whose lease has not ended', async () => {
    for (const macAddress of [MACS.a, MACS.b]) {
      const { address = '', ...card } = await host.do('attach', 'a', { macAddress, ports: [] });
      const backend = tapBackend(card.kind === 'tap' ? card.device : '');
      const spawn = (file: string, args: string[]) => net.spawnInHost(file, args);
      const socketPath = join(net.directory, 'a.sock');
      const one = await FrameGuest.start({ spawn, backend, socketPath, macAddress, address });
      guests.push(one);
      const request = dhcp({ operation: 1, kind: DHCP.request, card: macAddress, requested: address });
      await waitFor(`the lease of ${macAddress}`, () => {
        one.sendPacket(BROADCAST, udp(DHCP_CLIENT, DHCP_SERVERS, request), macAddress);
        return one.frames.some((frame) => frame.includes(Buffer.from([53, 1, DHCP.acknowledge])));
      });
      await one.stop();
      rmSync(socketPath, { force: true });
      await host.do('detach', 'a');
    }
  });

  test('a port that a service of the host or another machine holds is PortTaken', async () => {
    const taken = { macAddress: MACS.a, ports: [reservation('TCP', SERVICE_PORT, 80)] };
    await expect(host.do('attach', 'a', taken)).rejects.toMatchObject({ reason: 'PortTaken' });
    expect(await host.do('attached')).toEqual([]);
    await guest('b', [reservation('UDP', 5353, 53)]);
    const other = { macAddress: MACS.a, ports: [reservation('UDP', 5353, 53)] };
    await expect(host.do('attach', 'a', other)).rejects.toMatchObject({ reason: 'PortTaken' });
  });

  test('a port that a host keeps from machines is PortNotReservable', async () => {
    const denied = { macAddress: MACS.a, ports: [reservation('TCP', 10_250, 80)] };
    await expect(host.do('attach', 'a', denied)).rejects.toMatchObject({
      reason: 'PortNotReservable',
      message: expect.stringContaining('ports.denied') as string,
    });
    expect(await host.do('attached')).toEqual([]);
  });

  test('a port that a service of the host takes later is told and left to it, and led to the guest again once it is free', async () => {
    await guest('a', [reservation('UDP', 5353, 53), reservation('TCP', 8080, 80)]);
    await echoes('to the guest');
    const service = net.worker('host');
    await service.do('serveUdp', 5353);
    await service.do('serveHttp', 8080);
    const reported = await waitFor('the taken ports to be told', async () => {
      const report = await host.do('check');
      const { healthy, message } = report.machines['a'] ?? {};
      return healthy === false && message?.includes('5353/UDP') && report;
    });
    expect(reported.machines['a']?.message).toContain('Port 8080/TCP on 192.0.2.1 is in use');
    expect(reported.healthy).toBe(true);
    // The world's own address: who answers is the service, not the guest.
    expect(await world.do('httpGet', `http://${HOST_ADDRESS}:8080/`)).toBe(WORLD_ADDRESS);
    const text = 'to the service';
    expect(await world.do('udpExchange', HOST_ADDRESS, 5353, text, OPEN_MILLISECONDS)).toBe(text);
    expect(await service.do('heard')).toMatchObject({ 'to the service': WORLD_ADDRESS });
    expect((await host.do('check')).repaired).toEqual([]);
    await service.kill();
    expect(await host.do('check')).toMatchObject({ machines: { a: { healthy: true } } });
    await echoes('to the guest again');
  });

  test('a device of others with the name of the bridge is told and left alone, while the rest is repaired', async () => {
    const reported = 'Device berth0 is of kind "veth"';
    const refused = { reason: 'NetworkUnavailable', message: expect.stringContaining(reported) as string };
    await guest('a', []);
    net.inHost('ip', 'link', 'delete', 'berth0');
    net.inHost('ip', 'link', 'add', 'berth0', 'type', 'veth', 'peer', 'name', 'theirs');
    net.inHost('nft', 'flush', 'ruleset');
    const report = await host.do('check');
    expect(report).toMatchObject({
      healthy: false,
      repaired: ['The nftables rules were missing or changed'],
    });
    expect(report.faults[0]).toContain(reported);
    await expect(host.do('attach', 'b', { macAddress: MACS.b, ports: [] })).rejects.toMatchObject(refused);
    for (const name of ['a', 'b']) {
      await host.do('detach', name);
    }
    expect(net.inHost('ip', '-brief', 'link')).not.toContain(taps.a);
    await host.do('close');
    expect(net.inHost('ip', '-brief', 'link')).toContain('berth0@theirs');
    await expect(host.do('open', net.natOptions())).rejects.toMatchObject(refused);
    net.inHost('ip', 'link', 'delete', 'berth0');
    await host.do('open', net.natOptions());
    expect(await host.do('check')).toMatchObject({ healthy: true, faults: [] });
  });

  test('machines keep network and address over the death of the agent', async () => {
    await guest('a', [reservation('UDP', 5353, 53)]);
    const address = await host.do('address', 'a');
    await host.kill();
    await echoes('without an agent');
    host = net.worker('host');
    await host.do('open', net.natOptions());
    expect(await host.do('attached')).toEqual(['a']);
    expect(await host.do('address', 'a')).toBe(address);
    expect(await host.do('check')).toMatchObject({ healthy: true, repaired: [], faults: [] });
    await echoes('with the next agent');
  });

  test('tables with a former name are removed', async () => {
    for (const table of ['former', 'berth']) {
      await host.kill();
      host = net.worker('host');
      await host.do('open', { ...net.natOptions(), table });
      expect(net.inHost('nft', 'list', 'tables').match(/\S+$/gm)).toEqual([table, table]);
    }
  });

  test('nothing is left of a detached machine', async () => {
    const before = [net.inHost('ip', '-brief', 'link'), net.inHost('nft', 'list', 'ruleset')];
    const a = await guest('a', [reservation('UDP', 5353, 53)]);
    await echoes('tracked');
    a.sendDatagram(await gatewayOf(a), { address: WORLD_ADDRESS, port: ECHO_PORT }, 'counted');
    await waitFor('the answer from the world', () => a.received.includes('counted'));
    await a.stop();
    const address = (await host.do('address', 'a')) ?? '';
    await host.do('detach', 'a');
    expect([net.inHost('ip', '-brief', 'link'), net.inHost('nft', 'list', 'ruleset')]).toEqual(before);
    expect(net.inHost('conntrack', '-L')).not.toContain(address);
    expect(readFileSync(join(net.directory, 'run/dhcp-hosts'), 'utf8')).toMatch(/^\S+,10\.213\.0\.2\n$/);
  });

  test('two networks on one host do not meet, and the end of one is nothing to the other', async () => {
    const other = net.worker('host');
    const { hostAddress: _every, ...rest } = net.natOptions();
    await other.do('open', {
      ...rest,
      directory: join(net.directory, 'other'),
      runtimeDirectory: join(net.directory, 'other-run'),
      bridge: 'berth1',
      table: 'berth1',
      subnet: '10.214.0.0/20',
      probeSubnet: '198.18.214.0/24',
    });
    const a = await guest('a', []);
    const b = await guest('b', [reservation('UDP', 5353, 53)], other);
    expect(await other.do('check')).toMatchObject({ healthy: true, repaired: [] });
    const addressOfB = (await other.do('address', 'b')) ?? '';
    a.sendDatagram(await gatewayOf(a), { address: addressOfB, port: 53 }, 'from the other network');
    await b.resolve('10.214.0.1', { deadlineMilliseconds: START_MILLISECONDS });
    await echoes('to every address of the host');
    expect(new Set(b.received)).toEqual(new Set(['to every address of the host']));
    await other.do('detach', 'b');
    await other.do('close');
    expect(await host.do('check')).toMatchObject({ healthy: true, repaired: [] });
    expect(net.inHost('ip', '-brief', 'link')).not.toContain('berth1');
  });

  test('nothing is left when it is closed without machines but forwarding, which others may need by now', async () => {
    await guest('a', [reservation('UDP', 5353, 53)]);
    const dnsmasq = await identify(Number(readFileSync(join(net.directory, 'run/dnsmasq.pid'), 'utf8')));
    await host.do('close');
    expect(net.inHost('nft', 'list', 'tables')).toContain('berth');
    await host.do('open', net.natOptions());
    await host.do('detach', 'a');
    await host.do('close');
    expect(net.inHost('ip', '-brief', 'link').match(/^\S+/gm)).toEqual([
      'lo',
      expect.stringMatching(/^uplink@/),
    ]);
    expect(net.inHost('nft', 'list', 'ruleset')).toBe('');
    expect(existsSync(join(net.directory, 'run'))).toBe(false);
    expect(readdirSync(join(net.directory, 'network'))).toEqual([]);
    expect(net.inHost('cat', '/proc/sys/net/ipv4/ip_forward').trim()).toBe('1');
    await waitFor('dnsmasq to have ended', async () => dnsmasq !== undefined && !(await isAlive(dnsmasq)));
    await host.do('open', net.natOptions());
  });
});
