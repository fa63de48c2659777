/** Bodies of requests, sent over real connections. */
import { once } from 'node:events';
import { connect, type Socket } from 'node:net';
import { pino } from 'pino';
import { afterAll, beforeAll, expect, it, type MockInstance, vi } from 'vitest';
import { KubeClient } from '../../kube/client.ts';
import { ApiError } from '../../kube/errors.ts';
import { type ListeningServer, listen } from '../../kube/serving/httpserver.ts';
import { configSchema } from '../config.ts';
import { assemble } from '../server.ts';
import { StatusError } from './errors.ts';

const PATH = '/api/v1/namespaces/platform-default/vms';
const MEBIBYTE = 1024 * 1024;
/** A number of large bodies that is larger than the server reads at the same time. */
const MANY = 52;
const WAIT = { timeout: 30_000, interval: 50 };

let server: Awaited<ReturnType<typeof assemble>>;
let running: ListeningServer;
const sockets = new Set<Socket>();
/** Call with which the server asks the API server who a caller is. */
const review = vi.spyOn(KubeClient.prototype, 'create');
let right: MockInstance<typeof server.own.rights.require>;
let number = 0;

/** Makes the API server know the callers. Each token is a user of its own. */
function know(): void {
  review.mockImplementation(async () => {
    number += 1;
    return { metadata: { name: '' }, status: { userInfo: { username: `user-${number}` } } } as never;
  });
}

/** Returns a token that no other request has. */
function anotherToken(): string {
  number += 1;
  return `token-${number}`;
}

beforeAll(async () => {
  server = await assemble({
    // No server listens there. The tests decide which callers the API server knows.
    connection: { server: 'https://127.0.0.1:1' },
    config: configSchema.parse({ http: { tls: false } }),
    logger: pino({ level: 'silent' }),
  });
  right = vi.spyOn(server.own.rights, 'require').mockResolvedValue();
  know();
  running = await listen(server.app.server, '127.0.0.1:0');
});

afterAll(async () => {
  sockets.forEach((socket) => socket.destroy());
  await running?.close();
  await server?.close();
});

async function post(body: string, token = anotherToken()): Promise<Response> {
  const headers = { authorization: `Bearer ${token}`, 'content-type': 'application/json' };
  return await fetch(`http://127.0.0.1:${running.port}${PATH}`, { method: 'POST', headers, body });
}

/** Returns a body of which the server refuses a field. */
const body = (length: number) => JSON.stringify({ cpu: 1_000, padding: 'x'.repeat(length) });

/** Sends almost a whole body, and then sends nothing. */
function hold(chunk: string, token = anotherToken()): Socket {
  const socket = connect(running.port, '127.0.0.1');
  sockets.add(socket);
  socket.on('error', () => undefined);
  socket.write(
    `POST ${PATH} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer ${token}\r\nTransfer-Encoding: chunked\r\n\r\n`,
  );
  socket.write(`${chunk.length.toString(16)}\r\n${chunk}\r\n`);
  return socket;
}

it('reads no more large bodies at once than memory allows, and common requests all the time', async () => {
  const large = body(MEBIBYTE - 100);
  for (let count = 0; count < MANY; count += 1) {
    hold(large.slice(0, -1));
  }
  const refused = await vi.waitFor(async () => {
    const answer = await post(large);
    expect(answer.status).toBe(503);
    return answer;
  }, WAIT);
  expect(refused.headers.get('retry-after')).toMatch(/^\d+$/);
  expect(await refused.json()).toMatchObject({ kind: 'Status', reason: 'ServiceUnavailable' });
  expect((await post(body(4_000))).status).toBe(422);
  sockets.forEach((socket) => socket.destroy());
  await vi.waitFor(async () => expect((await post(large)).status).toBe(422), WAIT);
});

it('counts each body once, whatever its end', async () => {
  for (const [length, code] of [
    [MEBIBYTE - 100, 422],
    [MEBIBYTE, 413],
  ] as const) {
    for (let count = 0; count < MANY; count += 1) {
      expect((await post(body(length))).status).toBe(code);
    }
  }
  expect((await post(body(MEBIBYTE - 100))).status).toBe(422);
});

it('reads a body only of a caller whom the API server knows', async () => {
  review.mockRejectedValue(new ApiError('Unauthorized', { status: 401, reason: 'Unauthorized' }));
  const large = body(MEBIBYTE - 100);
  expect((await post(large, 'invented')).status).toBe(401);
  expect((await post(body(4_000), 'invented')).status).toBe(401);
  // These bodies are sent in chunks, so the server does not know their length.
  const held = Array.from({ length: MANY }, () => hold(large.slice(0, -1), 'invented'));
  const answers = await Promise.all(held.map(async (socket) => (await once(socket, 'data')) as Buffer[]));
  answers.forEach(([answer]) => expect(String(answer)).toMatch(/^HTTP\/1.1 401 /));
  know();
  expect((await post(large)).status).toBe(422);
});

it('reads a body only of a caller with the right of the route', async () => {
  right.mockRejectedValue(new StatusError(403, 'forbidden'));
  expect((await post('no JSON')).status).toBe(403);
  const [answer] = (await once(hold('{'), 'data')) as Buffer[];
  expect(String(answer)).toMatch(/^HTTP\/1.1 403 /);
  right.mockResolvedValue();
  expect((await post('no JSON')).status).toBe(400);
});

it('lets one user send only a part of the bytes of all bodies, so that others can send large bodies', async () => {
  const large = body(MEBIBYTE - 100);
  for (let count = 0; count < MANY; count += 1) {
    hold(large.slice(0, -1), 'greedy');
  }
  const refused = await vi.waitFor(async () => {
    const answer = await post(large, 'greedy');
    expect(answer.status).toBe(429);
    return answer;
  }, WAIT);
  expect(refused.headers.get('retry-after')).toMatch(/^\d+$/);
  expect((await post(body(4_000), 'greedy')).status).toBe(422);
  expect((await post(large)).status).toBe(422);
});
