import { once } from 'node:events';
import { type IncomingMessage, request } from 'node:http';
import { connect, type Socket } from 'node:net';
import { text } from 'node:stream/consumers';
import { pino } from 'pino';
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { type MetadataPages, MetadataServer } from './metadata.ts';

const HOST = '127.0.0.1';
/** Addresses of guests. Every address of 127.0.0.0/8 is local, so a test can send from each. */
const [A, B, STRANGER] = ['127.0.0.11', '127.0.0.12', '127.0.0.13'];
const LIMIT = 16;
/** Limit of a wait. The default, 1 s, is too short on a busy machine. */
const WAIT = { timeout: 30_000 };
/** A connection that the server refuses or ends. */
const NOTHING = /ECONNREFUSED|ECONNRESET|hang up/;

let attached: Map<string, string>;
let pages: MetadataPages;
let server: MetadataServer;
let port: number;
const sockets: Socket[] = [];

beforeEach(async () => {
  attached = new Map([
    [A, 'a'],
    [B, 'b'],
  ]);
  pages = async (uid, path) => (path === '/mine' ? `page of ${uid}` : undefined);
  server = new MetadataServer({
    pages: (uid, path) => pages(uid, path),
    uidOf: (address) => attached.get(address),
    logger: pino({ enabled: false }),
  });
  port = await server.open(HOST, 0);
});

afterEach(async () => {
  for (const socket of sockets.splice(0)) {
    socket.destroy();
  }
  await server.close();
});

async function ask(from: string, path = '/mine', method = 'GET'): Promise<{ status?: number; body: string }> {
  const asked = request({ host: HOST, port, localAddress: from, path, method, agent: false }).end();
  const [response] = (await once(asked, 'response')) as [IncomingMessage];
  return { status: response.statusCode ?? 0, body: await text(response) };
}

async function opened(from: string): Promise<Socket> {
  const socket = connect({ host: HOST, port, localAddress: from });
  socket.on('error', () => undefined);
  sockets.push(socket);
  await once(socket, 'connect');
  return socket;
}

test('each guest gets its own pages, by the address from which it asks', async () => {
  expect(await ask(A)).toEqual({ status: 200, body: 'page of a' });
  expect(await ask(B)).toEqual({ status: 200, body: 'page of b' });
  expect(await ask(A, '/other')).toEqual({ status: 404, body: '' });
});

test('senders that are no attached machine get no answer, and neither does a machine after its detachment', async () => {
  await expect(ask(STRANGER)).rejects.toThrow(NOTHING);
  attached.delete(B);
  await expect(ask(B)).rejects.toThrow(NOTHING);
  expect(await ask(A)).toMatchObject({ status: 200 });
});

test('guests can only read', async () => {
  expect(await ask(A, '/mine', 'HEAD')).toEqual({ status: 200, body: '' });
  for (const method of ['POST', 'PUT', 'DELETE', 'OPTIONS']) {
    expect(await ask(A, '/mine', method)).toMatchObject({ status: 405 });
  }
});

test('a guest has a bounded number of connections, and does not take those of its neighbour', async () => {
  const first = await opened(A);
  await Promise.all(Array.from({ length: LIMIT - 1 }, () => opened(A)));
  await expect(ask(A)).rejects.toThrow(NOTHING);
  expect(await ask(B)).toMatchObject({ status: 200 });
  first.destroy();
  await vi.waitFor(async () => expect(await ask(A)).toMatchObject({ status: 200 }), WAIT);
});

test('a connection serves one request, because the rules limit new connections only', async () => {
  let asked = 0;
  pages = async () => {
    asked += 1;
    return 'page';
  };
  const socket = await opened(A);
  socket.resume();
  // The server resets the connection while requests are still on the way. `once` of node:events would take this for a failure.
  const closed = new Promise((resolve) => socket.once('close', resolve));
  socket.write('GET /mine HTTP/1.1\r\n\r\n'.repeat(10_000));
  await closed;
  expect(asked).toBe(1);
});

test('a request in two parts, with a query and any host, is answered, and a page may be long', async () => {
  const long = 'é'.repeat(100_000);
  pages = async (_uid, path) => (path === '/long' ? long : undefined);
  expect(await ask(A, '/long')).toEqual({ status: 200, body: long });
  const socket = await opened(A);
  socket.write('GET /long?x=1 HTTP/1.0\r\nHost: any.example\r\n');
  // When the server has answered this later request, it has read the first part.
  expect(await ask(B, '/long')).toMatchObject({ status: 200 });
  socket.write('Accept: */*\r\n\r\n');
  const answer = await text(socket);
  expect(answer.slice(answer.indexOf('\r\n\r\n') + 4)).toBe(long);
});

test.each([
  ['another protocol', 'SSH-2.0-OpenSSH\r\n\r\n'],
  ['a URL instead of a path', 'GET http://10.0.0.1/mine HTTP/1.1\r\n\r\n'],
  ['a path with control characters', 'GET /mine\0 HTTP/1.1\r\n\r\n'],
  ['a head without an end', `GET /mine HTTP/1.1\r\n${'x: y\r\n'.repeat(2000)}`],
])('%s gets an error', async (_what, request) => {
  const socket = await opened(A);
  socket.write(request);
  expect(await text(socket)).toMatch(/^HTTP\/1\.1 400 Bad Request\r\n/);
});

test('a page that cannot be read is an error of this request alone', async () => {
  pages = () => Promise.reject(new Error('no disk'));
  expect(await ask(A)).toEqual({ status: 500, body: '' });
  pages = async () => 'page';
  expect(await ask(A)).toEqual({ status: 200, body: 'page' });
});

test('the connections of a detached machine end before they carry the rest of an answer', async () => {
  const { promise: held, resolve: release } = Promise.withResolvers<string>();
  const { promise: asked, resolve: isAsked } = Promise.withResolvers<void>();
  pages = async () => {
    isAsked();
    return await held;
  };
  const answer = ask(A);
  await asked;
  attached.delete(A);
  server.forget('a');
  release('late');
  await expect(answer).rejects.toThrow(NOTHING);
  expect(await ask(B)).toEqual({ status: 200, body: 'late' });
});

test('a closed server does not listen, and can be opened again', async () => {
  await server.close();
  expect(server.listens).toBe(false);
  await expect(ask(A)).rejects.toThrow(NOTHING);
  await server.open(HOST, port);
  expect(server.listens).toBe(true);
  expect(await ask(A)).toMatchObject({ status: 200 });
});
