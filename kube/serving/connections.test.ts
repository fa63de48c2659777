import { once } from 'node:events';
import { connect as connectTcp, type Socket } from 'node:net';
import { connect as connectTls } from 'node:tls';
import { pino } from 'pino';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { createKey, selfSigned } from '../certificates/certificate.ts';
import { accountNamespaceOf, keepConnection } from './connections.ts';
import { HttpError } from './httperror.ts';
import { createServer, type ListeningServer, listen, reply } from './httpserver.ts';

const LIMIT = 40;
const logger = pino({ level: 'silent' });
const opened = new Set<Socket>();
let server: ListeningServer;

/** Serves callers who name themselves. A request without a name gets 401. */
beforeEach(async () => {
  const key = await createKey();
  const cert = await selfSigned({ key, commonName: 'server', ipAddresses: ['127.0.0.1'], days: 1 });
  const tls = { key: key.pem, cert };
  const handler = createServer(
    ({ socket, headers: { from } }, response) => {
      if (from === undefined) {
        throw new HttpError(401, 'Unauthorized');
      }
      keepConnection(socket, from);
      reply(response, 200, 'ok');
    },
    { logger, tls, connections: LIMIT },
  );
  handler.keepAliveTimeout = 60_000;
  server = await listen(handler, '127.0.0.1:0');
});

afterEach(async () => {
  opened.forEach((socket) => socket.destroy());
  opened.clear();
  await server.close();
});

async function open(localAddress = '127.0.0.1'): Promise<Socket> {
  const tcp = connectTcp({ port: server.port, host: '127.0.0.1', localAddress });
  const socket = connectTls({ socket: tcp, rejectUnauthorized: false });
  opened.add(socket);
  // A connection that the server closes may be reset.
  socket.on('error', () => undefined).resume();
  await Promise.race([once(socket, 'secureConnect'), once(socket, 'close')]);
  return socket;
}

/** Sends a request, and returns the status of the answer. The result is undefined if the server closes the connection. */
async function ask(socket: Socket, from?: string): Promise<number | undefined> {
  socket.write(`GET / HTTP/1.1\r\nHost: a\r\n${from === undefined ? '' : `From: ${from}\r\n`}\r\n`);
  const [data] = (await Promise.race([once(socket, 'data'), once(socket, 'close')])) as [unknown];
  const status = /^HTTP\/1.1 (\d+)/.exec(String(data))?.[1];
  return status === undefined ? undefined : Number(status);
}

it('strangers displace one another, and never a connection with a known caller', async () => {
  const known = await open();
  expect(await ask(known, 'ann')).toBe(200);
  const strangers: Socket[] = [];
  for (let count = 0; count < 3 * LIMIT; count += 1) {
    strangers.push(await open());
  }
  expect(await ask(known, 'ann')).toBe(200);
  await expect.poll(() => strangers.filter(({ closed }) => !closed).length).toBe(LIMIT / 2);
  // The newest strangers are connected, so a caller who comes now can show who it is.
  expect(await ask(await open(), 'ben')).toBe(200);
});

it('strangers of many addresses fill no more than all connections, and the newest can still come', async () => {
  for (let count = 0; count < 3 * LIMIT; count += 1) {
    await open(`127.0.0.${2 + (count % 6)}`);
  }
  await expect.poll(() => [...opened].filter(({ closed }) => !closed).length).toBe(LIMIT);
  expect(await ask(await open('127.0.0.100'), 'ann')).toBe(200);
});

it('a connection without a known caller ends with the answer 401', async () => {
  const socket = await open();
  const closed = once(socket, 'close');
  expect(await ask(socket)).toBe(401);
  await closed;
});

it.each([
  ['one user', () => 'ann'],
  ['the service accounts of one namespace', (count: number) => `system:serviceaccount:team:ci-${count}`],
])('%s can have only a part of the connections', async (_, nameOf) => {
  const statuses: (number | undefined)[] = [];
  for (let count = 0; count < LIMIT; count += 1) {
    statuses.push(await ask(await open(), nameOf(count)));
  }
  expect(statuses.filter((status) => status === 200)).toHaveLength((LIMIT * 3) / 4);
  expect(statuses.at(-1)).toBe(429);
  expect(await ask(await open(), 'system:serviceaccount:other:ci')).toBe(200);
});

it.each([
  ['system:serviceaccount:team:ci', 'team'],
  ['ann', undefined],
  ['oidc:system:serviceaccount:team:ci', undefined],
])('the namespace of %s is %s', (username, namespace) => {
  expect(accountNamespaceOf(username)).toBe(namespace);
});
