import { once } from 'node:events';
import { createServer, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { afterEach, beforeEach, expect, it, vi } from 'vitest';
import { createMetrics } from './metrics.ts';
import { type Method, Transport } from './transport.ts';

let server: Server;
let transport: Transport;
let arrived: PromiseWithResolvers<ServerResponse>;

beforeEach(async () => {
  arrived = Promise.withResolvers();
  server = createServer((_request, response) => arrived.resolve(response));
  await once(server.listen(0, '127.0.0.1'), 'listening');
  const { port } = server.address() as AddressInfo;
  transport = new Transport({ server: `http://127.0.0.1:${port}` }, { metrics: createMetrics() });
  vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout'] });
});

afterEach(async () => {
  vi.useRealTimers();
  await transport.close();
  server.closeAllConnections();
  server.close();
});

it('a change waits longer than the 34 s after which the API server ends it, so a slow webhook is told', async () => {
  const change = transport.request({ method: 'POST', path: '/pods', body: {} });
  const response = await arrived.promise;
  vi.advanceTimersByTime(34_500);
  response.writeHead(500, { 'content-type': 'application/json' });
  response.end('{"message":"failed calling webhook"}');
  await expect(change).resolves.toMatchObject({ status: 500, body: { message: 'failed calling webhook' } });
});

it.each<[Method, number]>([
  ['GET', 30_000],
  ['POST', 36_000],
  ['PUT', 36_000],
  ['PATCH', 36_000],
  ['DELETE', 36_000],
])('a %s without an answer ends after %i ms with a DeadlineError', async (method, milliseconds) => {
  const ended = vi.fn<(error: unknown) => void>();
  const request = transport.request({ method, path: '/pods' });
  request.catch(ended);
  await arrived.promise;
  vi.advanceTimersByTime(milliseconds - 1);
  for (let rounds = 0; rounds < 100; rounds += 1) {
    await new Promise((proceed) => setImmediate(proceed));
  }
  expect(ended).not.toHaveBeenCalled();
  vi.advanceTimersByTime(1);
  await expect(request).rejects.toMatchObject({
    name: 'DeadlineError',
    message: `${method} /pods: no answer in time`,
  });
});
