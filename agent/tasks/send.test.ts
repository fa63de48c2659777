import { spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { mkdtemp, readdir, rm, writeFile } from 'node:fs/promises';
import { type AddressInfo, connect, createServer, type Server, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { buffer } from 'node:stream/consumers';
import { afterEach, beforeEach, expect, it, onTestFinished, vi } from 'vitest';
import { ReasonedError } from '../../api/v1alpha1/reasons.ts';
import { TASK_API_VERSION } from '../../api/v1alpha1/task.ts';
import type { BaseImage } from '../disks/disk.ts';
import { markArgument } from '../disks/qemuimg.ts';
import { findByArgument } from '../processes/process.ts';
import type { DiskHost } from './disks.ts';
import type { TaskContext } from './runner.ts';
import { Downloaders, send } from './send.ts';

const POD = { metadata: { namespace: 'team' } } as TaskContext['pod'];

const content = randomBytes(300_000);
const { signal } = new AbortController();
const TASK = {
  apiVersion: TASK_API_VERSION,
  type: 'send',
  image: { source: { type: 'registry', reference: 'r.example/i:1' }, format: 'Auto', name: 'n' },
  format: 'qcow2',
} as const;

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
  const [first, last] = [await attach(), await attach()];
  const onEnd = vi.fn();
  const served = downloaders.serve({ ...file, bytes: 64 * 1024 ** 2 }, signal).finally(onEnd);
  served.catch(() => undefined);
  await Promise.all([once(first, 'readable'), once(last, 'readable')]);
  const [, host, , lastHost] = open as [Socket, Socket, Socket, Socket];
  expect([host.timeout, lastHost.timeout]).toEqual([60_000, 60_000]);
  const left = once(host, 'close');
  first.destroy();
  await left;
  // The other caller still gets bytes.
  let bytes = 0;
  last.on('data', (piece: Buffer) => (bytes += piece.length));
  await vi.waitUntil(() => bytes > 16 * 1024 ** 2, { timeout: 30_000 });
  expect(onEnd).not.toHaveBeenCalled();
  last.destroy();
  await expect(served).rejects.toMatchObject({ reason: 'DownloadInterrupted' });
});

it('is interrupted when its caller sends bytes, which would hide that it reads none', async () => {
  await writeFile(file.path, Buffer.alloc(64 * 1024 ** 2));
  const caller = await attach();
  caller.on('error', () => undefined);
  const served = downloaders.serve({ ...file, bytes: 64 * 1024 ** 2 }, signal);
  caller.write('x');
  await expect(served).rejects.toMatchObject({ reason: 'DownloadInterrupted' });
});

it('is interrupted when its caller closes only one side of the connection', async () => {
  await writeFile(file.path, Buffer.alloc(64 * 1024 ** 2));
  const caller = await attach();
  caller.on('error', () => undefined);
  const served = downloaders.serve({ ...file, bytes: 64 * 1024 ** 2 }, signal);
  caller.end();
  await expect(served).rejects.toMatchObject({ reason: 'DownloadInterrupted' });
});

it('waits for a caller who still reads when the time to come is over, and sends no byte of a file that grew', async () => {
  vi.useFakeTimers({ toFake: ['setTimeout'] });
  const caller = await attach();
  const served = downloaders.serve({ ...file, bytes: 1000 }, signal);
  vi.advanceTimersByTime(120_000);
  const received = await buffer(caller);
  expect(received.subarray(received.indexOf('\n') + 1).equals(content.subarray(0, 1000))).toBe(true);
  expect(await served).toBe(1);
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
  expect(open[1]?.timeout).toBe(60_000);
  expect(downloaders.take(open[0] as Socket)).toBe(false);
});

it('ends for all callers when its Pod is deleted', async () => {
  await writeFile(file.path, Buffer.alloc(64 * 1024 ** 2));
  const callers = [await attach(), await attach()];
  const abort = new AbortController();
  const served = downloaders.serve({ ...file, bytes: 64 * 1024 ** 2 }, abort.signal);
  served.catch(() => undefined);
  await Promise.all(callers.map(async (caller) => await once(caller, 'readable')));
  abort.abort(new Error('deleted'));
  await expect(served).rejects.toThrow('deleted');
  await Promise.all(
    callers.map(async (caller) => await once(caller.on('error', () => undefined).resume(), 'close')),
  );
});

it('ends when the disk of its host becomes full, and its copy is removed', async () => {
  const full = new AbortController();
  const withRoom: DiskHost['images']['withRoom'] = async (_claim, outer, work) =>
    await work(AbortSignal.any([outer, full.signal]));
  const log = (line: string): void => {
    if (line.startsWith('Sending')) {
      full.abort(new ReasonedError('DiskFull', 'no room'));
    }
  };
  const virtualSizeBytes = 64 * 1024;
  await writeFile(file.path, content.subarray(0, virtualSizeBytes));
  const base: BaseImage = { path: file.path, format: 'raw', virtualSizeBytes, digest: 'sha256:d' };
  const progress = () => undefined;
  const uid = `full-${process.pid}`;
  const context = { uid, pod: POD, folder, log, progress, signal, takeCallers: () => undefined } as unknown;
  const host = { images: { withRoom } } as unknown as DiskHost;
  const sent = send(host, TASK, context as TaskContext, async (use) => await use(base));
  await expect(sent).rejects.toMatchObject({ reason: 'DiskFull' });
  expect(await readdir(folder)).toEqual(['disk']);
});

it('ends the conversion that an earlier run of the agent has left running', async () => {
  const uid = `sender-${process.pid}`;
  const mark = markArgument(`berth-task-${uid}`);
  // This process stands for the qemu-img of the earlier run.
  const left = spawn(process.execPath, ['-e', 'setInterval(() => 0, 1000)', mark]);
  await once(left, 'spawn');
  onTestFinished(() => void left.kill('SIGKILL'));
  expect(await findByArgument(mark)).toMatchObject({ pid: left.pid });
  const nothing = () => undefined;
  const context = { uid, pod: POD, folder, log: nothing, progress: nothing, signal, takeCallers: nothing };
  const images = { withRoom: async () => await Promise.reject(new ReasonedError('DiskFull', 'no room')) };
  const base: BaseImage = { path: file.path, format: 'raw', virtualSizeBytes: 512, digest: 'sha256:d' };
  const host = { images } as unknown as DiskHost;
  const sent = send(host, TASK, context, async (use) => await use(base));
  await expect(sent).rejects.toMatchObject({ reason: 'DiskFull' });
  expect(await findByArgument(mark)).toBeUndefined();
});
