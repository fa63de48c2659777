import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync } from 'node:fs';
import { readFile, writeFile } from 'node:fs/promises';
import { type AddressInfo, connect, createServer, type Server, type Socket } from 'node:net';
import { join } from 'node:path';
import { buffer, text } from 'node:stream/consumers';
import { afterEach, beforeEach, expect, it, vi } from 'vitest';
import { makeFolder } from '../../test/support/folder.ts';
import {
  findAllByArgument,
  findByArgument,
  identify,
  killForCertain,
  waitForExit,
} from '../processes/process.ts';
import { endRelay, tellRelay, withPortRelay } from './portrelay.ts';

const UID = '7e1a';
const LOOPBACK = '127.0.0.1';
/** Limit of a wait. The default, 1 s, is too short on a busy machine. */
const WAIT = { timeout: 30_000 };

let folder: string;
let guest: Server;
let stop: (() => Promise<void>)[];

beforeEach(async () => {
  folder = makeFolder();
  stop = [];
  guest = createServer({ allowHalfOpen: true }, (socket) => {
    socket.on('error', () => undefined).pipe(socket);
  }).listen(0, LOOPBACK);
  await once(guest, 'listening');
});

afterEach(async () => {
  for (const end of stop) {
    await end();
  }
  await endRelay(UID, folder);
  guest.close();
});

function portOf(server: Server): number {
  return (server.address() as AddressInfo).port;
}

async function freePort(): Promise<number> {
  const server = createServer().listen(0, LOOPBACK);
  await once(server, 'listening');
  const port = portOf(server);
  server.close();
  await once(server, 'close');
  return port;
}

/** Starts a program in place of a hypervisor beside a relay from the port of the host to the guest. Returns how to end it. */
async function start(hostPort: number): Promise<() => Promise<void>> {
  const ports = [{ hostPort, guestPort: portOf(guest) }];
  const [program, ...parameters] = withPortRelay(UID, ['sleep', '600'], { hostAddress: LOOPBACK, ports });
  const child = spawn(program, parameters, { cwd: folder, stdio: 'ignore', detached: true });
  const machine = await identify(child.pid ?? 0);
  const end = async (): Promise<void> => await (machine && killForCertain(machine));
  stop.push(end);
  await vi.waitFor(async () => expect(await findByArgument(`berth-port-relay-${UID}`)).toBeDefined(), WAIT);
  return end;
}

async function connected(port: number): Promise<Socket> {
  const socket = connect({ port, host: LOOPBACK, allowHalfOpen: true });
  await once(socket, 'connect');
  return socket;
}

it('passes bytes on in both directions until both ends have closed, and ends with its command', async () => {
  const port = await freePort();
  const end = await start(port);
  await tellRelay(folder, LOOPBACK);
  const bytes = Buffer.alloc(8 * 1024 * 1024, 'relayed bytes');
  const sockets = await Promise.all([connected(port), connected(port)]);
  const echoes = sockets.map(async (socket) => await buffer(socket));
  sockets.forEach((socket) => socket.end(bytes));
  for (const echo of await Promise.all(echoes)) {
    expect(echo.equals(bytes)).toBe(true);
  }
  const idle = await connected(port);
  const closed = once(idle, 'end');
  idle.on('error', () => undefined).resume();
  const relay = await findByArgument(`berth-port-relay-${UID}`);
  await end();
  // The relay ends by itself, before anybody would kill it.
  expect(relay && (await waitForExit(relay, WAIT.timeout))).toBe(true);
  await endRelay(UID, folder);
  await closed;
  expect(existsSync(join(folder, 'guest.address'))).toBe(false);
  await expect(connected(port)).rejects.toThrow('ECONNREFUSED');
});

it('resets connections as long as it knows no address, or the guest refuses them', async () => {
  const port = await freePort();
  await start(port);
  const read = async (): Promise<string> => await text(connect(port, LOOPBACK));
  await expect(read()).rejects.toThrow('ECONNRESET');
  await writeFile(join(folder, 'guest.address'), '127.0.0.1; rm -rf');
  await expect(read()).rejects.toThrow('ECONNRESET');
  await tellRelay(folder, LOOPBACK);
  expect(await readFile(join(folder, 'guest.address'), 'latin1')).toBe(LOOPBACK);
  // The DHCP server can give the address to the guest of somebody else.
  await tellRelay(folder, undefined);
  await expect(read()).rejects.toThrow('ECONNRESET');
  await tellRelay(folder, LOOPBACK);
  guest.close();
  await expect(read()).rejects.toThrow('ECONNRESET');
});

it('asks after a minute without data whether client and guest are still there', async (context) => {
  context.skip(process.platform !== 'linux', 'Only Linux shows the timers of connections');
  const port = await freePort();
  await start(port);
  await tellRelay(folder, LOOPBACK);
  const client = await connected(port);
  client.on('error', () => undefined).write('hello');
  await once(client, 'data');
  const hex = (number: number): string => number.toString(16).toUpperCase().padStart(4, '0');
  /** Returns the timers of both connections of the relay: their kinds, and the minutes that are left. The kind 02 asks whether the peer is there. */
  const timers = async () =>
    (await readFile('/proc/net/tcp', 'latin1'))
      .split('\n')
      .map((line) => line.trim().split(/\s+/))
      .filter(
        ([, own, peer, state]) =>
          state === '01' &&
          (own?.endsWith(`:${hex(port)}`) === true || peer?.endsWith(`:${hex(portOf(guest))}`) === true),
      )
      .map(([, , , , , timer = '']) => [timer.slice(0, 2), Math.ceil(Number(`0x${timer.slice(3)}`) / 6000)]);
  await expect.poll(timers, WAIT).toEqual([
    ['02', 1],
    ['02', 1],
  ]);
  client.destroy();
});

it('ends all relays of its machine', async () => {
  const ports = [await freePort(), await freePort()] as const;
  await start(ports[0]);
  await start(ports[1]);
  const relays = async () => await findAllByArgument(`berth-port-relay-${UID}`);
  await vi.waitFor(async () => expect(await relays()).toHaveLength(2), WAIT);
  await endRelay(UID, folder);
  for (const port of ports) {
    await expect(connected(port)).rejects.toThrow('ECONNREFUSED');
  }
});

it('serves other clients while one does not read, and at most 256 at a time', async () => {
  const port = await freePort();
  await start(port);
  await tellRelay(folder, LOOPBACK);
  const slow = await connected(port);
  slow.on('error', () => undefined).write(Buffer.alloc(8 * 1024 * 1024));
  const sockets: Socket[] = [slow];
  while (sockets.length < 256) {
    const socket = (await connected(port)).on('error', () => undefined);
    sockets.push(socket);
    socket.write('hello');
    await once(socket, 'data');
  }
  await expect(text(connect(port, LOOPBACK))).rejects.toThrow('ECONNRESET');
  sockets.at(-1)?.destroy();
  await vi.waitFor(async () => {
    const next = (await connected(port)).on('error', () => undefined);
    next.write('again');
    const [data] = (await Promise.race([once(next, 'data'), once(next, 'close')])) as unknown[];
    expect(String(data)).toBe('again');
    next.destroy();
  }, WAIT);
  sockets.forEach((socket) => socket.destroy());
});

it('does not start the command if a port is taken, and says which', async () => {
  const ports = [{ hostPort: portOf(guest), guestPort: 22 }];
  const [program, ...parameters] = withPortRelay(UID, ['echo', 'begun'], { hostAddress: LOOPBACK, ports });
  const child = spawn(program, parameters, { cwd: folder });
  const said = await Promise.all([text(child.stdout), text(child.stderr)]);
  expect(said).toEqual(['', `port ${portOf(guest)}: Address already in use\n`]);
});

it('is the command itself if there are no ports', () => {
  expect(withPortRelay(UID, ['tart', 'run'], { hostAddress: LOOPBACK, ports: [] })).toEqual(['tart', 'run']);
});
