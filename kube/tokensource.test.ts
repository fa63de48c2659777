import { once } from 'node:events';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { createMetrics } from './metrics.ts';
import { Transport } from './transport.ts';

let folder: string;
let server: Server;
let transport: Transport;
let accepted: string;

beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'berth-token-'));
  server = createServer((request, response) => {
    response.writeHead(request.headers.authorization === `Bearer ${accepted}` ? 200 : 401).end();
  });
  await once(server.listen(0, '127.0.0.1'), 'listening');
  const { port } = server.address() as AddressInfo;
  const connection = { server: `http://127.0.0.1:${port}`, tokenFile: join(folder, 'token') };
  transport = new Transport(connection, { metrics: createMetrics() });
});

afterEach(async () => {
  await transport.close();
  server.close();
  await rm(folder, { recursive: true });
});

async function statusOf(): Promise<number> {
  return (await transport.request({ method: 'GET', path: '/' })).status;
}

it('every request that a renewed token overtakes is sent again with the new token', async () => {
  accepted = 'old';
  await writeFile(join(folder, 'token'), 'old\n');
  expect(await statusOf()).toBe(200);
  accepted = 'new';
  await writeFile(join(folder, 'token'), 'new\n');
  expect(await Promise.all([statusOf(), statusOf(), statusOf()])).toEqual([200, 200, 200]);
  accepted = 'later';
  expect(await statusOf(), 'with a file that still has a refused token').toBe(401);
});
