import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { type AddressInfo, connect, createServer, type Server, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { buffer } from 'node:stream/consumers';
import { afterEach, beforeEach, expect, it, vi } from 'vitest';
import { ReasonedError } from '../../api/v1alpha1/reasons.ts';
import { Downloaders } from './send.ts';

const content = randomBytes(300_000);
const { signal } = new AbortController();

let folder: string;
let server: Server;
let file: { path: string; bytes: number };
let downloaders: Downloaders;
let open: Socket[];

beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'berth-download-'));
  file = { path: join(folder, 'disk'), bytes: content.length };
  await writeFile(file.path, content);
  downloaders = new Downloaders();
  open = [];
  server = createServer({ allowHalfOpen: true }).listen(0, '127.0.0.1');
  await once(server, 'listening');
});

afterEach(async () => {
  vi.useRealTimers();
  for (const socket of open) {
    socket.destroy();
  }
  server.close();
  await rm(folder, { recursive: true });
});

/** Attaches a caller, and returns the caller's end of the connection. */
async function attach(): Promise<Socket> {
  const accepted = once(server, 'connection');
  const caller = connect((server.address() as AddressInfo).port, '127.0.0.1');
  const [host] = (await accepted) as [Socket];
  open.push(caller, host);
  expect(downloaders.take(host)).toBe(true);
  return caller;
}

const HEAD = Buffer.from(`${JSON.stringify({ bytes: content.length })}\n`);

it('goes whole to each caller, before and after the file is ready, and then takes no more', async () => {
  const first = buffer(await attach());
  const served = downloaders.serve(file, signal);
  const second = buffer(await attach());
  for (const received of [await first, await second]) {
    expect(received.equals(Buffer.concat([HEAD, content]))).toBe(true);
  }
  expect(await served).toBe(2);
  expect(downloaders.take(open[0] as Socket)).toBe(false);
});

it('that is shorter than announced is no success, and its caller gets fewer bytes than announced', async () => {
  const caller = buffer(await attach());
  const served = downloaders.serve({ ...file, bytes: content.length + 1 }, signal);
  await expect(served).rejects.toMatchObject({ reason: 'DownloadInterrupted' });
  expect((await caller).length).toBeLessThan(HEAD.length + content.length + 1);
});

it('is interrupted when all callers leave before its end', async () => {
  await writeFile(file.path, Buffer.alloc(64 * 1024 ** 2));
  const caller = await attach();
  const served = downloaders.serve({ ...file, bytes: 64 * 1024 ** 2 }, signal);
  served.catch(() => undefined);
  await once(caller, 'readable');
  caller.destroy();
  await expect(served).rejects.toMatchObject({ reason: 'DownloadInterrupted' });
});

it('is interrupted when nobody comes in time', async () => {
  vi.useFakeTimers({ toFake: ['setTimeout'] });
  const served = downloaders.serve(file, signal);
  served.catch(() => undefined);
  vi.advanceTimersByTime(120_000);
  await expect(served).rejects.toMatchObject({ reason: 'DownloadInterrupted' });
});

it('that cannot be fetched is refused to those who wait', async () => {
  const caller = buffer(await attach());
  downloaders.refuse(new ReasonedError('ImageFetchFailed', 'no answer'));
  expect(JSON.parse(String(await caller))).toEqual({ reason: 'ImageFetchFailed', message: 'no answer' });
});

it('ends for all callers when its Pod is deleted', async () => {
  await writeFile(file.path, Buffer.alloc(64 * 1024 ** 2));
  const caller = await attach();
  const abort = new AbortController();
  const served = downloaders.serve({ ...file, bytes: 64 * 1024 ** 2 }, abort.signal);
  served.catch(() => undefined);
  await once(caller, 'readable');
  abort.abort(new Error('deleted'));
  await expect(served).rejects.toThrow('deleted');
  caller.on('error', () => undefined).resume();
  await once(caller, 'close');
});
