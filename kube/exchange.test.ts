import { createServer, type RequestListener, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { Pool } from 'undici';
import { afterEach, describe, expect, it } from 'vitest';
import { exchange } from './exchange.ts';

const ends: (() => unknown)[] = [];
afterEach(async () => {
  for (const end of ends.splice(0).toReversed()) {
    await end();
  }
});

/** Starts a server and a pool with one connection to the server. */
async function serve(listener: RequestListener): Promise<{ pool: Pool; server: Server }> {
  const server = createServer(listener).listen(0, '127.0.0.1');
  await new Promise((resolve) => server.once('listening', resolve));
  const { port } = server.address() as AddressInfo;
  const pool = new Pool(`http://127.0.0.1:${port}`, { connections: 1 });
  ends.push(
    () => server.close(),
    () => server.closeAllConnections(),
    () => pool.destroy(),
  );
  return { pool, server };
}

const GET = { method: 'GET', path: '/' } as const;
const never = () => new AbortController().signal;

describe('an exchange', () => {
  it('gives status, headers and a body in several parts, also if a part ends inside a character', async () => {
    const bytes = Buffer.from('{"name":"Zoë"}');
    const { pool } = await serve((_request, response) => {
      response.writeEarlyHints({ link: '</style.css>; rel=preload' });
      response.writeHead(201, { 'content-type': 'application/json' });
      response.write(bytes.subarray(0, 12), () => setImmediate(() => response.end(bytes.subarray(12))));
    });
    const { statusCode, headers, text } = await exchange(pool, GET, never());
    expect([statusCode, headers['content-type'], text]).toEqual([201, 'application/json', '{"name":"Zoë"}']);
  });

  it('that is cancelled while it waits for a connection is never sent', async () => {
    const paths: (string | undefined)[] = [];
    const { promise: arrived, resolve: arrive } = Promise.withResolvers<() => void>();
    const { pool } = await serve((request, response) => {
      paths.push(request.url);
      if (request.url === '/first') {
        arrive(() => response.end('done'));
      } else {
        response.end('done');
      }
    });
    const first = exchange(pool, { ...GET, path: '/first' }, never());
    const answer = await arrived;
    const limit = new AbortController();
    const second = exchange(pool, { ...GET, path: '/second' }, limit.signal);
    limit.abort(new Error('too late'));
    await expect(second).rejects.toThrow('too late');
    answer();
    expect((await first).text).toBe('done');
    expect((await exchange(pool, { ...GET, path: '/third' }, never())).text).toBe('done');
    expect(paths).toEqual(['/first', '/third']);
  });

  it('that is cancelled in the middle of the answer closes its connection', async () => {
    const { promise: begun, resolve: begin } = Promise.withResolvers<void>();
    const { promise: closed, resolve: close } = Promise.withResolvers<void>();
    const { pool } = await serve((_request, response) => {
      response.once('close', close);
      response.write('half', () => begin());
    });
    const limit = new AbortController();
    const half = exchange(pool, GET, limit.signal);
    await begun;
    limit.abort(new Error('too late'));
    await expect(half).rejects.toThrow('too late');
    await closed;
  });

  it('fails with the error of a connection that ends before the answer does', async () => {
    const { pool } = await serve((_request, response) => {
      response.writeHead(200, { 'content-length': 100 });
      response.write('half', () => response.destroy());
    });
    await expect(exchange(pool, GET, never())).rejects.toThrow('other side closed');
  });

  it('gives the body in pieces, and ends with the error of their reader', async () => {
    const { pool } = await serve((request, response) => {
      response.statusCode = request.url === '/' ? 200 : 403;
      response.end('answer');
    });
    const pieces: string[] = [];
    const read = (piece: Buffer) => void pieces.push(String(piece));
    expect((await exchange(pool, GET, never(), read)).text).toBe('');
    const refused = await exchange(pool, { ...GET, path: '/other' }, never(), read);
    expect([pieces.join(''), refused.text]).toEqual(['answer', 'answer']);
    const fail = () => {
      throw new Error('no list');
    };
    await expect(exchange(pool, GET, never(), fail)).rejects.toThrow('no list');
    expect((await exchange(pool, GET, never())).text).toBe('answer');
  });
});
