import { once } from 'node:events';
import { connect as connectTcp } from 'node:net';
import { text } from 'node:stream/consumers';
import { connect as connectTls, type TLSSocket } from 'node:tls';
import { pino } from 'pino';
import { afterEach, beforeAll, expect, it, vi } from 'vitest';
import { createKey, selfSigned } from '../certificates/certificate.ts';
import { allowLongBody, createServer, holdOpen, listen } from './httpserver.ts';
import { acceptUpgrades } from './upgrades.ts';

/** If the server waits for one of its time limits, it needs at least 5 s. */
const AT_ONCE_MILLISECONDS = 4_500;

const logger = pino({ level: 'silent' });
let tls: { cert: string; key: string };

beforeAll(async () => {
  const key = await createKey();
  const certificate = await selfSigned({ key, commonName: 'server', ipAddresses: ['127.0.0.1'], days: 1 });
  tls = { cert: certificate, key: key.pem };
});

afterEach(() => vi.useRealTimers());

async function handshake(port: number): Promise<TLSSocket> {
  const socket = connectTls({ port, host: '127.0.0.1', rejectUnauthorized: false });
  await once(socket, 'secureConnect');
  return socket;
}

async function ask(port: number, path: string, headers = ''): Promise<TLSSocket> {
  const socket = await handshake(port);
  socket.write(`GET ${path} HTTP/1.1\r\nHost: a\r\n${headers}\r\n`);
  await once(socket, 'data');
  return socket;
}

it.each([
  [
    'before its handshake',
    async (port: number) => {
      const socket = connectTcp({ port, host: '127.0.0.1' });
      await once(socket, 'connect');
      return socket;
    },
  ],
  ['without a request', handshake],
  ['between two requests', (port: number) => ask(port, '/')],
  ['with an open answer', (port: number) => ask(port, '/open')],
  ['that is upgraded', (port: number) => ask(port, '/', 'Connection: Upgrade\r\nUpgrade: other\r\n')],
])('a server that closes does not wait for a connection %s', async (_, open) => {
  const handled: Promise<unknown>[] = [];
  const server = createServer(
    (_request, response, url) => {
      holdOpen(response);
      response.write('begun');
      if (url.pathname === '/') {
        response.end();
      }
    },
    { logger, tls },
  );
  acceptUpgrades(
    server,
    async ({ socket }) => {
      socket.write('begun');
      handled.push(once(socket, 'close'));
      await handled[0];
    },
    logger,
  );
  const accepted = once(server, 'connection');
  const running = await listen(server, '127.0.0.1:0');
  const client = await open(running.port);
  client.on('error', () => undefined);
  const closed = once(client, 'close');
  await accepted;
  const begun = performance.now();
  await running.close();
  await closed;
  // The handler of an upgrade sees the end, too.
  await Promise.all(handled);
  expect(performance.now() - begun).toBeLessThan(AT_ONCE_MILLISECONDS);
});

it('a client that has its answer may send the next request at once', async () => {
  const { promise: ended, resolve: end } = Promise.withResolvers<void>();
  const large = 'x'.repeat(16 * 1024 * 1024);
  const server = createServer(
    (_request, response, url) => {
      response.end(url.pathname === '/large' ? large : 'done');
      end();
    },
    { logger, tls },
  );
  const running = await listen(server, '127.0.0.1:0');
  try {
    const socket = await handshake(running.port);
    socket.write('GET /large HTTP/1.1\r\nHost: a\r\n\r\n');
    await ended;
    socket.write('GET /next HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n');
    expect(await text(socket)).toMatch(/done$/);
  } finally {
    await running.close();
  }
});

it('a client that sends a second request before the answer to the first loses its connection', async () => {
  const asked: string[] = [];
  const server = createServer(
    (_request, response, url) => {
      asked.push(url.pathname);
      holdOpen(response);
      if (url.pathname === '/quick') {
        response.end('done');
      }
    },
    { logger, tls },
  );
  const running = await listen(server, '127.0.0.1:0');
  try {
    const socket = await ask(running.port, '/quick');
    socket.write('GET /one HTTP/1.1\r\nHost: a\r\n\r\nGET /two HTTP/1.1\r\nHost: a\r\n\r\n');
    await once(socket, 'close');
    expect(asked).toEqual(['/quick', '/one']);
  } finally {
    await running.close();
  }
});

it('a server that drains accepts no connection, and waits for the answers under way until its limit', async () => {
  const { promise: go, resolve } = Promise.withResolvers<void>();
  const server = createServer(
    async (_request, response, url) => {
      response.write('begun');
      if (url.pathname === '/slow') {
        await go;
        response.end('ended');
      }
    },
    { logger, tls },
  );
  const running = await listen(server, '127.0.0.1:0');
  const slow = await ask(running.port, '/slow');
  const reported = once(slow, 'data');
  let isDrained = false;
  const draining = running.drain(60_000).then(() => {
    isDrained = true;
  });
  await expect(handshake(running.port)).rejects.toThrow('ECONNREFUSED');
  expect(isDrained).toBe(false);
  resolve();
  await draining;
  await running.close();
  expect(String((await reported)[0])).toContain('ended');
});

it('a server that drains does not wait for an answer without end', async () => {
  const server = createServer((_request, response) => void response.write('begun'), { logger, tls });
  const running = await listen(server, '127.0.0.1:0');
  const endless = await ask(running.port, '/');
  endless.on('error', () => undefined);
  const closed = once(endless, 'close');
  await running.drain(10);
  expect(endless.closed).toBe(false);
  await running.close();
  await closed;
});

it.each([
  ['closes the connection of a slow body', '/slow', true],
  ['lets an upload take its time', '/upload', false],
])('a server %s', async (_name, path, isClosed) => {
  vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout'] });
  const read: string[] = [];
  const server = createServer(
    async (request, response, url) => {
      if (url.pathname === '/upload') {
        allowLongBody(request, response);
      }
      response.write('begun');
      read.push(await text(request).catch(() => 'cut off'));
      response.end('ended');
    },
    { logger, tls },
  );
  // Node.js has a time limit for whole requests, whose timers cannot be faked. It would cut off an upload of more than ten seconds.
  expect(server.requestTimeout).toBe(0);
  const running = await listen(server, '127.0.0.1:0');
  const socket = await handshake(running.port);
  socket.on('error', () => undefined);
  socket.write(`POST ${path} HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nab`);
  await once(socket, 'data');
  vi.advanceTimersByTime(9_999);
  expect(socket.destroyed).toBe(false);
  const closed = once(socket, 'close');
  vi.advanceTimersByTime(60_000);
  if (isClosed) {
    await closed;
  } else {
    socket.write('cd');
    await once(socket, 'data');
    // The next request of the connection is not cut off.
    vi.advanceTimersByTime(10_000);
    socket.write('GET / HTTP/1.1\r\nHost: a\r\n\r\n');
    await once(socket, 'data');
  }
  await running.close();
  expect(read).toEqual(isClosed ? ['cut off'] : ['abcd', '']);
});

it.each(['/upload', '/other'])(
  'a client that goes on with its body after the answer of %s is cut off',
  async (path) => {
    vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout'] });
    const server = createServer(
      (request, response, url) => {
        if (url.pathname === '/upload') {
          allowLongBody(request, response);
        }
        response.end('refused');
      },
      { logger, tls },
    );
    const running = await listen(server, '127.0.0.1:0');
    const socket = await handshake(running.port);
    socket.on('error', () => undefined);
    const bytes: Buffer[] = [];
    socket.on('data', (chunk: Buffer) => bytes.push(chunk));
    socket.write(`POST ${path} HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nab`);
    await once(socket, 'data');
    const closed = once(socket, 'close', { signal: AbortSignal.timeout(AT_ONCE_MILLISECONDS) });
    vi.advanceTimersByTime(9_999);
    expect(socket.destroyed).toBe(false);
    vi.advanceTimersByTime(1);
    await closed;
    await running.close();
    expect(String(Buffer.concat(bytes)).match(/HTTP\/1.1 /g)).toHaveLength(1);
  },
);
