import { once } from 'node:events';
import { writeFile } from 'node:fs/promises';
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, it, vi } from 'vitest';
import { CredentialError } from './errors.ts';
import { createMetrics } from './metrics.ts';
import { TokenSource } from './tokensource.ts';
import { Transport } from './transport.ts';
import { makeFolder } from '../test/support/folder.ts';

let folder: string;
let server: Server;
let transport: Transport;
let accepted: string;

beforeEach(async () => {
  folder = makeFolder();
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

it.each([
  ['is missing', undefined, /^The token file .*token cannot be read: ENOENT/],
  ['is empty', '\n', /^The token file .*token is empty$/],
])('tells that the token file %s', async (_, content, expected) => {
  if (content !== undefined) {
    await writeFile(join(folder, 'token'), content);
  }
  const error: unknown = await statusOf().catch((reason: unknown) => reason);
  expect(error).toBeInstanceOf(CredentialError);
  expect((error as Error).message).toMatch(expected);
});

it('keeps its token while another program writes the token file', async () => {
  vi.useFakeTimers({ toFake: ['performance'] });
  try {
    const file = join(folder, 'token');
    const source = new TokenSource({ tokenFile: file });
    await writeFile(file, 'old');
    expect(await source.token()).toBe('old');
    for (const [content, token] of [
      ['', 'old'],
      ['new', 'new'],
    ] as const) {
      await writeFile(file, content);
      vi.advanceTimersByTime(60_001);
      expect(await source.token()).toBe(token);
    }
  } finally {
    vi.useRealTimers();
  }
});
