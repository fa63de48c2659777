/** Attacks of a guest in the `nat` network on its host, its neighbours and the cluster. Only DHCP, DNS and ping may work. */
import { join } from 'node:path';
import * as fc from 'fast-check';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { FrameGuest, tapBackend } from '../worlds/frameguest.ts';
import {
  CONNECTIONS_PER_GUEST,
  HOST_ADDRESS,
  NatWorld,
  type Worker,
  WORLD_ADDRESS,
  whyNotHere,
} from '../worlds/nat.ts';
import {
  arp,
  BROADCAST,
  DHCP,
  dhcp,
  ETHERTYPE,
  ethernet,
  ipv4,
  ipv6,
  macText,
  NO_CARD,
  ping,
  PROTOCOL,
  tagged,
  tcpSyn,
  udp,
} from '../wires/frames.ts';
import { waitFor } from '../../hack/wait.ts';
import { HOSTILE_SEED, hostileRuns, scaled, tried } from './support/attempts.ts';
import { ipv6Attempts } from '../wires/ipv6.ts';
import { arrived, forgetArrived, icmpBesidePings, strangeFrames, watchGuests } from './support/watch.ts';
import { unless } from '../support/unless.ts';

const ECHO_PORT = 7000;
const RESERVED_PORT = 5353;
const GATEWAY = '10.213.0.1';
const PROBE = '10.213.0.2';
/** An address in the subnet of the guests that no guest has. */
const UNUSED_ADDRESS = '10.213.0.9';
const MACS = { a: '52:54:00:00:00:0a', b: '52:54:00:00:00:0b' } as const;
const FORBIDDEN = {
  'a Pod': '10.244.1.5',
  'a ClusterIP': '10.96.0.1',
  'link-local metadata': '169.254.169.254',
  "Azure's WireServer": '168.63.129.16',
  "Alibaba's metadata": '100.100.100.200',
};
/** Translations like those of kube-proxy: a ClusterIP for an outside address, an outside address for a Pod, a node port for a guest. */
const CLUSTER_IP = '10.96.0.20';
const LOAD_BALANCER = '198.51.100.7';
const NODE_PORT = 31_000;
const [HOST_IPV6, WORLD_IPV6, GUESTS_IPV6] = ['2001:db8:1::1', '2001:db8:1::2', '2001:db8:2::1'] as const;
const HYPERVISOR_USER = '1900000007';
const ANSWER = { deadlineMilliseconds: 60_000 };

const missing = whyNotHere();

describe('a guest of the nat network', unless(missing), () => {
  let net: NatWorld;
  let host: Worker;
  let world: Worker;
  let a: FrameGuest;
  let b: FrameGuest;
  let gateway: string;
  const addresses = { a: '', b: '' };
  const taps = { a: '', b: '' };
  let sent = 0;

  async function guest(name: 'a' | 'b'): Promise<FrameGuest> {
    const reserved = { protocol: 'UDP' as const, hostPort: RESERVED_PORT, guestPort: 53 };
    const options = { macAddress: MACS[name], ports: name === 'b' ? [reserved] : [] };
    const attached = await host.do('attach', name, options);
    taps[name] = attached.kind === 'tap' ? attached.device : '';
    addresses[name] = attached.address ?? '';
    return await FrameGuest.start({
      spawn: (file, args) => net.spawnInHost(file, args),
      backend: tapBackend(taps[name]),
      socketPath: join(net.directory, `${name}.sock`),
      macAddress: MACS[name],
      address: addresses[name],
    });
  }

  beforeAll(async () => {
    net = await NatWorld.make('hostile');
    host = net.worker('host');
    world = net.worker('world');
    for (const address of [...Object.values(FORBIDDEN), LOAD_BALANCER, CLUSTER_IP]) {
      net.inWorld('ip', 'address', 'add', `${address}/32`, 'dev', 'uplink');
    }
    net.inHost('ip', 'route', 'add', 'default', 'via', WORLD_ADDRESS);
    await world.do('serveUdp', ECHO_PORT);
    await host.do('serveUdp', ECHO_PORT);
    await host.do('open', net.natOptions());
    [a, b] = [await guest('a'), await guest('b')];
    gateway = await a.resolve(GATEWAY, ANSWER);
    await b.resolve(GATEWAY, ANSWER);
    watchGuests(net, PROBE);
  });

  beforeEach(() => {
    forgetArrived(net);
    b.frames.splice(0);
  });

  afterAll(async () => {
    await a?.stop();
    await b?.stop();
    await net?.[Symbol.asyncDispose]();
  });

  function toWorld(text: string, address: string, port = ECHO_PORT): void {
    a.sendDatagram(gateway, { address, port }, text);
  }

  /** Waits until earlier packets have arrived or are lost: frames of one guest stay in order, so a later answer shows it. */
  async function settled(): Promise<void> {
    sent += 1;
    const text = `last ${sent}`;
    await waitFor(
      'the answer to what was sent last',
      () => {
        toWorld(text, WORLD_ADDRESS);
        return a.received.includes(text);
      },
      ANSWER,
    );
  }

  /** Checks that the neighbour still answers at its reserved port, over the host. */
  async function neighbourIsReached(): Promise<void> {
    sent += 1;
    const text = `b is there ${sent}`;
    await waitFor(
      'the neighbour to answer',
      async () => (await world.do('udpExchange', HOST_ADDRESS, RESERVED_PORT, text)) === text,
      ANSWER,
    );
  }

  /** Returns the MAC addresses of guests from which frames reached the neighbour. Frames of the host have another address. */
  function atNeighbour(): string[] {
    const senders = b.frames.map((frame) => macText(frame.subarray(6, 12)));
    return senders.filter((sender) => sender === MACS.a || sender === MACS.b);
  }

  test('reaches of all addresses and ports of the host only DNS and ping on the gateway', async (context) => {
    const hosts = [
      GATEWAY,
      HOST_ADDRESS,
      '198.18.213.1',
      '127.0.0.1',
      '127.0.0.53',
      '10.213.15.255',
      '255.255.255.255',
      '224.0.0.251',
    ];
    const known = [22, 53, 67, 68, 80, 111, 443, 2379, 5353, 6443, 8081, 10_250, 10_350];
    const random = fc.sample(fc.integer({ min: 1, max: 65_535 }), {
      seed: HOSTILE_SEED,
      numRuns: scaled(2000),
    });
    for (const address of hosts) {
      const via = address.endsWith('255') ? BROADCAST : gateway;
      for (const port of new Set([...known, ECHO_PORT, RESERVED_PORT, ...random])) {
        const [from, to] = [
          { address: addresses.a, port: 5000 },
          { address, port },
        ];
        a.sendPacket(via, udp(from, to, Buffer.from('to the host')));
        a.sendPacket(via, tcpSyn(from, to));
        tried(
          context,
          'UDP and TCP to an address and port of the host',
          port === 53 && address === GATEWAY ? 'let through' : 'dropped',
        );
      }
      a.sendPacket(via, ping(addresses.a, address));
      for (const type of [5, 13, 17]) {
        a.sendPacket(
          via,
          ipv4(
            { from: addresses.a, to: address, protocol: PROTOCOL.icmp },
            Buffer.from([type, 0, 0, 0, 0, 0, 0, 0]),
          ),
        );
      }
      for (const protocol of [2, 4, 41, 47, 50, 89, 132]) {
        a.sendPacket(via, ipv4({ from: addresses.a, to: address, protocol }, Buffer.alloc(16)));
        tried(context, 'another protocol to an address of the host', 'dropped');
      }
    }
    await settled();
    expect(arrived(net, 'host').toSorted()).toEqual([
      `icmp ${GATEWAY}`,
      `tcp ${GATEWAY} 53`,
      `udp ${GATEWAY} 53`,
    ]);
    expect(icmpBesidePings(net)).toBe(0);
    expect(await host.do('heard')).toEqual({});
    const pong = (frame: Buffer): boolean => frame[23] === PROTOCOL.icmp && frame[34] === 0;
    await waitFor('the gateway to answer the ping', () => a.frames.some(pong), ANSWER);
  });

  test('does not reach Pods, Services and metadata services, also through address translation, but reaches the outside world', async (context) => {
    const redirect = `ip daddr { ${CLUSTER_IP}, ${HOST_ADDRESS}, ${GATEWAY} } dnat to ${WORLD_ADDRESS}; ip daddr ${LOAD_BALANCER} dnat to ${FORBIDDEN['a Pod']}`;
    net.inHost('nft', `table ip proxy { chain c { type nat hook prerouting priority -110; ${redirect}; }; }`);
    const ports = [80, 443, 6443, 10_250, ECHO_PORT];
    const targets = {
      ...FORBIDDEN,
      'a ClusterIP that leads elsewhere': CLUSTER_IP,
      'an address that leads to a Pod': LOAD_BALANCER,
      'an address of the host that leads elsewhere': HOST_ADDRESS,
      'the gateway that leads elsewhere': GATEWAY,
    };
    for (const [what, address] of Object.entries(targets)) {
      for (const port of ports) {
        toWorld(what, address, port);
        a.sendPacket(gateway, tcpSyn({ address: addresses.a, port: 5000 }, { address, port }));
        tried(context, `${what}, UDP and TCP`, 'dropped');
      }
    }
    await settled();
    net.inHost('nft', 'delete', 'table', 'ip', 'proxy');
    const heard = Object.keys(await world.do('heard'));
    expect(heard.filter((text) => text in targets)).toEqual([]);
    expect(arrived(net, 'beyond')).toEqual([`udp ${WORLD_ADDRESS} ${ECHO_PORT}`]);
  });

  test('is not reached through address translation of other programs, but is reached at its reserved port from the cluster', async (context) => {
    const redirect = `udp dport ${NODE_PORT} dnat to ${addresses.b}:9999; udp dport ${NODE_PORT + 1} dnat to ${addresses.b}:53`;
    net.inHost('nft', `table ip proxy { chain c { type nat hook prerouting priority -110; ${redirect}; }; }`);
    for (const port of [NODE_PORT, NODE_PORT + 1]) {
      expect(await world.do('udpExchange', HOST_ADDRESS, port, 'node port')).toBeUndefined();
      tried(context, 'a node port that leads to a guest', 'dropped');
    }
    net.inHost('nft', 'delete', 'table', 'ip', 'proxy');
    expect(b.received).not.toContain('node port');
    // Guests may not reach the addresses of Pods. Answers to a Pod must pass all the same.
    net.inWorld('ip', 'route', 'add', `${HOST_ADDRESS}/32`, 'dev', 'uplink', 'src', FORBIDDEN['a Pod']);
    await neighbourIsReached();
    net.inWorld('ip', 'route', 'del', `${HOST_ADDRESS}/32`, 'dev', 'uplink');
  });

  test('reaches no neighbour on any layer, and only IPv4 and ARP get past its port', async (context) => {
    const self = { mac: MACS.a, address: addresses.a };
    const payload = udp(
      { address: addresses.a, port: 5000 },
      { address: addresses.b, port: 53 },
      Buffer.from('to b'),
    );
    const offer = udp(
      { address: addresses.a, port: 67 },
      { address: '255.255.255.255', port: 68 },
      dhcp({ operation: 2, kind: DHCP.offer, card: MACS.b, offered: UNUSED_ADDRESS, server: addresses.a }),
    );
    const linkLocal = Buffer.concat([Buffer.from([0xfe, 0x80]), Buffer.alloc(13), Buffer.from([10])]);
    const allNodes = Buffer.concat([Buffer.from([0xff, 0x02]), Buffer.alloc(13), Buffer.from([1])]);
    const metadata = Buffer.from('fd000ec2000000000000000000000254', 'hex');
    const advertisement = ipv6(
      { from: linkLocal, to: allNodes, next: PROTOCOL.icmpv6 },
      Buffer.concat([Buffer.from([134, 0, 0, 0, 64, 0, 7, 8]), Buffer.alloc(8)]),
    );
    const attempts: [string, string, number, Buffer][] = [];
    for (const to of [MACS.b, BROADCAST, '01:00:5e:00:00:fb', '33:33:00:00:00:01', gateway]) {
      attempts.push(
        ['a datagram', to, ETHERTYPE.ipv4, payload],
        ['a DHCP offer', to, ETHERTYPE.ipv4, offer],
        ['a router advertisement', to, ETHERTYPE.ipv6, advertisement],
        [
          'IPv6 to metadata',
          to,
          ETHERTYPE.ipv6,
          ipv6({ from: linkLocal, to: metadata, next: PROTOCOL.tcp }, Buffer.alloc(20)),
        ],
        [
          'an ARP question for a neighbour',
          to,
          ETHERTYPE.arp,
          arp(1, self, { mac: NO_CARD, address: addresses.b }),
        ],
        [
          'an ARP answer that is a lie',
          to,
          ETHERTYPE.arp,
          arp(2, { mac: MACS.a, address: GATEWAY }, { mac: MACS.b, address: addresses.b }),
        ],
        ['a frame of no known type', to, 0x88b5, payload],
      );
      for (const vlan of [0, 1, 100, 4095]) {
        attempts.push(['a VLAN tag', to, ETHERTYPE.vlan, tagged(vlan, ETHERTYPE.ipv4, payload)]);
        attempts.push([
          'two VLAN tags',
          to,
          ETHERTYPE.qinq,
          tagged(vlan, ETHERTYPE.vlan, tagged(vlan, ETHERTYPE.ipv4, payload)),
        ]);
      }
    }
    // Bridges process frames to these addresses themselves, whatever they do with other frames of a port.
    for (const end of ['00', '01', '02', '03', '0e', '0f']) {
      attempts.push([
        'a frame for the bridge itself',
        `01:80:c2:00:00:${end}`,
        ETHERTYPE.lldp,
        Buffer.alloc(46),
      ]);
    }
    for (const [what, to, type, body] of attempts) {
      for (const from of [MACS.a, MACS.b]) {
        a.send(ethernet({ to, from, type }, body));
      }
      tried(context, `${what}, as itself and as the neighbour`, 'dropped');
    }
    await settled();
    await neighbourIsReached();
    expect(atNeighbour()).toEqual([]);
    expect(b.received).not.toContain('to b');
    expect(strangeFrames(net)).toBe(0);
    expect(placesOf(taps.a)).toEqual([MACS.a]);
  });

  /** Returns the MAC addresses that the bridge has learned behind a port. */
  function placesOf(tap: string): string[] {
    const all = JSON.parse(net.inHost('bridge', '-json', 'fdb', 'show', 'br', 'berth0')) as {
      mac: string;
      ifname: string;
      state?: string;
    }[];
    return all.filter(({ ifname, state }) => ifname === tap && state !== 'permanent').map(({ mac }) => mac);
  }

  test('reaches no neighbour and no host over IPv6, also if the host routes IPv6', async (context) => {
    expect(net.inHost('ip', '-6', '-oneline', 'address')).not.toMatch(/ (berth0|bt\S*) /);
    const isIPv6 = (frame: Buffer): boolean => frame.readUInt16BE(12) === ETHERTYPE.ipv6;
    expect([...a.frames, ...b.frames].filter(isIPv6)).toEqual([]);
    // Another program may have made the host an IPv6 router, also on the link of the guests.
    for (const [inside, own, device] of [
      ['inHost', HOST_IPV6, 'uplink'],
      ['inWorld', WORLD_IPV6, 'uplink'],
      ['inHost', GUESTS_IPV6, 'berth0'],
    ] as const) {
      net[inside]('sysctl', '--quiet', '--write', `net.ipv6.conf.${device}.disable_ipv6=0`);
      net[inside]('ip', 'address', 'add', `${own}/64`, 'dev', device, 'nodad');
    }
    net.inHost('sysctl', '--quiet', '--write', 'net.ipv6.conf.all.forwarding=1');
    await host.do('serveUdp', ECHO_PORT + 1, '::');
    await world.do('serveUdp', ECHO_PORT + 1, '::');
    const own = { own: MACS.a, gateway, neighbours: [MACS.b], port: ECHO_PORT + 1 };
    for (const [what, frame] of ipv6Attempts({ ...own, hosts: [HOST_IPV6, GUESTS_IPV6, WORLD_IPV6] })) {
      a.send(frame);
      tried(context, `${what} over IPv6`, 'dropped');
    }
    await settled();
    await neighbourIsReached();
    expect(atNeighbour()).toEqual([]);
    expect(strangeFrames(net)).toBe(0);
    expect(net.inHost('ip', '-6', 'neighbour', 'show', 'dev', 'berth0')).toBe('');
    for (const heard of [await host.do('heard'), await world.do('heard')]) {
      expect(Object.keys(heard)).not.toContain('over IPv6');
    }
    const answers = a.frames.filter((frame) => isIPv6(frame) && macText(frame.subarray(0, 6)) === MACS.a);
    expect(answers).toEqual([]);
    expect((await host.do('check')).repaired).toEqual(['Device berth0 had IPv6']);
    expect(await host.do('check')).toMatchObject({ healthy: true, repaired: [] });
  });

  test('cannot lie about its addresses', async (context) => {
    const lies: [string, { address?: string; macAddress?: string }][] = [
      ["a neighbour's address", { address: addresses.b }],
      ['an address from elsewhere', { address: '203.0.113.7' }],
      ["the gateway's address", { address: GATEWAY }],
      ["the probe's address", { address: PROBE }],
      ["a neighbour's card", { macAddress: MACS.b }],
      ["a neighbour's card and address", { macAddress: MACS.b, address: addresses.b }],
    ];
    for (const [what, lie] of lies) {
      a.sendDatagram(gateway, { address: WORLD_ADDRESS, port: ECHO_PORT }, what, lie);
      tried(context, what, 'dropped');
    }
    const pretended = arp(1, { mac: MACS.a, address: UNUSED_ADDRESS }, { mac: NO_CARD, address: GATEWAY });
    a.send(ethernet({ to: BROADCAST, from: MACS.a, type: ETHERTYPE.arp }, pretended));
    // A guest may send this packet before it has an address. With the MAC address of b, the bridge would learn that b is behind this port.
    const discovery = { address: '0.0.0.0', port: 68, macAddress: MACS.b };
    a.sendDatagram(BROADCAST, { address: '255.255.255.255', port: 67 }, 'discovery', discovery);
    await settled();
    const heard = Object.keys(await world.do('heard'));
    expect(lies.filter(([what]) => heard.includes(what))).toEqual([]);
    expect(net.inHost('ip', 'neighbour', 'show', UNUSED_ADDRESS)).toBe('');
    expect(placesOf(taps.a)).toEqual([MACS.a]);
    await neighbourIsReached();
  });

  test('cannot speak for the card of a neighbour to the DHCP server: the neighbour keeps its address', async (context) => {
    const from = { address: '0.0.0.0', port: 68 };
    const to = { address: '255.255.255.255', port: 67 };
    for (const kind of [DHCP.decline, DHCP.release]) {
      for (const source of ['0.0.0.0', addresses.a]) {
        const message = dhcp({
          operation: 1,
          kind,
          card: MACS.b,
          client: addresses.b,
          requested: addresses.b,
          server: GATEWAY,
        });
        a.sendPacket(BROADCAST, udp({ ...from, address: source }, to, message));
        a.sendPacket(gateway, udp({ ...from, address: source }, { ...to, address: GATEWAY }, message));
        tried(context, "DHCP messages of a neighbour's card", 'dropped');
      }
    }
    await settled();
    const discovery = dhcp({ operation: 1, kind: DHCP.discover, card: MACS.b });
    await waitFor(
      'the neighbour to be offered its address',
      () => {
        b.sendPacket(BROADCAST, udp(from, to, discovery));
        return b.frames.some(
          (frame) => frame.readUInt16BE(36) === 68 && frame.subarray(58, 62).join('.') === addresses.b,
        );
      },
      ANSWER,
    );
  });

  test('can send frames of all kinds: only DHCP, DNS and ping reach the host, and nothing the neighbour', async (context) => {
    const mac = fc.constantFrom(MACS.a, MACS.b, gateway, BROADCAST, '01:80:c2:00:00:00', '33:33:00:00:00:01');
    const type = fc.oneof(fc.constantFrom(...Object.values(ETHERTYPE)), fc.integer({ min: 0, max: 65_535 }));
    const address = fc.constantFrom(
      addresses.a,
      addresses.b,
      GATEWAY,
      HOST_ADDRESS,
      '0.0.0.0',
      '255.255.255.255',
      ...Object.values(FORBIDDEN),
    );
    const protocol = fc.integer({ min: 0, max: 255 });
    const body = fc.oneof(
      fc.uint8Array({ maxLength: 200 }).map((bytes) => Buffer.from(bytes)),
      fc
        .tuple(address, address, protocol, fc.uint8Array({ maxLength: 64 }))
        .map(([from, to, number, bytes]) => ipv4({ from, to, protocol: number }, Buffer.from(bytes))),
    );
    const frames = fc.tuple(mac, mac, type, body);
    const { seed, numRuns } = hostileRuns(20_000);
    for (const [to, from, kind, content] of fc.sample(frames, { seed, numRuns })) {
      a.send(ethernet({ to, from, type: kind }, content));
      tried(context, 'a frame made at random', 'dropped');
    }
    await settled();
    await neighbourIsReached();
    expect(atNeighbour()).toEqual([]);
    expect(strangeFrames(net)).toBe(0);
    const allowed = /^(icmp 10\.213\.0\.1|(udp|tcp) 10\.213\.0\.1 53|udp \S+ 67)$/;
    expect(arrived(net, 'host').filter((one) => !allowed.test(one))).toEqual([]);
    expect(placesOf(taps.a)).toEqual([MACS.a]);
    expect(await host.do('check')).toMatchObject({ healthy: true, repaired: [] });
  });

  test('has a limited number of flows, which are counted, and its neighbours keep theirs', async (context) => {
    const flows = scaled(100_000);
    for (let flow = 0; flow < flows; flow += 1) {
      const to =
        flow % 2 === 0 ? { address: WORLD_ADDRESS, port: ECHO_PORT + 1 } : { address: GATEWAY, port: 53 };
      a.sendDatagram(gateway, to, 'a flow', { port: 1024 + (Math.floor(flow / 2) % 60_000) });
    }
    const { a: refused = 0, ...others } = await waitFor('what was refused to be counted', async () => {
      const report = await host.do('check');
      expect(report).toMatchObject({ healthy: true, repaired: [] });
      return (report.refusedConnections['a'] ?? 0) > 0 && report.refusedConnections;
    });
    await neighbourIsReached();
    const tracked = net.inHost('conntrack', '-L', '--orig-src', addresses.a).trim().split('\n').length;
    expect(tracked).toBeLessThanOrEqual(CONNECTIONS_PER_GUEST + 1);
    expect(refused).toBeGreaterThan(0);
    expect(Object.values(others).filter((count) => count > 0)).toEqual([]);
    tried(context, `${flows} flows of one guest`, `at most ${CONNECTIONS_PER_GUEST} tracked`);
  });

  test.each([HOST_ADDRESS, '127.0.0.1', GATEWAY, WORLD_ADDRESS, '169.254.169.254'])(
    'that took over its hypervisor does not reach %s over the network of the host',
    (address) => {
      const say = `echo taken over > /dev/udp/${address}/${ECHO_PORT}`;
      const user = ['--reuid', HYPERVISOR_USER, '--regid', HYPERVISOR_USER, '--clear-groups'];
      expect(() => net.inHost('setpriv', ...user, 'bash', '-c', say)).toThrow('not permitted');
    },
  );
});
