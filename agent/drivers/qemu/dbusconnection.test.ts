import { once } from 'node:events';
import { mkdtemp, rm } from 'node:fs/promises';
import { createConnection, createServer, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { type Call, encodeCall, DBusWriter } from './dbus.ts';
import { DBusConnection } from './dbusconnection.ts';

const CALL: Call = { path: '/a', interface: 'b', member: 'c', type: 's', values: ['x'] };

let directory: string;
let socket: Socket;
let peer: Socket;

beforeEach(async () => {
  directory = await mkdtemp(join(tmpdir(), 'berth-dbus-'));
  const path = join(directory, 'socket');
  const server = createServer().listen(path);
  await once(server, 'listening');
  socket = createConnection(path);
  [peer] = (await once(server, 'connection')) as [Socket];
  socket.on('error', () => undefined);
  peer.on('error', () => undefined);
  server.close();
});

afterEach(async () => {
  socket.destroy();
  peer.destroy();
  await rm(directory, { recursive: true });
});

/** Answers the login as QEMU does, and returns the connection. */
async function login(answer = 'OK 1234deadbeef\r\n'): Promise<DBusConnection> {
  const opening = DBusConnection.open(socket);
  const [message] = (await once(peer, 'data')) as [Buffer];
  const user = Buffer.from(String(process.getuid?.())).toString('hex');
  expect(message.toString()).toBe(`\0AUTH EXTERNAL ${user}\r\n`);
  peer.write(answer);
  return await opening;
}

/** Returns a message without values that answers a call: type 2 is an answer, type 3 an error. */
function answerTo(serial: number, type: 2 | 3): Buffer {
  const fields = new DBusWriter();
  fields.value('y', 5);
  fields.value('g', 'u');
  fields.value('u', serial);
  if (type === 3) {
    fields.align(8);
    fields.value('y', 4);
    fields.value('g', 's');
    fields.value('s', 'org.qemu.Unsupported');
  }
  const message = new DBusWriter();
  message.add(Buffer.from([0x6c, type, 0, 1]));
  [0, 1, fields.bytes().length].forEach((number) => message.value('u', number));
  message.add(fields.bytes());
  message.align(8);
  return message.bytes();
}

function signal(): Buffer {
  const bytes = encodeCall(1, CALL);
  bytes[1] = 4;
  return bytes;
}

it('logs in, calls and gets answers, also out of order', async () => {
  const dbus = await login();
  const [first, second] = [dbus.call(CALL), dbus.call(CALL)];
  peer.write(Buffer.concat([answerTo(2, 3), signal(), answerTo(1, 2)]));
  await expect(second).rejects.toThrow('QEMU refused a call: org.qemu.Unsupported');
  expect((await first).type).toBe(2);
});

it('reports signals', async () => {
  const dbus = await login();
  peer.write(signal());
  const [reported] = (await once(dbus, 'signal')) as [{ path: string; member: string }];
  expect(reported).toMatchObject({ path: '/a', member: 'c' });
});

it('fails when QEMU refuses the login', async () => {
  await expect(login('REJECTED\r\n')).rejects.toThrow('QEMU refused the D-Bus login');
  expect(socket.destroyed).toBe(true);
});

it('fails when the login does not end', async () => {
  await expect(login('OK'.repeat(1000))).rejects.toThrow('login is too long');
});

it('fails every call when the connection ends', async () => {
  const dbus = await login();
  const calls = [dbus.call(CALL), dbus.call(CALL)];
  peer.destroy();
  for (const { status, reason } of (await Promise.allSettled(calls)) as PromiseRejectedResult[]) {
    expect([status, String(reason)]).toEqual(['rejected', expect.stringContaining('was closed')]);
  }
  await expect(dbus.call(CALL)).rejects.toThrow('was closed');
});

it('ends the connection when QEMU sends anything but D-Bus', async () => {
  const dbus = await login();
  peer.write(Buffer.alloc(64));
  await once(dbus, 'close');
  expect(dbus.closed).toBe(true);
});

it('ends the connection when QEMU floods it with signals', async () => {
  const dbus = await login();
  const flood = Buffer.concat(Array.from({ length: 20_000 }, signal));
  peer.write(flood);
  await once(dbus, 'close');
  expect(dbus.closed).toBe(true);
});
