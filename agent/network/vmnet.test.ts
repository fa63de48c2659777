import { once } from 'node:events';
import { type AddressInfo, connect, createServer, type Server } from 'node:net';
import { pino } from 'pino';
import { afterEach, beforeEach, expect, it, vi } from 'vitest';
import type { MachinePort } from '../../api/v1alpha1/machine.ts';
import { hostPortsSchema } from '../../api/v1alpha1/ports.ts';
import type { Leases } from './leases.ts';
import { VmnetNetwork } from './vmnet.ts';

const LOOPBACK = '127.0.0.1';
const CARD = { macAddress: '52:54:00:AB:00:01' };

let guest: Server;
let addresses: Map<string, string | Promise<string>>;
let asked: number;
let now: number;
let leases: Leases | undefined;
let logged: string[];
let network: VmnetNetwork;

beforeEach(async () => {
  guest = createServer((socket) => socket.end('hello from the guest')).listen(0, LOOPBACK);
  await once(guest, 'listening');
  addresses = new Map();
  [asked, now, logged, leases] = [0, 1_000_000, [], undefined];
  network = new VmnetNetwork({
    hostAddress: LOOPBACK,
    ports: hostPortsSchema.parse({}),
    addressOf: async (uid) => {
      asked += 1;
      return await addresses.get(uid);
    },
    leases: async () => await Promise.resolve(leases),
    logger: pino({ base: null, timestamp: false }, { write: (line) => logged.push(line) }),
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

/** Connects to a port of the host, and returns all that comes. @throws Error of the system when the connection is refused or reset. */
async function read({ hostPort }: MachinePort): Promise<string> {
  const socket = connect(hostPort, LOOPBACK);
  let text = '';
  for await (const chunk of socket) {
    text += String(chunk);
  }
  return text;
}

it('passes connections on to the guest once it has an address, and closes the port with the attachment', async () => {
  const reserved = await port();
  const attached = await network.attach('one', { ...CARD, ports: [reserved] });
  expect(attached).toMatchObject({ macAddress: '52:54:00:ab:00:01', address: undefined, ports: [] });
  await expect(read(reserved)).rejects.toThrow('ECONNRESET');
  addresses.set('one', LOOPBACK);
  now += 2_000;
  expect(await read(reserved)).toBe('hello from the guest');
  await network.detach('one');
  await expect(read(reserved)).rejects.toThrow('ECONNREFUSED');
  expect(await network.attached()).toEqual([]);
});

it('logs once why connections fail', async () => {
  const reserved = await port();
  await network.attach('one', { ...CARD, ports: [reserved] });
  await expect(read(reserved)).rejects.toThrow('ECONNRESET');
  await expect(read(reserved)).rejects.toThrow('ECONNRESET');
  expect(logged).toEqual([expect.stringContaining('The guest has no address yet') as string]);
});

it('does not connect a client whose connection has ended before the address is known', async () => {
  const reserved = await port();
  const { promise, resolve } = Promise.withResolvers<string>();
  addresses.set('one', promise);
  await network.attach('one', { ...CARD, ports: [reserved] });
  const ended = read(reserved);
  await vi.waitFor(() => expect(asked).toBe(1));
  await network.detach('one');
  expect(await ended).toBe('');
  let connections = 0;
  guest.on('connection', () => (connections += 1));
  resolve(LOOPBACK);
  await promise;
  const direct = { ...reserved, hostPort: reserved.guestPort };
  expect([await read(direct), await read(direct)]).toEqual(['hello from the guest', 'hello from the guest']);
  expect(connections).toBe(2);
});

it('reports a port that another program has taken while no agent ran, keeps the others open, and opens it later', async () => {
  const program = createServer().listen(0, LOOPBACK);
  await once(program, 'listening');
  const free = await port();
  const taken = { ...free, hostPort: portOf(program) };
  addresses.set('one', LOOPBACK);
  await network.attach('one', { ...CARD, ports: [taken, free], running: true });
  expect(await read(free)).toBe('hello from the guest');
  const fault = expect.stringContaining(`cannot open port ${taken.hostPort}/TCP`) as string;
  expect(await network.check()).toMatchObject({
    healthy: true,
    repaired: [],
    faults: [fault],
    machines: { one: { healthy: false, message: fault } },
  });
  program.close();
  await once(program, 'close');
  expect(await network.check()).toMatchObject({
    repaired: [`Port ${taken.hostPort}/TCP of machine one was closed`],
    faults: [],
    machines: { one: { healthy: true } },
  });
  expect(await read(taken)).toBe('hello from the guest');
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
