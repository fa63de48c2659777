import { once } from 'node:events';
import { createServer, request, type Server } from 'node:http';
import type { AddressInfo, Socket } from 'node:net';
import { setImmediate as nextCycle } from 'node:timers/promises';
import { pino } from 'pino';
import { afterEach, beforeEach, expect, it, vi } from 'vitest';
import { WebSocket } from 'ws';
import { SpdyClient } from '../../../test/wires/spdyclient.ts';
import { acceptUpgrades } from '../../../kube/serving/upgrades.ts';
import { type CommandSession, type SessionLimits, SUCCESS } from './session.ts';
import * as spdy from './spdy/sessions.ts';
import * as websocket from './websocket.ts';

const OUTPUT_BYTES = 32 * 1024 * 1024;
const WANTED = { stdin: true, stdinEnd: false, stdout: true, stderr: false, resize: false };
const MINUTE = 60_000;
const WAIT = { timeout: 30_000 };

let server: Server;
let limits: SessionLimits;
let stop: AbortController;
/** Resolves when the server has written the output and waits for the client. */
let finishing: PromiseWithResolvers<void>;
let over: boolean;

beforeEach(async () => {
  stop = new AbortController();
  limits = { idleMilliseconds: 30 * MINUTE, connections: 1, stop: stop.signal };
  finishing = Promise.withResolvers();
  over = false;
  server = createServer();
  const handle = async (upgrade: Parameters<typeof websocket.acceptCommand>[0]) => {
    const { acceptCommand } = upgrade.request.headers.upgrade === 'websocket' ? websocket : spdy;
    const session: CommandSession = await acceptCommand(upgrade, WANTED, limits);
    session.stdout?.write(Buffer.alloc(OUTPUT_BYTES));
    const finished = session.finish(SUCCESS);
    finishing.resolve();
    await finished;
    over = true;
  };
  acceptUpgrades(server, handle, pino({ level: 'silent' }));
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout'] });
});

afterEach(() => {
  vi.useRealTimers();
  server.closeAllConnections();
  server.close();
});

function port(): number {
  return (server.address() as AddressInfo).port;
}

/** Opens a session over SPDY whose client does not read. */
async function openSpdy() {
  const headers = {
    connection: 'Upgrade',
    upgrade: 'SPDY/3.1',
    'x-stream-protocol-version': 'v4.channel.k8s.io',
  };
  const asked = request({ port: port(), host: '127.0.0.1', headers });
  asked.end();
  const [, socket] = (await once(asked, 'upgrade')) as [unknown, Socket];
  const client = new SpdyClient(socket);
  const [error, stdout] = [
    await client.open({ streamtype: 'error' }),
    await client.open({ streamtype: 'stdout' }),
  ];
  const stdin = await client.open({ streamtype: 'stdin' });
  client.pause();
  await finishing.promise;
  return { client, socket, error, stdin, stdout };
}

it('a client of SPDY that begins to read after a minute gets the whole output and the result', async () => {
  const { client, error, stdout } = await openSpdy();
  await vi.advanceTimersByTimeAsync(MINUTE);
  client.resume();
  await client.closed();
  expect(stdout.chunks.reduce((sum, one) => sum + one.length, 0)).toBe(OUTPUT_BYTES);
  expect(JSON.parse(error.text)).toMatchObject({ status: 'Success' });
  await vi.waitUntil(() => over, WAIT);
});

it('a client of WebSockets that begins to read after a minute gets the whole output and the result', async () => {
  const socket = new WebSocket(`ws://127.0.0.1:${port()}/`, ['v4.channel.k8s.io']);
  const messages: Buffer[] = [];
  socket.on('message', (message: Buffer) => messages.push(message));
  await once(socket, 'open');
  socket.pause();
  await finishing.promise;
  await vi.advanceTimersByTimeAsync(MINUTE);
  socket.resume();
  await once(socket, 'close');
  const output = messages.filter(([channel]) => channel === 1);
  expect(output.reduce((sum, one) => sum + one.length - 1, 0)).toBe(OUTPUT_BYTES);
  expect(JSON.parse(String(messages.at(-1)?.subarray(1)))).toMatchObject({ status: 'Success' });
  await vi.waitUntil(() => over, WAIT);
});

it('a client that does not read is given up soon after the agent begins to stop', async () => {
  const { client } = await openSpdy();
  await vi.advanceTimersByTimeAsync(MINUTE);
  expect(over).toBe(false);
  stop.abort(new Error('The agent is stopping'));
  await vi.advanceTimersByTimeAsync(MINUTE);
  await nextCycle();
  expect(over).toBe(true);
  client.close();
});

it('a client whose input nobody reads ends its session', { timeout: 20_000 }, async () => {
  const { client, socket, stdin } = await openSpdy();
  await client.sendAll(stdin, Buffer.alloc(16 * 1024 * 1024));
  socket.end();
  await expect.poll(() => over).toBe(true);
});
