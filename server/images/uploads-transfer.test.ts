import { createHash, randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { type AddressInfo, connect, createServer, type Server, type Socket } from 'node:net';
import { Readable } from 'node:stream';
import { buffer } from 'node:stream/consumers';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { sendFile } from './uploads.ts';

const content = randomBytes(3 * 1024 ** 2);
const digest = createHash('sha256').update(content).digest();

let server: Server;
let connection: Socket;
let host: Socket;

beforeEach(async () => {
  server = createServer({ allowHalfOpen: true }).listen(0, '127.0.0.1');
  await once(server, 'listening');
  const accepted = once(server, 'connection');
  connection = connect((server.address() as AddressInfo).port, '127.0.0.1');
  [host] = (await accepted) as [Socket];
  host.on('error', () => undefined);
});

afterEach(() => {
  // A spy on a timer keeps the fake timer, so the spies end first. Otherwise later tests would get fake timers that never fire.
  vi.restoreAllMocks();
  vi.useRealTimers();
  connection.destroy();
  host.destroy();
  server.close();
});

/** Returns the pieces in the bytes that the host has read, and the bytes after the last piece. */
function piecesIn(bytes: Buffer): { pieces: Buffer[]; rest: Buffer } {
  const pieces: Buffer[] = [];
  let at = 0;
  for (;;) {
    const length = bytes.readUInt32BE(at);
    at += 4;
    if (length === 0) {
      return { pieces, rest: bytes.subarray(at) };
    }
    pieces.push(bytes.subarray(at, at + length));
    at += length;
  }
}

/** Reads like a host, and answers when it has received a digest. */
async function received(): Promise<ReturnType<typeof piecesIn>> {
  const all = buffer(host);
  // The digest can come in two pieces.
  let end = Buffer.alloc(0);
  host.on('data', (chunk: Buffer) => {
    end = Buffer.concat([end, chunk]).subarray(-digest.length);
    if (end.equals(digest)) {
      host.end('{}');
    }
  });
  return piecesIn(await all);
}

/** Waits without timers, because a test can replace the timers. */
async function until(isTrue: () => boolean): Promise<void> {
  while (!isTrue()) {
    await new Promise((resolve) => setImmediate(resolve));
  }
}

describe('a file that is sent to a host', () => {
  it('has pieces of at most 1 MiB, and its digest after them', async () => {
    const file = Readable.from([content.subarray(0, 10), content.subarray(10)]);
    const [answer, { pieces, rest }] = await Promise.all([sendFile(connection, file, undefined), received()]);
    expect(answer).toEqual({});
    expect(Buffer.concat(pieces).equals(content)).toBe(true);
    expect(Math.max(...pieces.map(({ length }) => length))).toBe(1024 ** 2);
    expect(rest.equals(digest)).toBe(true);
  });

  it('has the digest that the client names', async () => {
    const file = Readable.from([Buffer.from('other')]);
    const [, { rest }] = await Promise.all([sendFile(connection, file, digest.toString('hex')), received()]);
    expect(rest.equals(digest)).toBe(true);
  });

  it('that breaks off has no end, and its error goes to the caller', async () => {
    const all = buffer(host);
    const file = (async function* () {
      yield content.subarray(0, 1000);
      throw new Error('the client is gone');
    })();
    await expect(sendFile(connection, file, undefined)).rejects.toThrow('the client is gone');
    expect((await all).length).toBe(1004);
  });

  it('without end is answered as soon as the host has no room', async () => {
    const file = (async function* () {
      for (;;) {
        yield content;
      }
    })();
    host.once('data', () => host.write('{"reason":"DiskFull","message":"no room"}')).resume();
    expect(await sendFile(connection, file, undefined)).toEqual({ reason: 'DiskFull', message: 'no room' });
  });

  it.each([
    ['nothing', ''],
    ['half an answer', '{"reason":'],
    ['too much', 'x'.repeat(100_000)],
  ])('whose host answers %s is broken', async (_name, text) => {
    host.end(text);
    await expect(sendFile(connection, Readable.from([content]), undefined)).rejects.toMatchObject({
      name: 'BrokenTransferError',
    });
  });

  it('is never confirmed before its end', async () => {
    const file = (async function* () {
      yield content;
      await new Promise(() => undefined);
    })();
    host.once('data', () => host.end('{}')).resume();
    await expect(sendFile(connection, file, undefined)).rejects.toMatchObject({
      name: 'BrokenTransferError',
    });
  });

  it.each([
    ['takes nothing', Readable.from([Buffer.alloc(64 * 1024 ** 2)])],
    ['does not answer', Readable.from([content])],
  ])('to a host that %s is broken after ten minutes', async (what, file) => {
    vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout'] });
    const [set, cleared] = [vi.spyOn(globalThis, 'setTimeout'), vi.spyOn(globalThis, 'clearTimeout')];
    // Connections of earlier tests can have timers too, so only timers of ten minutes count.
    const running = (): number =>
      set.mock.results.filter(
        ({ value }, at) =>
          set.mock.calls[at]?.[1] === 600_000 && !cleared.mock.calls.some(([timer]) => timer === value),
      ).length;
    const sent = sendFile(connection, file, undefined);
    sent.catch(() => undefined);
    if (what === 'does not answer') {
      host.resume();
      await until(() => host.bytesRead > content.length + digest.length);
    }
    await until(() => running() === 1);
    vi.advanceTimersByTime(599_999);
    expect(connection.destroyed).toBe(false);
    vi.advanceTimersByTime(1);
    await expect(sent).rejects.toMatchObject({ name: 'BrokenTransferError' });
  });
});
