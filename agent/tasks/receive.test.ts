import { execFileSync, spawn } from 'node:child_process';
import { createHash, randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { cp, mkdir, mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { type AddressInfo, connect, createServer, type Server, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { basename, join } from 'node:path';
import { gzipSync } from 'node:zlib';
import { afterEach, beforeEach, describe, expect, it, onTestFinished, vi } from 'vitest';
import { ReasonedError } from '../../api/v1alpha1/reasons.ts';
import { TASK_API_VERSION, type Task } from '../../api/v1alpha1/task.ts';
import { pause } from '../../base/time.ts';
import { allocatedBytes } from '../disks/diskio.ts';
import { markArgument } from '../disks/qemuimg.ts';
import { findByArgument } from '../processes/process.ts';
import type { DiskHost } from './disks.ts';
import { receive } from './receive.ts';
import type { TaskContext } from './runner.ts';

vi.mock(import('../../base/time.ts'), { spy: true });

const content = randomBytes(64 * 1024);
/** Limit of a wait. The default, 1 s, is too short on a busy machine. */
const WAIT = { timeout: 30_000 };
const TASK: Task & { type: 'receive' } = {
  apiVersion: TASK_API_VERSION,
  type: 'receive',
  limitBytes: 1024 * 1024,
  format: 'Auto',
  target: { type: 'folder', path: 'ns/disk-1.qcow2' },
};

let folder: string;
let server: Server;
let sender: Socket;
let host: Socket;
let caller: PromiseWithResolvers<Socket>;
let percents: number[];
let taker: (caller: Socket) => boolean;
/** Bytes of the reservations of disk space, in their order. */
let claimed: number[];

beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'berth-receive-'));
  caller = Promise.withResolvers();
  percents = [];
  claimed = [];
  server = createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const accepted = once(server, 'connection');
  sender = connect((server.address() as AddressInfo).port, '127.0.0.1');
  [host] = (await accepted) as [Socket];
  host.on('error', () => undefined);
});

afterEach(async () => {
  vi.useRealTimers();
  vi.resetAllMocks();
  sender.destroy();
  host.destroy();
  server.close();
  await rm(folder, { recursive: true });
});

function context(signal = new AbortController().signal): TaskContext {
  return {
    uid: `receiver-${process.pid}`,
    pod: { apiVersion: 'v1', kind: 'Pod', metadata: { name: 'p' }, spec: { containers: [] } },
    folder,
    signal,
    log: () => undefined,
    progress: (percent) => percents.push(percent),
    takeCallers: (take) => {
      taker = take;
      void caller.promise.then(take);
    },
  };
}

/** Returns a host with enough disk space. If `full` is given, the host refuses to reserve space with this error. */
function diskHost(full?: ReasonedError): DiskHost {
  const withRoom: DiskHost['images']['withRoom'] = async ({ bytes }, signal, work) => {
    claimed.push(bytes);
    if (full !== undefined) {
      throw full;
    }
    return await work(signal);
  };
  return { images: { withRoom } } as unknown as DiskHost;
}

async function answered(): Promise<unknown> {
  const [bytes] = (await once(sender, 'data')) as [Buffer];
  return JSON.parse(bytes.toString());
}

function send(bytes: Buffer): void {
  const length = Buffer.alloc(4);
  length.writeUInt32BE(bytes.length);
  sender.write(Buffer.concat([length, bytes, Buffer.alloc(4), createHash('sha256').update(bytes).digest()]));
}

it('a file is checked and given on as a disk; its sender has the answer before that, and nothing stays', async () => {
  caller.resolve(host);
  send(content);
  // The agent was killed during an earlier attempt.
  await writeFile(join(folder, 'upload'), Buffer.alloc(2 * content.length, 1));
  const report = await receive(
    diskHost(),
    TASK,
    context(),
    async ({ path, virtualSizeBytes }, { onProgress }) => {
      expect(await answered()).toEqual({});
      expect((await readFile(path)).equals(content)).toBe(true);
      expect(await readdir(folder)).toEqual([basename(path)]);
      onProgress(100);
      return { sizeBytes: virtualSizeBytes };
    },
  );
  expect(taker(host)).toBe(false);
  expect(report).toEqual({ sizeBytes: content.length });
  expect(percents.at(-1)).toBe(100);
  expect(await readdir(folder)).toEqual([]);
});

it('a file that has arrived is given on after a restart of the agent, because its sender no longer has it', async () => {
  const atKill = await mkdtemp(join(tmpdir(), 'berth-receive-'));
  caller.resolve(host);
  send(content);
  const killed = receive(diskHost(), TASK, context(), async () => {
    await cp(folder, atKill, { recursive: true });
    throw new ReasonedError('ImageInvalid', 'killed');
  });
  await expect(killed).rejects.toThrow('killed');
  await rm(folder, { recursive: true });
  folder = atKill;
  caller = Promise.withResolvers();
  const report = await receive(diskHost(), TASK, context(), async ({ path, virtualSizeBytes }) => {
    expect((await readFile(path)).equals(content)).toBe(true);
    return { sizeBytes: virtualSizeBytes };
  });
  expect(report).toEqual({ sizeBytes: content.length });
  expect(await readdir(folder)).toEqual([]);
});

/** Sends a file with an empty qcow2 disk. */
async function sendQcow2(): Promise<void> {
  const made = join(folder, 'made');
  execFileSync('qemu-img', ['create', '-q', '-f', 'qcow2', made, '1M']);
  const file = await readFile(made);
  await rm(made);
  caller.resolve(host);
  send(file);
}

/** Sends a file with a raw disk. */
async function sendRaw(): Promise<void> {
  caller.resolve(host);
  send(content);
}

it('the raw copy of a qcow2 file has disk space in addition to the file', async () => {
  await sendQcow2();
  let fileBytes = Number.POSITIVE_INFINITY;
  await receive(diskHost(), TASK, context(), async () => {
    fileBytes = await allocatedBytes(join(folder, 'received'));
    return {};
  });
  // A reservation includes the bytes that its folder already has.
  expect(claimed).toEqual([TASK.limitBytes, expect.toSatisfy((bytes) => bytes >= 2 * fileBytes)]);
});

it.each([
  ['a copy', sendQcow2],
  ['a conversion', sendRaw],
])(
  '%s that an earlier run of the agent has left running is ended, because it uses disk space',
  async (_, sendFile) => {
    const mark = markArgument(`berth-task-receiver-${process.pid}`);
    // This process stands for the qemu-img of the earlier run.
    const left = spawn(process.execPath, ['-e', 'setInterval(() => 0, 1000)', mark]);
    await once(left, 'spawn');
    onTestFinished(() => void left.kill('SIGKILL'));
    expect(await findByArgument(mark)).toMatchObject({ pid: left.pid });
    await sendFile();
    await receive(diskHost(), TASK, context(), async () => ({}));
    expect(await findByArgument(mark)).toBeUndefined();
  },
);

it.each([
  ['that is no disk', Buffer.from('no disk')],
  [
    'that is compressed, with the size of a disk',
    Buffer.concat([gzipSync(content), Buffer.alloc(512)]).subarray(0, content.length),
  ],
])('a file %s is refused, and its sender gets the reason', async (_what, file) => {
  caller.resolve(host);
  send(file);
  const use = vi.fn();
  await expect(receive(diskHost(), TASK, context(), use)).rejects.toMatchObject({ reason: 'ImageInvalid' });
  expect(await answered()).toMatchObject({ reason: 'ImageInvalid' });
  expect(use).not.toHaveBeenCalled();
  expect(await readdir(folder)).toEqual([]);
});

it('a sender who attaches after the failure gets its reason too', async () => {
  const full = diskHost(new ReasonedError('DiskFull', 'no room'));
  await expect(receive(full, TASK, context(), vi.fn())).rejects.toMatchObject({ reason: 'DiskFull' });
  caller.resolve(host);
  expect(await answered()).toEqual({ reason: 'DiskFull', message: 'no room' });
});

it('a sender gets the reason when the host cannot remove an earlier file', async () => {
  caller.resolve(host);
  await mkdir(join(folder, 'upload'));
  const received = receive(diskHost(), TASK, context(), vi.fn());
  received.catch(() => undefined);
  expect(await answered()).toMatchObject({ reason: 'TaskFailed' });
  await expect(received).rejects.toThrow('upload');
});

it('a task without a sender ends when its Pod is deleted', async () => {
  const abort = new AbortController();
  const received = receive(diskHost(), TASK, context(abort.signal), vi.fn());
  await vi.waitFor(() => expect(claimed).toHaveLength(1), WAIT);
  abort.abort(new Error('deleted'));
  await expect(received).rejects.toThrow('deleted');
});

it('a task without a sender ends after two minutes', async () => {
  vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout'] });
  const received = receive(diskHost(), TASK, context(), vi.fn());
  received.catch(() => undefined);
  while (vi.getTimerCount() === 0) {
    await new Promise((proceed) => setImmediate(proceed));
  }
  vi.advanceTimersByTime(119_999);
  expect(vi.getTimerCount()).toBe(1);
  vi.advanceTimersByTime(1);
  await expect(received).rejects.toMatchObject({
    reason: 'UploadInterrupted',
    message: 'Nobody sent the file',
  });
});

describe('a file that has arrived, and that the image storage does not take', () => {
  const use = vi.fn<Parameters<typeof receive>[3]>();

  beforeEach(async () => {
    vi.mocked(pause).mockResolvedValue();
    await sendRaw();
  });

  it('is stored by a later attempt, because its sender no longer has it', async () => {
    const faults = [new ReasonedError('TaskFailed', 'refused'), new Error('no answer')];
    use.mockImplementation(async ({ path }, { onProgress }) => {
      expect((await readFile(path)).equals(content)).toBe(true);
      onProgress(use.mock.calls.length === 1 ? 90 : 10);
      const fault = faults.shift();
      if (fault !== undefined) {
        throw fault;
      }
      return { digest: 'stored' };
    });
    expect(await receive(diskHost(), TASK, context(), use)).toEqual({ digest: 'stored' });
    expect(vi.mocked(pause).mock.calls.map(([milliseconds]) => milliseconds)).toEqual([5_000, 10_000]);
    expect(percents).toEqual(percents.toSorted((a, b) => a - b));
    expect(await readdir(folder)).toEqual([]);
  });

  it('fails after some minutes, and leaves nothing', async () => {
    use.mockRejectedValue(new ReasonedError('ImageFetchFailed', 'no answer'));
    const received = receive(diskHost(), TASK, context(), use);
    await expect(received).rejects.toMatchObject({ reason: 'ImageFetchFailed' });
    const waits = vi.mocked(pause).mock.calls.map(([milliseconds]) => milliseconds);
    const minutes = waits.reduce((sum, wait) => sum + wait, 0) / 60_000;
    expect(minutes).toBeGreaterThan(5);
    expect(minutes).toBeLessThan(10);
    expect(await readdir(folder)).toEqual([]);
  });

  it('fails at once if the fault is in the file', async () => {
    use.mockRejectedValue(new ReasonedError('ImageInvalid', 'too much data'));
    await expect(receive(diskHost(), TASK, context(), use)).rejects.toMatchObject({ reason: 'ImageInvalid' });
    expect(use).toHaveBeenCalledOnce();
  });

  it('is given up when the Pod of its task is deleted', async () => {
    const abort = new AbortController();
    use.mockImplementation(async () => {
      abort.abort(new Error('deleted'));
      throw new Error('no answer');
    });
    await expect(receive(diskHost(), TASK, context(abort.signal), use)).rejects.toThrow('deleted');
    expect(use).toHaveBeenCalledOnce();
  });
});
