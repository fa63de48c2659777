import { once } from 'node:events';
import type { IncomingMessage } from 'node:http';
import { createServer, type Server } from 'node:https';
import type { AddressInfo, Socket } from 'node:net';
import { text } from 'node:stream/consumers';
import { afterAll, beforeAll, beforeEach, expect, it, vi } from 'vitest';
import { createKey, selfSigned } from './certificates/certificate.ts';
import type { Connection } from './credentials.ts';
import { createMetrics } from './metrics.ts';
import { Transport } from './transport.ts';

const PROTOCOL = 'berth-test';
const never = new AbortController().signal;

let server: Server;
let connection: Connection;
let asked: IncomingMessage[];
let answer: (socket: Socket) => void;
const sockets = new Set<Socket>();

beforeAll(async () => {
  const key = await createKey();
  const certificate = await selfSigned({ key, commonName: 'server', ipAddresses: ['127.0.0.1'], days: 1 });
  server = createServer({ key: key.pem, cert: certificate });
  server.on('connection', (socket: Socket) => sockets.add(socket));
  server.on('upgrade', (request: IncomingMessage, socket: Socket) => {
    asked.push(request);
    socket.on('error', () => undefined);
    answer(socket);
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  connection = { server: `https://127.0.0.1:${port}`, certificateAuthority: certificate, token: 'secret' };
});

beforeEach(() => {
  asked = [];
});

afterAll(() => {
  sockets.forEach((socket) => socket.destroy());
  server.close();
});

async function upgrade(signal = never): Promise<Socket> {
  const below = { ...connection, server: `${connection.server}//cluster/` };
  return await new Transport(below, { metrics: createMetrics() }).upgrade('/a?b=c', PROTOCOL, signal);
}

it('a connection is a POST with the token, and carries all bytes from the first one on', async () => {
  answer = (socket) => {
    socket.write(
      `HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: ${PROTOCOL}\r\n\r\nhello `,
    );
    socket.once('data', (chunk: Buffer) => socket.end(chunk));
  };
  const socket = await upgrade();
  socket.write('you');
  expect(await text(socket)).toBe('hello you');
  const [request] = asked;
  expect([request?.method, request?.url]).toEqual(['POST', '/cluster/a?b=c']);
  expect(request?.headers).toMatchObject({ upgrade: PROTOCOL, authorization: 'Bearer secret' });
});

it.each([
  ['a Status', '{"message":"pods is forbidden","reason":"Forbidden"}', 'pods is forbidden', 'Forbidden'],
  ['a text', 'Pod p does not wait for a file\n', 'Pod p does not wait for a file', ''],
])('a refusal with %s is an ApiError', async (_name, body, message, reason) => {
  answer = (socket) =>
    socket.end(
      `HTTP/1.1 403 Forbidden\r\ncontent-length: ${body.length}\r\nconnection: close\r\n\r\n${body}`,
    );
  await expect(upgrade()).rejects.toMatchObject({ name: 'ApiError', status: 403, message, reason });
});

it('an attempt ends with its signal', async () => {
  const abort = new AbortController();
  answer = () => abort.abort(new Error('too late'));
  await expect(upgrade(abort.signal)).rejects.toThrow('too late');
});

it('an attempt without an answer ends after 30 s with a DeadlineError', async () => {
  vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout'] });
  try {
    const { promise: arrived, resolve } = Promise.withResolvers<void>();
    answer = () => resolve();
    const late = vi.fn<(error: unknown) => void>();
    const attempt = upgrade();
    attempt.catch(late);
    await arrived;
    vi.advanceTimersByTime(29_999);
    for (let rounds = 0; rounds < 100; rounds += 1) {
      await new Promise((proceed) => setImmediate(proceed));
    }
    expect(late).not.toHaveBeenCalled();
    vi.advanceTimersByTime(1);
    await expect(attempt).rejects.toMatchObject({
      name: 'DeadlineError',
      message: 'POST /cluster/a: no answer in time',
    });
  } finally {
    vi.useRealTimers();
  }
});
