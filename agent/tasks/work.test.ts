import { spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { mkdtemp, readdir, rm, writeFile } from 'node:fs/promises';
import { type AddressInfo, connect, createServer, type Server, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { buffer } from 'node:stream/consumers';
import { afterEach, beforeEach, expect, it, onTestFinished, test, vi } from 'vitest';
import { type Task, TASK_API_VERSION } from '../../api/v1alpha1/task.ts';
import { Keyring } from '../images/oci/credentials.ts';
import type { PublishingOptions } from '../images/publisher.ts';
import type { AskedImage } from '../images/store.ts';
import type { MachineImageSource } from '../../api/v1alpha1/source.ts';
import type { TaskContext } from './runner.ts';
import { Downloaders, send, type TaskHost, taskWork } from './work.ts';
import { ReasonedError } from '../../api/v1alpha1/reasons.ts';
import type { BaseImage } from '../disks/disk.ts';
import { folderBytes } from '../disks/diskio.ts';
import { markArgument } from '../disks/qemuimg.ts';
import type { CopyOptions, DiskCopy } from '../drivers/driver.ts';
import type { RawDisk } from '../images/layouts/publish.ts';
import { findByArgument } from '../processes/process.ts';
import type { DiskHost } from './disks.ts';

const POD = { metadata: { namespace: 'team' } } as TaskContext['pod'];

const INDEX = `sha256:${'1'.repeat(64)}`;
const MANIFEST = `sha256:${'2'.repeat(64)}`;

/** Does an import task without a target. The store resolves the reference to `named`. Returns the reference in the report of the task. */
async function imported(source: MachineImageSource, named: string | undefined): Promise<string | undefined> {
  const ensure = async (_: MachineImageSource, { onResolved }: AskedImage) => {
    if (named !== undefined) {
      onResolved?.(named);
    }
    return { path: import.meta.filename, digest: MANIFEST, format: 'raw', virtualSizeBytes: 512 };
  };
  const images = { ensure, cloned: vi.fn(), release: vi.fn() };
  const host = { images, keyring: async () => Keyring.parse([]) } as unknown as TaskHost;
  const context = { uid: 'u', pod: POD, log: vi.fn(), progress: vi.fn() } as unknown as TaskContext;
  const task: Task = { apiVersion: TASK_API_VERSION, type: 'import', image: { source, format: 'Auto' } };
  return (await taskWork(host)(task, context)).reference;
}

test.each([
  ['an index', INDEX],
  ['the image itself', MANIFEST],
])('an import without a target reports the digest that the tag names now, here of %s', async (_, named) => {
  const reference = 'registry.example/team/disk:1';
  const pinned = `registry.example/team/disk@${named}`;
  expect(await imported({ type: 'registry', reference }, pinned)).toBe(pinned);
});

test('an import without a target reports no reference if the image is from no registry', async () => {
  expect(await imported({ type: 'sharedFile', path: 'disk' }, undefined)).toBeUndefined();
});

test('a push that takes long delays no removal of its image from the cache', async () => {
  const calls: string[] = [];
  const base = { path: import.meta.filename, digest: MANIFEST, format: 'raw', virtualSizeBytes: 512 };
  const images = {
    ensure: async () => base,
    cloned: (holder: string) => calls.push(`no longer awaited: ${holder}`),
    release: (holder: string) => calls.push(`no longer needed: ${holder}`),
  };
  const publisher = { push: async () => ({ reference: `pushed ${calls.push('push')}` }) };
  const host = { images, publisher, keyring: async () => Keyring.parse([]) } as unknown as TaskHost;
  const context = { uid: 'u', pod: POD, log: vi.fn(), progress: vi.fn() } as unknown as TaskContext;
  const reference = 'registry.example/team/disk:1';
  const image = { source: { type: 'registry', reference }, format: 'Auto' } as const;
  await taskWork(host)({ apiVersion: TASK_API_VERSION, type: 'push', image, reference }, context);
  expect(calls).toEqual(['no longer awaited: task/u', 'push', 'no longer needed: task/u']);
});

test('a push of an image with memory takes the memory with it, and reports it', async () => {
  const files = { ...SAVED, ram: '/images/ram', state: '/images/state' };
  const base = { path: file.path, digest: MANIFEST, format: 'raw', virtualSizeBytes: 512, memory: files };
  const images = { ensure: async () => base, cloned: vi.fn(), release: vi.fn() };
  const push = vi.fn(async (_to: unknown, _disk: RawDisk) => ({}));
  const host = { images, publisher: { push }, keyring: async () => Keyring.parse([]) } as unknown as TaskHost;
  const context = { uid: 'u', pod: POD, log: vi.fn(), progress: vi.fn() } as unknown as TaskContext;
  const reference = 'registry.example/team/disk:1';
  const image = { source: { type: 'storedArtifact', reference }, format: 'Auto' } as const;
  const report = await taskWork(host)(
    { apiVersion: TASK_API_VERSION, type: 'push', image, reference },
    context,
  );
  expect(push.mock.calls[0]?.[1].memory).toEqual(files);
  expect(report.memory).toEqual(SAVED);
});

test('a push of an image of an Apple host takes the files beside its disk with it', async () => {
  const disk = join(folder, 'disk');
  const machine = { config: join(folder, 'config.json'), variables: join(folder, 'nvram.bin') };
  await Promise.all(Object.values(machine).map(async (path) => await writeFile(path, 'x')));
  const base = { path: disk, digest: MANIFEST, format: 'raw', virtualSizeBytes: 512 };
  const images = { ensure: async () => base, cloned: vi.fn(), release: vi.fn() };
  const push = vi.fn(async (_to: unknown, _disk: RawDisk) => ({}));
  const host = { images, publisher: { push }, keyring: async () => Keyring.parse([]) } as unknown as TaskHost;
  const context = { uid: 'u', pod: POD, log: vi.fn(), progress: vi.fn() } as unknown as TaskContext;
  const reference = 'registry.example/team/disk:1';
  const image = { source: { type: 'storedArtifact', reference }, format: 'Auto' } as const;
  await taskWork(host)({ apiVersion: TASK_API_VERSION, type: 'push', image, reference }, context);
  expect(push.mock.calls[0]?.[1].machine).toEqual(machine);
});

test('a copy of the disk of a VM that is not on this host fails because there is no machine', async () => {
  const host = { machineOf: () => undefined } as unknown as TaskHost;
  const vm = { namespace: 'platform-ci', name: 'builder', uid: 'v' };
  const target = { type: 'folder', path: 'platform-ci/golden.qcow2' } as const;
  const copied = taskWork(host)({ apiVersion: TASK_API_VERSION, type: 'save', vm, target }, {
    pod: POD,
  } as TaskContext);
  const message = 'VM platform-ci/builder is not on this host';
  await expect(copied).rejects.toMatchObject({ reason: 'NoMachine', message });
});

const SAVED = { cpu: 2, memoryBytes: 4096, key: 'b'.repeat(64), savedAt: '2026-11-30T06:00:00Z' };

/** Does a save task with memory. The driver copies the memory of a running machine only. Returns the report and the claimed room. */
async function savedWithMemory(isRunning: boolean) {
  const claimed: unknown[] = [];
  const stored: unknown[] = [];
  const driver = {
    requireMemory: async () => undefined,
    copyBytes: async () => 512,
    copyDisk: async (_: unknown, { target, memory }: CopyOptions): Promise<DiskCopy> => {
      await Promise.all([target, memory!.ram, memory!.state].map(async (path) => await writeFile(path, 'x')));
      const copied = isRunning ? { memory: { ...SAVED, ...memory! } } : {};
      return { consistency: isRunning ? 'FileSystem' : 'Stopped', virtualSizeBytes: 512, ...copied };
    },
  };
  const withRoom: DiskHost['images']['withRoom'] = async ({ bytes, beside }, outer, work) => {
    claimed.push({ bytes, beside });
    return await work(outer);
  };
  const store = async (_: unknown, disk: RawDisk) => {
    stored.push(disk.memory);
    return {};
  };
  const machine = { folder: { uid: 'm', path: '/machine' }, machine: {}, driver, memoryBytes: 4096 };
  const host = {
    machineOf: () => machine,
    images: { withRoom },
    publisher: { store },
  } as unknown as TaskHost;
  const task: Task = {
    apiVersion: TASK_API_VERSION,
    type: 'save',
    vm: { namespace: 'ci', name: 'builder', uid: 'v' },
    memory: true,
    target: { type: 'folder', path: 'ci/golden.qcow2' },
  };
  const context = { uid: `save-${process.pid}`, pod: POD, folder, signal, log: vi.fn(), progress: vi.fn() };
  const report = await taskWork(host)(task, context as unknown as TaskContext);
  return { report, claimed, stored };
}

test('a save with memory claims space for both, publishes both, reports the memory, and leaves no file', async () => {
  const { report, claimed, stored } = await savedWithMemory(true);
  expect(stored).toEqual([{ ...SAVED, ram: join(folder, 'ram'), state: join(folder, 'state') }]);
  expect(report.memory).toEqual(SAVED);
  // The folder already has a file of the test.
  const bytes = 2 * 4096 + 512 + (await folderBytes(folder));
  expect(claimed).toEqual([{ bytes, beside: '/machine/image-memory' }]);
  expect(await readdir(folder)).toEqual(['disk']);
});

test('a save with memory fails if the VM does not run', async () => {
  const message = 'VM ci/builder does not run, so it has no memory';
  await expect(savedWithMemory(false)).rejects.toMatchObject({ reason: 'NoMemory', message });
  expect(await readdir(folder)).toEqual(['disk']);
});

test.each([
  ['a push', 'push', [25, 50, 75, 100]],
  ['an import that stores the image', 'import', [25, 50, 75, 100]],
  ['an import that only fetches the image', 'fetch', [50, 100]],
] as const)('the progress of %s never goes back', async (_, type, expected) => {
  const percents: number[] = [];
  const report = (onProgress: (percent: number) => void) =>
    [50, 100].forEach((percent) => onProgress(percent));
  const ensure = async (_: MachineImageSource, { onProgress }: AskedImage) => {
    report(onProgress);
    return { path: import.meta.filename, digest: MANIFEST, format: 'raw', virtualSizeBytes: 512 };
  };
  const publish = async (_to: unknown, _disk: unknown, { onProgress }: PublishingOptions) => {
    report(onProgress);
    return {};
  };
  const images = { ensure, cloned: vi.fn(), release: vi.fn() };
  const publisher = { push: publish, store: publish };
  const host = { images, publisher, keyring: async () => Keyring.parse([]) } as unknown as TaskHost;
  const context = { uid: 'u', pod: POD, log: vi.fn(), progress: (percent: number) => percents.push(percent) };
  const reference = 'registry.example/team/disk:1';
  const image = { source: { type: 'registry', reference }, format: 'Auto' } as const;
  const target = type === 'import' ? { type: 'folder' as const, path: 'team/disk.qcow2' } : undefined;
  const apiVersion = TASK_API_VERSION;
  const task: Task =
    type === 'push' ? { apiVersion, type, image, reference } : { apiVersion, type: 'import', image, target };
  await taskWork(host)(task, context as unknown as TaskContext);
  expect(percents).toEqual(expected);
});

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
  // The other caller still gets bytes, and then reads no more, so that the file does not end.
  let bytes = 0;
  last.on('data', (piece: Buffer) => {
    bytes += piece.length;
    if (bytes > 16 * 1024 ** 2) {
      last.pause();
    }
  });
  await vi.waitUntil(() => last.isPaused(), { timeout: 30_000 });
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
