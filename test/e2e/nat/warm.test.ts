/** Guests from the memory of an image on the `nat` network: what they are to themselves and to others, and what leaves their cards. */
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { MachineFolder, VmLaunchPlan } from '../../../agent/drivers/driver.ts';
import { waitFor } from '../../../hack/wait.ts';
import {
  expectDifferent,
  expectEqual,
  expectRightClock,
  type Identity,
  IDENTITY_SCRIPT,
  LARGER_SYSTEM,
  OWN_PARTS,
  readIdentity,
  SHARED_PARTS,
} from '../../worlds/guestidentity.ts';
import { HOST_ADDRESS, NatWorld, type Worker, WORLD_ADDRESS, whyNotHere } from '../../worlds/nat.ts';
import { BOOT_DEADLINE_MILLISECONDS, guestBase, planFor } from '../../worlds/qemuguest.ts';
import { namedPlan, type WarmImage } from '../../worlds/warmimage.ts';
import { unless } from '../../support/unless.ts';

const BOOT = { deadlineMilliseconds: BOOT_DEADLINE_MILLISECONDS };
const TEST_MILLISECONDS = 3 * BOOT_DEADLINE_MILLISECONDS;
/** Name of the guest whose renewal fails. */
const UNRENEWED = 'unrenewed';
/** Opens a connection to the world and sends a line of a request every 50 ms, so that the request does not end. */
const OPEN_CONNECTION = `
((printf 'GET / HTTP/1.1\\r\\nHost: world\\r\\n'
while :; do printf 'a: b\\r\\n'; usleep 50000; done) | nc ${WORLD_ADDRESS} 80) >/dev/null 2>&1 </dev/null &
`;
/** Prints the connections of the guest to port 80 (hexadecimal) that are established. */
const CONNECTIONS = 'awk \'$3 ~ /:0050$/ && $4 == "01"\' /proc/net/tcp';
/** The guest with this name sends requests by DHCP at the end of its renewal, before its renewal fails. */
const LATE_HOOK = `
cat >/etc/berth/renew.d/late <<'END'
#!/bin/sh
[ "$(hostname)" = ${UNRENEWED} ] || exit 0
ip link set eth0 up
udhcpc -i eth0 -n -q -t 2 -T 1 -s /bin/true
exit 1
END
chmod 755 /etc/berth/renew.d/late
`;

interface Guest {
  name: string;
  folder: MachineFolder;
  plan: VmLaunchPlan;
  address: string;
  port: number;
}

const missing = whyNotHere();

describe('guests from memory on nat', unless(missing), () => {
  let net: NatWorld;
  let host: Worker;
  let world: Worker;
  let directory: string;
  let source: Guest;
  let image: WarmImage;

  beforeAll(async () => {
    const base = await guestBase('amd64');
    net = await NatWorld.make('natw');
    host = net.worker('host');
    world = net.worker('world');
    await world.do('serveHttp', 80);
    await host.do('open', net.natOptions());
    directory = await host.do('openMachines');
    source = await attach('source', 1);
    await host.do('createMachine', source.folder, source.plan, base);
    await host.do('startMachine', source.folder, source.plan);
    await waitFor('the guest to serve its page', async () => await pageOf(source), BOOT);
    const url = `http://${HOST_ADDRESS}:${source.port}/cgi-bin/do?agent=0`;
    expect(await world.do('httpGet', url, BOOT_DEADLINE_MILLISECONDS)).toBe('listening\n');
    expect(await inGuest(source, LARGER_SYSTEM + LATE_HOOK + OPEN_CONNECTION)).toBe('');
    await waitFor('the connection to be open', async () => await inGuest(source, CONNECTIONS), BOOT);
    image = await host.do('saveMachine', source.folder, 'image');
  }, TEST_MILLISECONDS);

  afterAll(async () => {
    await host?.do('endMachines');
    await net?.[Symbol.asyncDispose]();
  });

  /** Gives a machine a place in the network, and a port of the host that leads to its guest's page. */
  async function attach(name: string, number: number): Promise<Guest> {
    const uid = `${name}-${process.pid}`;
    const port = 8080 + number;
    const macAddress = `52:54:00:00:02:0${number}`;
    const ports = [{ protocol: 'TCP' as const, hostPort: port, guestPort: 80 }];
    const network = await host.do('attach', uid, { macAddress, ports });
    const plan = { ...namedPlan(planFor('amd64', port), name, macAddress), network };
    return {
      name,
      folder: { uid, path: join(directory, 'machines', uid) },
      plan,
      address: network.address ?? '',
      port,
    };
  }

  async function clone(name: string, number: number): Promise<Guest> {
    const guest = await attach(name, number);
    await host.do('createMachine', guest.folder, guest.plan, image);
    return guest;
  }

  async function inGuest({ folder }: Guest, script: string): Promise<string> {
    return await host.do('inGuest', folder, script);
  }

  async function pageOf({ port }: Guest): Promise<string | undefined> {
    const asked = world.do('httpGet', `http://${HOST_ADDRESS}:${port}/`);
    return await asked.catch(() => undefined);
  }

  async function identityOf(guest: Guest): Promise<Identity> {
    return readIdentity(await inGuest(guest, IDENTITY_SCRIPT));
  }

  /** Counts the frames that a machine sends from now on: all, those with a MAC address of another machine, and those of the saved guest's address. */
  function countFrames({ name, plan: { network } }: Guest): void {
    const device = network.kind === 'tap' ? network.device : '';
    const counters = ['sent', 'foreign', 'saved'].map((counter) => `counter ${counter} { }`).join('; ');
    const rules = [
      'counter name sent',
      `ether saddr != ${network.macAddress} counter name foreign`,
      `ip saddr ${source.address} counter name saved`,
      `arp saddr ip ${source.address} counter name saved`,
    ].join('; ');
    const hook = `type filter hook ingress device ${device} priority -500`;
    net.inHost('nft', `table netdev count-${name} { ${counters}; chain frames { ${hook}; ${rules}; }; }`);
  }

  /** Returns how many frames were counted since {@link countFrames}. */
  function countedFrames({ name }: Guest): Record<string, number> {
    const text = net.inHost('nft', '--json', 'list', 'counters', 'table', 'netdev', `count-${name}`);
    const { nftables } = JSON.parse(text) as { nftables: { counter?: { name: string; packets: number } }[] };
    return Object.fromEntries(
      nftables.flatMap(({ counter }) => (counter === undefined ? [] : [[counter.name, counter.packets]])),
    );
  }

  test(
    'two that start at once are computers of their own, and send nothing in the name of the saved guest',
    async () => {
      const clones = [await clone('first', 2), await clone('second', 3)];
      clones.forEach((guest) => countFrames(guest));
      await Promise.all(
        clones.map(async ({ folder, plan }) => await host.do('startFromMemory', folder, plan, image.memory)),
      );
      for (const guest of clones) {
        const { name, address } = guest;
        const isThere = async () => (await pageOf(guest))?.includes(`hostname=${name}\n`);
        await waitFor(`the page of guest ${name}`, isThere, BOOT);
        expect(await pageOf(guest)).toContain(`address=${address}\n`);
        await expectRightClock(async (script) => await inGuest(guest, script));
      }
      const guests = await Promise.all([source, ...clones].map(async (guest) => await identityOf(guest)));
      expectDifferent(guests, [...OWN_PARTS, 'mac', 'address']);
      expectEqual(guests, SHARED_PARTS);
      expect(guests.slice(1)).toMatchObject(
        clones.map(({ name, address, plan: { network } }) => ({
          hostName: name,
          mac: network.macAddress,
          address: expect.stringMatching(`^${address}/`) as string,
          left: '',
        })),
      );
      // The connection of the saved guest is still open in each.
      for (const guest of clones) {
        expect(await inGuest(guest, CONNECTIONS)).not.toBe('');
        const frames = countedFrames(guest);
        expect(frames).toMatchObject({ foreign: 0, saved: 0 });
        expect(frames['sent']).toBeGreaterThan(0);
      }
    },
    TEST_MILLISECONDS,
  );

  test(
    'one that is not renewed has sent no frame, although it tried',
    async () => {
      const guest = await clone(UNRENEWED, 4);
      countFrames(guest);
      const started = host.do('startFromMemory', guest.folder, guest.plan, image.memory);
      await expect(started).rejects.toMatchObject({ message: expect.stringContaining('code 1') as string });
      expect(countedFrames(guest)).toEqual({ sent: 0, foreign: 0, saved: 0 });
    },
    TEST_MILLISECONDS,
  );
});
