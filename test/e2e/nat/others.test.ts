/** The `nat` network beside rules and settings of other programs, which break the traffic of guests or take reserved ports. */
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import type { MachinePort } from '../../../api/v1alpha1/machine.ts';
import { HOST_ADDRESS, NatWorld, type Worker, WORLD_ADDRESS, whyNotHere } from '../../worlds/nat.ts';
import { unless } from '../../support/unless.ts';

/** A fault is repaired or reported within this time. */
const REPAIR_DEADLINE_MILLISECONDS = 5_000;
const MACS = { a: '52:54:00:00:00:0a', b: '52:54:00:00:00:0b' } as const;

function reservation(protocol: 'TCP' | 'UDP', hostPort: number, guestPort: number): MachinePort {
  return { protocol, hostPort, guestPort };
}

const missing = whyNotHere();

describe('nat beside other programs', unless(missing), () => {
  let net: NatWorld;
  let host: Worker;

  async function attach(name: 'a' | 'b', ports: MachinePort[] = []): Promise<void> {
    await host.do('attach', name, { macAddress: MACS[name], ports });
  }

  beforeAll(async () => {
    net = await NatWorld.make('nato');
    host = net.worker('host');
    await host.do('open', net.natOptions());
  });

  afterEach(async () => {
    for (const uid of await host.do('attached')) {
      await host.do('detach', uid);
    }
  });

  afterAll(async () => {
    await net?.[Symbol.asyncDispose]();
  });

  test.each([
    ['every packet', 'type filter hook forward priority 0; policy drop;', ''],
    ["the guests' packets", 'type filter hook forward priority 0;', 'ip saddr 10.213.0.0/20 drop'],
    ['what comes from the bridge', 'type filter hook prerouting priority -150;', 'iifname berth0 drop'],
  ])(
    "another table drops %s: reported with its name, left alone, healthy once it's gone",
    async (_what, head, rule) => {
      await attach('a');
      net.inHost('nft', `table inet other { chain theirs { ${head} ${rule}; }; }`);
      const started = performance.now();
      const report = await host.do('check');
      expect(performance.now() - started).toBeLessThan(REPAIR_DEADLINE_MILLISECONDS);
      expect(report).toMatchObject({ healthy: false, repaired: [] });
      expect(report.faults.join()).toContain('table inet other, chain theirs');
      expect(report.machines['a']?.healthy).toBe(false);
      net.inHost('nft', 'delete', 'table', 'inet', 'other');
      expect(await host.do('check')).toMatchObject({ healthy: true, repaired: [], faults: [] });
    },
  );

  test.each([
    ['DHCP messages', 'udp dport 67 drop', 'DHCP'],
    ['DNS queries', 'udp dport 53 drop', 'DNS'],
    ['new DNS queries', 'ct state established accept; iifname berth0 udp dport 53 drop', 'DNS'],
  ])(
    'a firewall of the host drops only %s of guests: reported with its name',
    async (_what, rules, server) => {
      // Other tests send more queries than an agent in the same time, so the kernel still knows their connections.
      net.inHost('conntrack', '-F');
      expect(await host.do('check')).toMatchObject({ healthy: true });
      net.inHost(
        'nft',
        `table inet other { chain theirs { type filter hook input priority 0; ${rules}; }; }`,
      );
      const { healthy, faults } = await host.do('check');
      net.inHost('nft', 'delete', 'table', 'inet', 'other');
      expect({ healthy, faults }).toEqual({
        healthy: false,
        faults: [
          `Packets from a guest to the ${server} server of its network are lost; other programs drop packets in table inet other, chain theirs`,
        ],
      });
      expect(await host.do('check')).toMatchObject({ healthy: true, repaired: [], faults: [] });
    },
  );

  test("another table drops one guest's packets: that machine is reported, the others are not", async () => {
    await attach('a');
    await attach('b');
    const address = (await host.do('address', 'a')) ?? '';
    net.inHost(
      'nft',
      `table inet other { chain theirs { type filter hook forward priority 0; ip daddr ${address} drop; }; }`,
    );
    const report = await host.do('check');
    expect(report.healthy).toBe(true);
    expect(report.machines['a']).toMatchObject({
      healthy: false,
      message: `Other programs drop packets of ${address} in table inet other, chain theirs`,
    });
    expect(report.machines['b']?.healthy).toBe(true);
    net.inHost('nft', 'delete', 'table', 'inet', 'other');
    expect((await host.do('check')).machines['a']?.healthy).toBe(true);
  });

  test('a filter of others that spares most of a guest is not reported', async () => {
    await attach('a');
    const address = (await host.do('address', 'a')) ?? '';
    net.inHost(
      'nft',
      `table inet other { chain theirs { type filter hook forward priority 0; ip saddr ${address} tcp dport 25 drop; ct state invalid drop; }; }`,
    );
    expect(await host.do('check')).toMatchObject({ healthy: true, faults: [] });
    net.inHost('nft', 'delete', 'table', 'inet', 'other');
  });

  test('a port that rules of others lead elsewhere is PortTaken, or told and left to them while they are there', async () => {
    await attach('a', [reservation('UDP', 5353, 53), reservation('TCP', 8080, 80)]);
    const publish = `tcp dport 8080 dnat ip to ${WORLD_ADDRESS}:80; udp dport 5354 redirect to :7000`;
    net.inHost(
      'nft',
      `table inet other { chain theirs { type nat hook prerouting priority dstnat + 5; ${publish}; }; }`,
    );
    const reported =
      'Other programs lead port 8080/TCP of this host elsewhere in table inet other, chain theirs';
    for (let check = 0; check < 2; check++) {
      const { healthy, machines } = await host.do('check');
      expect({ healthy, a: machines['a']?.healthy }).toEqual({ healthy: true, a: false });
      expect(machines['a']?.message).toContain(reported);
    }
    expect(net.inHost('nft', 'list', 'map', 'inet', 'berth', 'reservations')).not.toContain('8080');
    const taken = [reservation('UDP', 5354, 53)];
    await expect(attach('b', taken)).rejects.toMatchObject({ reason: 'PortTaken' });
    net.inHost('nft', 'delete', 'table', 'inet', 'other');
    expect(await host.do('check')).toMatchObject({ machines: { a: { healthy: true } } });
    expect(net.inHost('nft', 'list', 'map', 'inet', 'berth', 'reservations')).toContain('8080');
    await attach('b', taken);
  });

  test('a device that leads outside and forwards nothing is reported', async () => {
    await attach('a');
    net.inHost('ip', 'route', 'add', 'default', 'via', WORLD_ADDRESS);
    expect(await host.do('check')).toMatchObject({ healthy: true });
    net.inHost('sysctl', '--write', 'net.ipv4.conf.uplink.forwarding=0');
    const { healthy, faults } = await host.do('check');
    expect({ healthy, faults }).toEqual({
      healthy: false,
      faults: [
        expect.stringMatching(/^Device uplink leads outside.* net\/ipv4\/conf\/uplink\/forwarding to 1$/),
      ],
    });
    net.inHost('sysctl', '--write', 'net.ipv4.conf.uplink.forwarding=1');
    net.inHost('ip', 'route', 'delete', 'default');
    expect(await host.do('check')).toMatchObject({ healthy: true });
  });

  test('an address for reserved ports that the host has lost is the fault of the machines with such ports', async () => {
    await attach('a', [reservation('UDP', 5353, 53)]);
    await attach('b');
    const change = (verb: string) => net.inHost('ip', 'address', verb, `${HOST_ADDRESS}/24`, 'dev', 'uplink');
    change('delete');
    const { healthy, machines } = await host.do('check');
    expect({ healthy, b: machines['b']?.healthy }).toEqual({ healthy: true, b: true });
    expect(machines['a']).toMatchObject({
      healthy: false,
      message: expect.stringContaining(
        `does not have the address ${HOST_ADDRESS} (network.hostAddress)`,
      ) as string,
    });
    change('add');
    expect(await host.do('check')).toMatchObject({ machines: { a: { healthy: true } } });
  });
});
