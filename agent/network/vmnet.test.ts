import { spawn } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { writeFileSync } from 'node:fs';
import { type AddressInfo, createServer, type Server } from 'node:net';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, it, onTestFinished, vi } from 'vitest';
import type { MachinePort } from '../../api/v1alpha1/machine.ts';
import { hostPortsSchema } from '../../api/v1alpha1/ports.ts';
import { makeFolder } from '../../test/support/folder.ts';
import { killByArgument } from '../processes/process.ts';
import type { Leases } from './leases.ts';
import { liveRelays, withPortRelay } from './portrelay.ts';
import type { GuestFilter } from './softnet.ts';
import { type KnownGuests, VmnetNetwork } from './vmnet.ts';

const LOOPBACK = '127.0.0.1';
const CARD = { macAddress: '52:54:00:AB:00:01' };
/** Limit of a wait. The default, 1 s, is too short on a busy machine. */
const WAIT = { timeout: 30_000 };

let guest: Server;
let addresses: Map<string, string>;
let asked: number;
let now: number;
let leases: Leases | undefined;
let network: VmnetNetwork;
/** Filters with which machines run that an earlier agent has started. */
let filters: Map<string, GuestFilter>;

const guests: KnownGuests = {
  address: async (uid) => {
    asked += 1;
    return await Promise.resolve(addresses.get(uid));
  },
  filter: async (uid) => await Promise.resolve(filters.get(uid)),
};

beforeEach(async () => {
  guest = createServer((socket) => socket.end('hello from the guest')).listen(0, LOOPBACK);
  await once(guest, 'listening');
  [addresses, filters] = [new Map(), new Map()];
  [asked, now, leases] = [0, 1_000_000, undefined];
  network = new VmnetNetwork({
    hostAddress: LOOPBACK,
    ports: hostPortsSchema.parse({}),
    guests,
    leases: async () => await Promise.resolve(leases),
    now: () => now,
  });
});

afterEach(async () => {
  await network.close();
  guest.close();
});

/** Returns a port of this host that is free now, and leads to the guest. */
async function port(protocol: MachinePort['protocol'] = 'TCP'): Promise<MachinePort> {
  const server = createServer().listen(0, LOOPBACK);
  await once(server, 'listening');
  const hostPort = portOf(server);
  server.close();
  await once(server, 'close');
  return { protocol, hostPort, guestPort: portOf(guest), automatic: true };
}

function portOf(server: Server): number {
  return (server.address() as AddressInfo).port;
}

it('gives the reserved ports to the hypervisor of the guest, and forgets them with the attachment', async () => {
  const reserved = await port();
  const attached = await network.attach('one', { ...CARD, ports: [reserved] });
  expect(attached).toEqual({
    kind: 'user',
    macAddress: '52:54:00:ab:00:01',
    address: undefined,
    hostAddress: LOOPBACK,
    ports: [reserved],
  });
  expect(await network.attached()).toEqual(['one']);
  await network.detach('one');
  expect(await network.attached()).toEqual([]);
});

/** Starts the relay of a machine beside a program in place of its hypervisor. Returns how to end the relay alone. */
async function startRelay(uid: string, ports: readonly MachinePort[]): Promise<() => Promise<void>> {
  const command = withPortRelay(uid, ['sleep', '600'], { hostAddress: LOOPBACK, ports });
  const [program, ...parameters] = command;
  const hypervisor = spawn(program, parameters, { cwd: makeFolder(), stdio: 'ignore' });
  onTestFinished(() => void hypervisor.kill('SIGKILL'));
  await vi.waitFor(async () => expect(await liveRelays([uid])).toEqual(new Set([uid])), WAIT);
  return async () => await killByArgument(`berth-port-relay-${uid}`);
}

it('says that the reserved ports of a guest with an address do not lead there, also if another program has taken them', async () => {
  const [one, two] = [randomUUID(), randomUUID()];
  const reserved = await port();
  await network.attach(one, { ...CARD, ports: [reserved], running: true });
  await network.attach(two, { ...CARD, ports: [], running: true });
  const health = async () => (await network.check()).machines[one];
  expect(await health()).toMatchObject({ healthy: true });
  for (const uid of [one, two]) {
    addresses.set(uid, LOOPBACK);
    await network.address(uid);
  }
  const fault = (text: string) => ({ healthy: false, message: expect.stringContaining(text) as string });
  const unheard = `nobody listens on port ${reserved.hostPort}/TCP`;
  expect(await health()).toEqual(fault(unheard));
  expect((await network.check()).faults).toEqual([expect.stringContaining(unheard)]);
  const end = await startRelay(one, [reserved]);
  expect(await health()).toMatchObject({ healthy: true });
  await end();
  const other = createServer().listen(reserved.hostPort, LOOPBACK);
  onTestFinished(() => void other.close());
  await once(other, 'listening');
  expect(await health()).toEqual(fault(`another program listens on port ${reserved.hostPort}/TCP`));
  expect((await network.check()).machines[two]).toMatchObject({ healthy: true });
});

it('asks seldom for an address, because each question starts a program', async () => {
  await network.attach('one', { ...CARD, ports: [] });
  expect(await network.address('one')).toBeUndefined();
  expect([await network.address('one'), asked]).toEqual([undefined, 1]);
  addresses.set('one', LOOPBACK);
  now += 2_000;
  expect([await network.address('one'), asked]).toEqual([LOOPBACK, 2]);
  now += 29_000;
  expect([await network.address('one'), asked]).toEqual([LOOPBACK, 2]);
  now += 1_000;
  expect([await network.address('one'), asked]).toEqual([LOOPBACK, 3]);
  expect(await network.address('other')).toBeUndefined();
});

it('says that the host has no address left for a guest that should have one, until the guest gets one', async () => {
  leases = { taken: 253, all: 253, nextEnd: Date.parse('2030-01-01T00:00:00Z') };
  await network.attach('one', { ...CARD, ports: [] });
  const health = async () => (await network.check()).machines['one'];
  expect(await health()).toMatchObject({ healthy: true });
  now += 120_000;
  expect(await health()).toEqual({
    healthy: false,
    message: expect.stringMatching(/all 253 addresses.*ends at 2030-01-01T00:00:00.000Z.*600 s/) as string,
  });
  leases = { ...leases, taken: 252 };
  expect(await health()).toMatchObject({ healthy: true });
  leases = { ...leases, taken: 253 };
  addresses.set('one', LOOPBACK);
  expect(await network.address('one')).toBe(LOOPBACK);
  expect(await health()).toMatchObject({ healthy: true });
});

it('keeps the ports of a machine that starts again, and refuses those of others and UDP', async () => {
  const reserved = await port();
  await network.attach('one', { ...CARD, ports: [reserved] });
  expect(await network.isUsable('one', reserved)).toBe(true);
  expect(await network.isUsable('two', reserved)).toBe(false);
  await expect(network.attach('two', { ...CARD, ports: [reserved] })).rejects.toMatchObject({
    reason: 'PortTaken',
  });
  await network.attach('one', { ...CARD, ports: [reserved] });
  const report = await network.check();
  expect(report).toMatchObject({ healthy: true, machines: { one: { healthy: true } } });
  await expect(network.attach('three', { ...CARD, ports: [await port('UDP')] })).rejects.toThrow('TCP only');
  expect(await network.isUsable('three', await port('UDP'))).toBe(false);
});

const FILTER: GuestFilter = { mayReach: ['10.1.0.0/16'], mayNotReach: ['10.1.2.0/24'] };

/** Returns the network with a filter. The program is a stand-in, which root may run as it is. */
function filtered(program: string): VmnetNetwork {
  return new VmnetNetwork({
    hostAddress: LOOPBACK,
    ports: hostPortsSchema.parse({}),
    guests,
    softnet: { filter: FILTER, program },
    leases: async () => await Promise.resolve(undefined),
    now: () => now,
  });
}

it('softnet takes no machine without its program, and says so of the host, while machines that run are well', async () => {
  const folder = makeFolder();
  const program = join(folder, 'softnet');
  const softnet = filtered(program);
  filters.set('one', FILTER);
  await softnet.attach('one', { ...CARD, ports: [], running: true });
  await expect(softnet.attach('two', { ...CARD, ports: [] })).rejects.toMatchObject({
    reason: 'NetworkUnavailable',
    message: `The network driver softnet takes no further machine: There is no program ${program}. Install it with \`brew install cirruslabs/cli/softnet\`, or set network.driver to vmnet`,
  });
  const report = await softnet.check();
  expect(report).toMatchObject({ healthy: true, machines: { one: { healthy: true } } });
  expect(report.obstacle).toContain('There is no program');
  expect(report.faults).toEqual([report.obstacle]);
  vi.stubEnv('PATH', `${folder}:${process.env['PATH']}`);
  onTestFinished(() => void vi.unstubAllEnvs());
  writeFileSync(program, '#!/bin/sh\necho @host\n', { mode: 0o755 });
  writeFileSync(join(folder, 'sudo'), '#!/bin/sh\nexit 0\n', { mode: 0o755 });
  expect(await softnet.attach('two', { ...CARD, ports: [] })).toMatchObject({
    kind: 'user',
    filter: FILTER,
  });
  expect((await softnet.check()).obstacle).toBeUndefined();
});

it('says that a machine runs with other settings of the filter than those of its host', async () => {
  const softnet = filtered('/none');
  filters.set('other', { ...FILTER, mayReach: [] }).set('same', structuredClone(FILTER));
  for (const uid of ['none', 'other', 'same']) {
    await softnet.attach(uid, { ...CARD, ports: [], running: true });
  }
  await network.attach('other', { ...CARD, ports: [], running: true });
  const outdated = { healthy: false, message: expect.stringContaining('Restart the VM') as string };
  expect((await softnet.check()).machines).toMatchObject({
    none: outdated,
    other: outdated,
    same: { healthy: true },
  });
  expect((await network.check()).machines).toMatchObject({ other: outdated });
});
