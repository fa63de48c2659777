import { createHash, randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { mkdtemp, readFile, rm, stat } from 'node:fs/promises';
import { type AddressInfo, connect, createServer, type Server, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { ReasonedError } from '../../api/v1alpha1/reasons.ts';
import { transferAnswerSchema } from '../../api/v1alpha1/transfer.ts';
import { writeSparse } from '../disks/sparse.ts';
import { answer, receiveFile, type ReceivedFile } from './receive.ts';

vi.mock(import('../disks/sparse.ts'), { spy: true });

const MEBIBYTE = 1024 ** 2;
const content = Buffer.concat([randomBytes(MEBIBYTE), Buffer.alloc(MEBIBYTE)]);
const END = Buffer.alloc(4);

let folder: string;
let path: string;
let server: Server;
let sender: Socket;
let host: Socket;
let abort: AbortController;

beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'berth-upload-'));
  path = join(folder, 'upload');
  abort = new AbortController();
  server = createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const accepted = once(server, 'connection');
  sender = connect((server.address() as AddressInfo).port, '127.0.0.1');
  [host] = (await accepted) as [Socket];
  host.on('error', () => undefined);
});

afterEach(async () => {
  vi.useRealTimers();
  vi.mocked(writeSparse).mockClear();
  sender.destroy();
  host.destroy();
  server.close();
  await rm(folder, { recursive: true });
});

function piece(bytes: Buffer): Buffer {
  const length = Buffer.alloc(4);
  length.writeUInt32BE(bytes.length);
  return Buffer.concat([length, bytes]);
}

function sha256(bytes: Buffer): Buffer {
  return createHash('sha256').update(bytes).digest();
}

/** Receives the file, and answers the sender as the task does. */
async function receive(limitBytes = 4 * MEBIBYTE): Promise<ReceivedFile> {
  try {
    const { signal } = abort;
    const received = await receiveFile(host, { path, limitBytes, signal, onBytes: () => undefined });
    answer(host);
    return received;
  } catch (error) {
    answer(host, error);
    throw error;
  }
}

/** Reads the answer and closes the connection, as senders do. */
async function answered() {
  const [bytes] = (await once(sender, 'data')) as [Buffer];
  expect(host.writableEnded).toBe(false);
  sender.end();
  return transferAnswerSchema.parse(JSON.parse(bytes.toString()));
}

describe('an upload', () => {
  it('arrives unchanged, however its bytes are cut, and its zeros take no room', async () => {
    const received = receive();
    const whole = Buffer.concat([piece(content.subarray(0, 1000)), piece(content.subarray(1000, 1_000_000))]);
    for (const cut of [whole.subarray(0, 2), whole.subarray(2, 7), whole.subarray(7)]) {
      sender.write(cut);
      await new Promise((resolve) => setImmediate(resolve));
    }
    sender.write(piece(content.subarray(1_000_000, 2_000_000)));
    sender.write(Buffer.concat([piece(content.subarray(2_000_000)), END, sha256(content)]));
    expect(await answered()).toEqual({});
    expect(await received).toEqual({ bytes: content.length, sha256: sha256(content).toString('hex') });
    expect((await readFile(path)).equals(content)).toBe(true);
    expect((await stat(path)).blocks * 512).toBeLessThan(content.length);
  });

  it('whose sender sends a little before each minute of silence ends after five minutes', async () => {
    vi.useFakeTimers({ toFake: ['performance'] });
    let arrived = 0;
    const onBytes = (bytes: number): void => void (arrived = bytes);
    const receiving = { path, limitBytes: MEBIBYTE, signal: abort.signal, onBytes };
    const received = receiveFile(host, receiving).catch((error: unknown) => error);
    for (let sent = 1; sent < 6; sent += 1) {
      sender.write(piece(Buffer.alloc(1024, 1)));
      await vi.waitUntil(() => arrived === sent * 1024, { timeout: 30_000 });
      vi.advanceTimersByTime(62_000);
    }
    sender.write(piece(Buffer.alloc(1024, 1)));
    const message = expect.stringContaining('The sender of the file sent') as string;
    expect(await received).toMatchObject({ reason: 'UploadInterrupted', message });
  });

  it('in pieces of one byte leaves other work its turns', async () => {
    const bytes = Buffer.alloc(10_000);
    let isOver = false;
    let atOnce = 0;
    let longest = 0;
    const nextCycle = (): void => {
      atOnce = 0;
      if (!isOver) {
        setImmediate(nextCycle);
      }
    };
    nextCycle();
    const onBytes = (): void => {
      atOnce += 1;
      longest = Math.max(longest, atOnce);
    };
    const received = receiveFile(host, { path, limitBytes: MEBIBYTE, signal: abort.signal, onBytes });
    sender.write(Buffer.concat([...Array.from(bytes, () => piece(Buffer.alloc(1))), END, sha256(bytes)]));
    expect(await received).toMatchObject({ bytes: bytes.length });
    isOver = true;
    expect(longest).toBeLessThanOrEqual(256);
  });

  it('with another digest is refused, and the sender gets the reason', async () => {
    const received = receive();
    received.catch(() => undefined);
    sender.write(Buffer.concat([piece(Buffer.from('other')), END, sha256(content)]));
    expect(await answered()).toMatchObject({ reason: 'DigestMismatch' });
    await expect(received).rejects.toMatchObject({ reason: 'DigestMismatch' });
  });

  it.each([
    ['in a piece', piece(content).subarray(0, 5000)],
    ['between two pieces', piece(content.subarray(0, 5000))],
    ['before the digest', Buffer.concat([piece(content.subarray(0, 5000)), END])],
  ])('whose connection ends %s is interrupted, and never a shorter file', async (_where, bytes) => {
    const received = receive();
    received.catch(() => undefined);
    sender.end(bytes);
    await expect(received).rejects.toMatchObject({ reason: 'UploadInterrupted' });
  });

  it('ends at the announced size, while its sender still sends', async () => {
    const received = receive(MEBIBYTE);
    received.catch(() => undefined);
    const sending = setInterval(() => sender.write(piece(content.subarray(0, MEBIBYTE))), 1);
    try {
      expect(await answered()).toMatchObject({ reason: 'ImageInvalid' });
    } finally {
      clearInterval(sending);
    }
    await expect(received).rejects.toMatchObject({ reason: 'ImageInvalid' });
  });

  it('with a piece that is too long is refused before the piece is read', async () => {
    const received = receive();
    received.catch(() => undefined);
    sender.write(Buffer.from([0xff, 0xff, 0xff, 0xff]));
    expect(await answered()).toMatchObject({ reason: 'UploadInterrupted' });
    await expect(received).rejects.toMatchObject({ reason: 'UploadInterrupted' });
  });

  it('that the host has no room for tells its sender', async () => {
    const received = receive();
    received.catch(() => undefined);
    sender.write(piece(content.subarray(0, 1000)));
    abort.abort(new ReasonedError('DiskFull', 'no room'));
    sender.write(piece(content.subarray(0, 1000)));
    expect(await answered()).toEqual({ reason: 'DiskFull', message: 'no room' });
    await expect(received).rejects.toMatchObject({ reason: 'DiskFull' });
  });

  it('whose Pod is deleted ends at once', async () => {
    const received = receive();
    received.catch(() => undefined);
    sender.on('error', () => undefined);
    sender.write(piece(content.subarray(0, 1000)));
    await once(host, 'readable');
    abort.abort(new Error('deleted'));
    await expect(received).rejects.toThrow('deleted');
  });

  it('whose sender is silent for a minute is interrupted, but the time of the disk does not count', async () => {
    vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout'] });
    const received = receive();
    received.catch(() => undefined);
    sender.on('error', () => undefined);
    while (vi.getTimerCount() === 0) {
      await new Promise((proceed) => setImmediate(proceed));
    }
    const disk = Promise.withResolvers<void>();
    vi.mocked(writeSparse).mockImplementationOnce(async () => await disk.promise);
    sender.write(piece(content.subarray(0, 1000)));
    while (vi.mocked(writeSparse).mock.calls.length === 0) {
      await new Promise((proceed) => setImmediate(proceed));
    }
    vi.advanceTimersByTime(120_000);
    expect(host.destroyed).toBe(false);
    disk.resolve();
    while (vi.getTimerCount() === 0) {
      await new Promise((proceed) => setImmediate(proceed));
    }
    vi.advanceTimersByTime(59_999);
    expect(host.destroyed).toBe(false);
    vi.advanceTimersByTime(1);
    await expect(received).rejects.toMatchObject({ reason: 'UploadInterrupted' });
    expect(host.timeout).toBeUndefined();
  });

  it('whose sender goes on after its answer is cut off', async () => {
    vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout'] });
    answer(host, new ReasonedError('DiskFull', 'no room'));
    const ended = once(host, 'close');
    sender.on('error', () => undefined);
    vi.advanceTimersByTime(4_999);
    expect(host.destroyed).toBe(false);
    vi.advanceTimersByTime(1);
    await ended;
  });
});
