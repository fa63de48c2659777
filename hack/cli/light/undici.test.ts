import { once } from 'node:events';
import { createServer, type RequestListener, type Server } from 'node:http';
import { createServer as createSecureServer } from 'node:https';
import { type AddressInfo, connect } from 'node:net';
import { text } from 'node:stream/consumers';
import { gzipSync } from 'node:zlib';
import { buildConnector as libraryConnector, type Dispatcher, Pool as LibraryPool } from 'undici';
import { afterEach, describe, expect, it } from 'vitest';
import { isUnreachable } from '../../../kube/errors.ts';
import { exchange } from '../../../kube/transport.ts';
import { selfMadeCertificate } from '../../../kube/certificates/serving.ts';
import { buildConnector, Pool } from './undici.ts';

const ends: (() => unknown)[] = [];
afterEach(async () => {
  for (const end of ends.splice(0).toReversed()) {
    await end();
  }
});

async function listening(listener: RequestListener): Promise<{ origin: string; server: Server }> {
  const server = createServer(listener).listen(0, '127.0.0.1');
  await once(server, 'listening');
  ends.push(
    () => server.close(),
    () => server.closeAllConnections(),
  );
  return { origin: `http://127.0.0.1:${(server.address() as AddressInfo).port}`, server };
}

const GZIP = { 'content-encoding': 'gzip' };
const ENCODINGS = [
  ['plain', (body: Buffer) => body, {}],
  ['compressed', gzipSync, GZIP],
] as const;
const GET = { method: 'GET', path: '/' } as const;
const never = () => new AbortController().signal;

/** Both have the same behaviour. */
const POOLS = [
  ['undici', LibraryPool],
  ['the command', Pool],
] as const;

describe.each(POOLS)('an exchange of %s', (_name, One) => {
  /** Starts a server and a pool with one connection to the server. */
  async function serve(listener: RequestListener): Promise<{ pool: Dispatcher; server: Server }> {
    const { origin, server } = await listening(listener);
    const pool = new One(origin, { connections: 1 });
    ends.push(() => pool.destroy());
    return { pool: pool as unknown as Dispatcher, server };
  }

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

  it('sends its body with each method', async () => {
    const { pool } = await serve((request, response) => {
      const answer = async () => response.end(`${request.method} ${await text(request)}`);
      void answer();
    });
    for (const method of ['DELETE', 'PATCH', 'POST'] as const) {
      const options = { method, path: '/', headers: { accept: 'text/plain' }, body: '{"name":"Zoë"}' };
      expect((await exchange(pool, options, never())).text).toBe(`${method} {"name":"Zoë"}`);
    }
    expect((await exchange(pool, GET, never())).text).toBe('GET ');
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
    await expect(exchange(pool, GET, never())).rejects.toThrow(/other side closed|aborted/);
  });

  it.each(ENCODINGS)('lets other work run when %s pieces have taken 5 ms', async (_kind, encode, headers) => {
    const body = encode(Buffer.alloc(4 * 1024 * 1024));
    const { origin } = await listening((_, response) => void response.writeHead(200, headers).end(body));
    const pool = new One(origin, { connections: 2 });
    ends.push(() => pool.destroy());
    let cycle = 0;
    const work = (): void => {
      cycle += 1;
      next = setImmediate(work);
    };
    let next = setImmediate(work);
    ends.push(() => clearImmediate(next));
    const cycles: number[] = [];
    const read = (): void => {
      cycles.push(cycle);
      const end = performance.now() + 3;
      while (performance.now() < end) {
        // Another program would parse the piece.
      }
    };
    await Promise.all([0, 1].map(async () => await exchange(pool as Dispatcher, GET, never(), read)));
    expect(cycles.length).toBeGreaterThan(50);
    // The second piece of a turn is over 5 ms, and the other connection may deliver one piece more.
    const most = Math.max(
      ...Map.groupBy(cycles, (each) => each)
        .values()
        .map(({ length }) => length),
    );
    expect(most).toBeLessThanOrEqual(3);
  });

  it('fails when a refusal has no end', async () => {
    const piece = Buffer.alloc(1024 * 1024, 'a');
    const { pool } = await serve((_request, response) => {
      const write = (): void => {
        while (!response.destroyed && response.write(piece)) {
          // The next piece follows.
        }
      };
      response.on('drain', write).writeHead(500);
      write();
    });
    await expect(exchange(pool, GET, AbortSignal.timeout(30_000))).rejects.toThrow('more than');
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

  it('decompresses the body, also that of a refusal, and ends with the error of the reader', async () => {
    const long = 'é'.repeat(1_000_000);
    const { pool } = await serve((request, response) => {
      response.writeHead(request.url === '/' ? 200 : 403, GZIP).end(gzipSync(long));
    });
    const pieces: Buffer[] = [];
    const read = (piece: Buffer) => void pieces.push(piece);
    expect((await exchange(pool, GET, never(), read)).text).toBe('');
    expect(Buffer.concat(pieces).toString()).toBe(long);
    expect((await exchange(pool, { ...GET, path: '/other' }, never(), read)).text).toBe(long);
    let calls = 0;
    const fail = () => {
      calls += 1;
      throw new Error('no list');
    };
    await expect(exchange(pool, GET, never(), fail)).rejects.toThrow('no list');
    expect((await exchange(pool, GET, never())).text).toBe(long);
    expect(calls).toBe(1);
  });

  it.each([
    ['is cut off', (body: Buffer) => body.subarray(0, body.length - 20), 'unexpected end of file'],
    ['is not compressed', () => Buffer.from('{"items":[]}'), 'incorrect header check'],
    ['of a refusal is too long', () => gzipSync(Buffer.alloc(17 * 1024 * 1024)), 'more than'],
  ])('fails when a body that is said to be compressed %s', async (fault, change, message) => {
    const { pool } = await serve((_request, response) => {
      response.writeHead(fault.includes('refusal') ? 500 : 200, GZIP);
      response.end(change(gzipSync('answer'.repeat(10_000))));
    });
    await expect(exchange(pool, GET, never())).rejects.toThrow(message);
  });

  it('that is cancelled while a compressed body arrives gives no more pieces and closes its connection', async () => {
    const { promise: closed, resolve: close } = Promise.withResolvers<void>();
    const { pool } = await serve((_request, response) => {
      response.once('close', close);
      response.writeHead(200, GZIP).write(gzipSync(Buffer.alloc(4 * 1024 * 1024)).subarray(0, -10));
    });
    const limit = new AbortController();
    let calls = 0;
    const cancel = () => {
      calls += 1;
      limit.abort(new Error('enough'));
    };
    await expect(exchange(pool, GET, limit.signal, cancel)).rejects.toThrow('enough');
    await closed;
    expect(calls).toBe(1);
  });
});

describe.each([
  ['undici', LibraryPool, libraryConnector],
  ['the command', Pool as unknown as typeof LibraryPool, buildConnector as typeof libraryConnector],
] as const)('a connector of %s', (_name, One, build) => {
  it('opens the connections of a pool, and begins TLS on a connection that is open', async () => {
    const made = { commonName: 'api.example', dnsNames: ['api.example'], ipAddresses: [] };
    const { certificate: cert, key } = await selfMadeCertificate(made)();
    const server = createSecureServer({ cert, key }, ({ headers }, response) => {
      response.end(headers.host);
    }).listen(0, '127.0.0.1');
    await once(server, 'listening');
    const { port } = server.address() as AddressInfo;
    ends.push(
      () => server.close(),
      () => server.closeAllConnections(),
    );
    const secure = build({ ca: cert, timeout: 30_000 });
    const targets: string[] = [];
    const pool = new One('https://api.example', {
      connections: 1,
      connect: (target, callback) => {
        targets.push(`${target.protocol}//${target.hostname}`);
        secure({ ...target, httpSocket: connect(port, '127.0.0.1') }, callback);
      },
    });
    ends.push(() => pool.destroy());
    expect((await exchange(pool, GET, never())).text).toBe('api.example');
    expect(targets).toEqual(['https://api.example']);
  });

  it('fails the request if it fails, or if TLS does not begin in time', async () => {
    const server = createServer(() => undefined).listen(0, '127.0.0.1');
    await once(server, 'listening');
    const { port } = server.address() as AddressInfo;
    // The server never answers.
    server.removeAllListeners('connection').on('connection', (socket) => ends.push(() => socket.destroy()));
    ends.push(() => server.close());
    const refusal = new Error('the proxy refuses');
    const refusing = new One('http://api.example', {
      connect: (_target, callback) => callback(refusal, null),
    });
    ends.push(() => refusing.destroy());
    await expect(exchange(refusing, GET, never())).rejects.toThrow('the proxy refuses');
    const secure = build({ timeout: 50 });
    const silent = new One('https://api.example', {
      connect: (target, callback) => secure({ ...target, httpSocket: connect(port, '127.0.0.1') }, callback),
    });
    ends.push(() => silent.destroy());
    await expect(exchange(silent, GET, never())).rejects.toSatisfy(isUnreachable);
  });
});

describe.each(POOLS)('a stream of %s', (_name, One) => {
  const REQUEST = { ...GET, headersTimeout: 30_000 };

  it('gives the head at once and the body as it comes, and ends with the reason of its signal', async () => {
    const { origin } = await listening((_request, response) => {
      response.writeHead(200, { 'content-type': 'application/json' });
      response.write('first');
    });
    const pool = new One(origin, { connections: 1 });
    ends.push(() => pool.destroy());
    const limit = new AbortController();
    const { statusCode, headers, body } = await pool.request({ ...REQUEST, signal: limit.signal });
    expect([statusCode, headers['content-type']]).toEqual([200, 'application/json']);
    const pieces: string[] = [];
    const read = async () => {
      for await (const piece of body as AsyncIterable<Buffer>) {
        pieces.push(String(piece));
        limit.abort(new Error('enough'));
      }
    };
    await expect(read()).rejects.toThrow('enough');
    expect(pieces).toEqual(['first']);
  });

  it('reads a refusal as text, and fails without an answer in time or without a server', async () => {
    const { origin, server } = await listening((request, response) => {
      if (request.url === '/refused') {
        response.writeHead(403).end('no');
      }
    });
    const pool = new One(origin, { connections: 1 });
    ends.push(() => pool.destroy());
    const refused = await pool.request({ ...REQUEST, path: '/refused', signal: never() });
    expect([refused.statusCode, await text(refused.body)]).toEqual([403, 'no']);
    const late = pool.request({ ...REQUEST, headersTimeout: 50, signal: never() });
    await expect(late).rejects.toSatisfy(isUnreachable);
    server.closeAllConnections();
    server.close();
    await once(server, 'close');
    await expect(pool.request({ ...REQUEST, signal: never() })).rejects.toSatisfy(isUnreachable);
  });
});
