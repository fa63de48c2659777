/** Tests long answers over real connections whose clients do not read. */
import { EventEmitter, once } from 'node:events';
import type { ServerResponse } from 'node:http';
import { connect, type Socket } from 'node:net';
import { pino } from 'pino';
import { afterAll, beforeAll, expect, it, vi } from 'vitest';
import { type ListeningServer, listen } from '../../kube/serving/httpserver.ts';
import { UnreadAnswers } from './answers.ts';
import { type App, createApp } from './app.ts';

/** Length of an answer. The kernel takes a part of it, but not all. */
const LONG = 24 * 1024 * 1024;
const WAIT = { timeout: 30_000, interval: 50 };

let app: App;
let running: ListeningServer;
const sockets = new Set<Socket>();
/** Number of requests whose answers clients read too late. */
let asked = 0;

beforeAll(async () => {
  app = createApp({ logger: pino({ level: 'silent' }), tls: false });
  app.addHook('onRequest', (request, _reply, next) => {
    request.owner = () => Promise.resolve(String(request.headers['x-user']));
    next();
  });
  app.get('/long', () => 'x'.repeat(LONG));
  app.get('/short', () => 'x');
  app.get('/late', async (request) => {
    asked += 1;
    await once(request.raw.socket, 'close');
    return 'x'.repeat(LONG);
  });
  await app.ready();
  running = await listen(app.server, '127.0.0.1:0');
});

afterAll(async () => {
  sockets.forEach((socket) => socket.destroy());
  await running?.close();
});

async function get(path: string, user = 'ann', signal?: AbortSignal): Promise<Response> {
  const url = `http://127.0.0.1:${running.port}${path}`;
  return await fetch(url, { headers: { 'X-User': user }, ...(signal && { signal }) });
}

/** Asks for a long answer, and reads only its start. */
async function hold(user: string): Promise<void> {
  const socket = connect(running.port, '127.0.0.1');
  sockets.add(socket);
  socket.on('error', () => undefined);
  socket.write(`GET /long HTTP/1.1\r\nHost: a\r\nX-User: ${user}\r\n\r\n`);
  await once(socket, 'readable');
}

it('refuses long answers while clients read too slowly, and gives short ones all the time', async () => {
  for (const user of ['ann', 'bob', 'cid']) {
    await hold(user);
  }
  // The share of one user is over before that of all.
  expect((await get('/long', 'ann')).status).toBe(429);
  await hold('dan');
  const refused = await get('/long', 'eve');
  expect([refused.status, refused.headers.get('retry-after')]).toEqual([503, expect.stringMatching(/^\d+$/)]);
  expect(await refused.json()).toMatchObject({ kind: 'Status', code: 503 });
  expect((await get('/short')).status).toBe(200);
  sockets.forEach((socket) => socket.destroy());
  await vi.waitFor(async () => {
    const { status, body } = await get('/long');
    await body?.cancel();
    expect(status).toBe(200);
  }, WAIT);
});

it('does not count the answers of clients that are gone', async () => {
  for (let count = 0; count < 5; count += 1) {
    const gone = new AbortController();
    const answer = get('/late', 'ann', gone.signal);
    await vi.waitFor(() => expect(asked).toBe(count + 1), WAIT);
    gone.abort();
    await expect(answer).rejects.toThrow(/aborted/);
  }
  const { status, body } = await get('/long');
  await body?.cancel();
  expect(status).toBe(200);
});

class FakeResponse extends EventEmitter {
  readonly destroyed = false;

  destroy(): void {
    this.emit('close');
  }
}

it('counts the bytes of answers, and ends an answer that takes too long', async () => {
  vi.useFakeTimers();
  try {
    const unread = new UnreadAnswers();
    const add = async (owner: string) => {
      const response = new FakeResponse() as unknown as ServerResponse;
      await unread.add(response, '€'.repeat(LONG / 3), () => Promise.resolve(owner));
    };
    await add('ann');
    await expect(add('ann')).rejects.toThrow(/too many unread long answers/);
    vi.advanceTimersByTime(59_000);
    await expect(add('ann')).rejects.toThrow(/too many unread long answers/);
    vi.advanceTimersByTime(1_000);
    await add('ann');
  } finally {
    vi.useRealTimers();
  }
});
