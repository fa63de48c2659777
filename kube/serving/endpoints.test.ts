import { once } from 'node:events';
import { connect, type Socket } from 'node:net';
import { text } from 'node:stream/consumers';
import { pino } from 'pino';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { serveHealth } from './endpoints.ts';
import type { RunningServer } from './httpserver.ts';

/** Largest number of connections of one address without a known caller, as in `connections.ts`. */
const CONNECTIONS = 96;
/** Number of connections that come at the same time when the server already has the largest number. */
const LATE = 50;

let server: RunningServer;

beforeEach(async () => {
  const logger = pino({ level: 'silent' });
  server = await serveHealth({
    listen: '127.0.0.1:0',
    live: { process: () => undefined },
    ready: {},
    logger,
  });
});

afterEach(async () => await server.close());

async function open(): Promise<Socket> {
  const socket = connect({ port: server.port, host: '127.0.0.1' });
  // A connection that the server refuses or closes may be reset.
  socket.on('error', () => undefined).resume();
  await once(socket, 'connect');
  return socket;
}

/** Sends a probe, and returns all that the server sends until it closes the connection. */
async function probe(): Promise<string> {
  const socket = await open();
  const answer = text(socket);
  socket.write('GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n');
  return await answer;
}

it('answers a probe while a client holds all connections, and closes the oldest ones', async () => {
  const held: Socket[] = [];
  for (let number = 0; number < CONNECTIONS; number += 1) {
    held.push(await open());
  }
  expect(await probe()).toContain('200 OK');
  await expect.poll(() => held.findIndex(({ closed }) => !closed)).toBe(1);
  const late = await Promise.all(Array.from({ length: LATE }, open));
  expect(await probe()).toContain('200 OK');
  // The first probe left its place to one of the late connections.
  await expect.poll(() => held.findIndex(({ closed }) => !closed)).toBe(LATE + 1);
  expect([...held.slice(LATE + 1), ...late].every(({ closed }) => !closed)).toBe(true);
});

it('closes a connection after one answer, so that a client cannot hold it by requests', async () => {
  const answer = await probe();
  expect(answer).toMatch(/^HTTP\/1.1 200 OK\r\n/);
  expect(answer).toMatch(/\r\nConnection: close\r\n/);
});
