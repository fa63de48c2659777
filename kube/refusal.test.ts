import { once } from 'node:events';
import { createServer, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { createMetrics } from './metrics.ts';
import { Transport } from './transport.ts';

let server: Server;
let transport: Transport;
let refuse: (response: ServerResponse) => void;
let asked: (string | undefined)[];

beforeEach(async () => {
  asked = [];
  server = createServer((request, response) => {
    asked.push(request.url);
    response.writeHead(403, { 'content-type': 'application/json', 'retry-after': '7' });
    refuse(response);
  });
  await once(server.listen(0, '127.0.0.1'), 'listening');
  const { port } = server.address() as AddressInfo;
  transport = new Transport({ server: `http://127.0.0.1:${port}` }, { metrics: createMetrics() });
});

afterEach(async () => {
  await transport.close();
  server.closeAllConnections();
  server.close();
});

/** Resolves with the error of a stream that the server refuses. */
async function refusal(): Promise<unknown> {
  const asked = transport.stream('/watch', AbortSignal.timeout(45_000));
  return await asked.catch((error: unknown) => error);
}

it('of a stream has the words of the server', async () => {
  refuse = (response) => response.end('{"message":"no right","reason":"Forbidden"}');
  const expected = { status: 403, message: 'no right', reason: 'Forbidden', retryAfterMilliseconds: 7_000 };
  expect(await refusal()).toMatchObject(expected);
});

it('of a stream ends, although the server sends it without an end or not at all', async () => {
  const piece = Buffer.alloc(1024 * 1024, 'a');
  refuse = (response) => {
    const write = (): void => {
      while (!response.destroyed && response.write(piece)) {
        // The next piece follows.
      }
    };
    response.on('drain', write);
    write();
  };
  expect(await refusal()).toMatchObject({ status: 403 });
  refuse = (response) => response.write('{"message":');
  expect(await refusal()).toMatchObject({ status: 403 });
});

it('comes from below the path in the address of the server, which a proxy for several clusters has', async () => {
  refuse = (response) => response.end('{}');
  const { port } = server.address() as AddressInfo;
  const address = `http://127.0.0.1:${port}/clusters/a/`;
  await transport.close();
  transport = new Transport({ server: address }, { metrics: createMetrics() });
  await refusal();
  await transport.request({ method: 'GET', path: '/api' });
  expect(asked).toEqual(['/clusters/a/watch', '/clusters/a/api']);
});
