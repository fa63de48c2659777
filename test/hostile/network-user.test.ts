/** Attacks of a guest in QEMU's user network on a host whose agent is root. For this guest, 10.0.2.2 is the loopback of the host. */
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { networkArguments } from '../../agent/drivers/qemu/arguments.ts';
import { forbiddenNetworks, METADATA_NETWORKS } from '../../agent/networkdriver.ts';
import { FrameGuest } from '../worlds/frameguest.ts';
import {
  CLUSTER_NETWORKS,
  HOST_ADDRESS,
  NatWorld,
  type Worker,
  WORLD_ADDRESS,
  whyNotHere,
} from '../worlds/nat.ts';
import { tcpSyn } from '../wires/frames.ts';
import { waitFor } from '../../hack/wait.ts';
import { tried } from './support/attempts.ts';
import { unless } from '../support/unless.ts';

const ECHO_PORT = 7000;
const RESERVED_PORT = 8053;
/** Addresses in QEMU's network: the guest, the host, and the DNS server. */
const GUEST = '10.0.2.15';
const HOST = '10.0.2.2';
const DNS = '10.0.2.3';
const RESOLVER = '127.0.0.53';
const MAC = '52:54:00:00:00:0c';
const MACHINE_USER = 1_900_000_007;
const FORBIDDEN = ['10.244.1.5', '10.96.0.1', '169.254.169.254', '168.63.129.16', '100.100.100.200'];
/** Time limit for an answer. A busy machine can stand still for some seconds. */
const ANSWER = { deadlineMilliseconds: 60_000 };

const missing = whyNotHere();

describe('a guest of the user network, on a host whose agent is root', unless(missing), () => {
  let net: NatWorld;
  let host: Worker;
  let world: Worker;
  let guest: FrameGuest;
  let gateway: string;

  /** Starts QEMU in a mount namespace, in which it reads the resolv.conf of the test. */
  function spawnQemu(file: string, args: string[]) {
    const show = 'mount --bind "$0" /etc/resolv.conf && exec "$@"';
    const resolvConf = join(net.directory, 'resolv.conf');
    return net.spawnInHost('unshare', ['--mount', 'sh', '-c', show, resolvConf, file, ...args]);
  }

  beforeAll(async () => {
    net = await NatWorld.make('user');
    host = net.worker('host');
    world = net.worker('world');
    for (const address of FORBIDDEN) {
      net.inWorld('ip', 'address', 'add', `${address}/32`, 'dev', 'uplink');
    }
    net.inHost('ip', 'route', 'add', 'default', 'via', WORLD_ADDRESS);
    const resolvConf = join(net.directory, 'resolv.conf');
    writeFileSync(resolvConf, `nameserver ${RESOLVER}\n`);
    await world.do('serveUdp', ECHO_PORT);
    await host.do('serveUdp', ECHO_PORT, '::');
    await host.do('serveHttp', 80);
    await world.do('serveHttp', 80);
    // Without a route, the kernel would not send anything to this address, whatever the rules are.
    net.inHost('ip', '-6', 'route', 'add', 'fd00:ec2::254/128', 'dev', 'uplink');
    for (const port of [53, 8000]) {
      await host.do('serveUdp', port, RESOLVER);
    }
    const forbidden = forbiddenNetworks({
      guestsMayNotReach: METADATA_NETWORKS,
      clusterCIDRs: CLUSTER_NETWORKS,
    });
    const users = [`1900000000-${MACHINE_USER + 1}`];
    await host.do('openUser', '127.0.0.1', { table: 'berth-user-test', users, forbidden, resolvConf });
    const reserved = { protocol: 'UDP' as const, hostPort: RESERVED_PORT, guestPort: 53 };
    const attached = await host.do('attach', 'guest', { macAddress: MAC, ports: [reserved] });
    guest = await FrameGuest.start({
      spawn: spawnQemu,
      backend: (networkArguments(attached)[1] ?? '').replace('id=net0', 'id=net'),
      arguments: ['-runas', `${MACHINE_USER}:${MACHINE_USER}`],
      socketPath: join(net.directory, 'guest.sock'),
      macAddress: MAC,
      address: GUEST,
    });
    gateway = await guest.resolve(HOST, ANSWER);
    await guest.resolve(DNS, ANSWER);
  });

  afterAll(async () => {
    await guest?.stop();
    await net?.[Symbol.asyncDispose]();
  });

  function send(text: string, address: string, port: number): void {
    guest.sendDatagram(guest.neighbours.get(address) ?? gateway, { address, port }, text);
  }

  /** Waits until earlier packets have arrived or are lost: the answer to a later packet comes after them. */
  async function settled(text: string): Promise<void> {
    await waitFor(
      'an answer of the world',
      () => {
        send(text, WORLD_ADDRESS, ECHO_PORT);
        return guest.received.includes(text);
      },
      ANSWER,
    );
  }

  test('reaches nothing of the host, the cluster and metadata services, but the outside world, the resolver and its reserved port', async (context) => {
    const redirect = `ip daddr ${HOST_ADDRESS} dnat to ${WORLD_ADDRESS}`;
    net.inHost('nft', `table ip proxy { chain c { type nat hook output priority -110; ${redirect}; }; }`);
    for (const address of [HOST, DNS, HOST_ADDRESS, '127.0.0.1', ...FORBIDDEN]) {
      for (const port of [ECHO_PORT, 8000]) {
        send(`to ${address}`, address, port);
        tried(context, `UDP to ${address}`, 'dropped');
      }
      guest.sendPacket(gateway, tcpSyn({ address: GUEST, port: 6000 }, { address, port: 80 }));
      tried(context, `TCP to ${address}`, 'dropped');
    }
    await settled('the last');
    expect(await host.do('heard')).toEqual({});
    expect(Object.keys(await world.do('heard'))).toEqual(['the last']);
    const isAccepted = (frame: Buffer): boolean => frame[23] === 6 && ((frame[47] ?? 0) & 0x12) === 0x12;
    const acceptedBy = (): string[] =>
      guest.frames.filter(isAccepted).map((frame) => frame.subarray(26, 30).join('.'));
    // The outside world accepts a connection, so the guest would see that another server does.
    await waitFor(
      'the outside world to accept a connection',
      () => {
        const [from, to] = [
          { address: GUEST, port: 6001 },
          { address: WORLD_ADDRESS, port: 80 },
        ];
        guest.sendPacket(gateway, tcpSyn(from, to));
        return acceptedBy().length > 0;
      },
      ANSWER,
    );
    expect(acceptedBy().filter((address) => address !== WORLD_ADDRESS)).toEqual([]);
    await waitFor(
      'the resolver to be asked',
      async () => {
        send('a question', DNS, 53);
        return 'a question' in (await host.do('heard'));
      },
      ANSWER,
    );
    await waitFor(
      'the guest to answer at its reserved port',
      async () => (await host.do('udpExchange', '127.0.0.1', RESERVED_PORT, 'in')) === 'in',
      ANSWER,
    );
  });

  test.each(['127.0.0.1', '::1', HOST_ADDRESS, '169.254.169.254', 'fd00:ec2::254'])(
    'a hypervisor that was taken over reaches %s no more than its guest',
    (address) => {
      const say = `echo taken over > /dev/udp/${address}/${ECHO_PORT}`;
      const user = ['--reuid', String(MACHINE_USER), '--regid', String(MACHINE_USER), '--clear-groups'];
      expect(() => net.inHost('setpriv', ...user, 'bash', '-c', say)).toThrow('not permitted');
    },
  );

  test('a connection of another process of the host ends on both sides', async () => {
    const program = `socket($s, 2, 1, 0); bind($s, $at = pack('S n a4 x8', 2, 7001, "\\x7f\\0\\0\\1")); listen($s, 1);
      socket($c, 2, 1, 0); connect($c, $at) or die; accept($t, $s) or die; close $c; sysread($t, $_, 1); close $t;`;
    net.inHost('perl', '-e', program);
    await waitFor('the end', () => !net.inHost('ss', '-tan', 'sport', '=', ':7001').includes('LAST-ACK'), {
      deadlineMilliseconds: 5_000,
    });
  });

  test('rules that another program removed are restored at the next check, and checks without faults repair nothing', async () => {
    net.inHost('nft', 'flush', 'ruleset');
    expect(await host.do('check')).toMatchObject({
      healthy: true,
      repaired: ['The nftables rules were missing or changed'],
    });
    expect(await host.do('checks', 5)).toMatchObject({ repaired: [], faults: [] });
    send('after the repair', HOST, ECHO_PORT);
    await settled('the very last');
    expect(Object.keys(await host.do('heard'))).not.toContain('after the repair');
  });
});
