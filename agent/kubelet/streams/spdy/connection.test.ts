import { createHash, randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { type AddressInfo, connect, createServer, type Server, type Socket } from 'node:net';
import { PassThrough } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { setImmediate as nextCycle } from 'node:timers/promises';
import { deflateSync } from 'node:zlib';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { FIN, FRAME, SpdyClient } from '../../../../test/wires/spdyclient.ts';
import { SpdyConnection, type SpdyStream } from './connection.ts';
import { ProtocolError, SPDY_DICTIONARY } from './frames.ts';

const STREAMS = 4;
const MEBIBYTE = 1024 * 1024;

let listener: Server;
let client: SpdyClient;
let serverSocket: Socket;
let streams: SpdyStream[];
let connection: SpdyConnection;
/** Settles when the server has ended the connection. */
let run: Promise<unknown>;

beforeEach(async () => {
  listener = createServer({ allowHalfOpen: true });
  listener.listen(0, '127.0.0.1');
  await once(listener, 'listening');
  const connected = once(listener, 'connection');
  client = new SpdyClient(connect((listener.address() as AddressInfo).port, '127.0.0.1'));
  [serverSocket] = (await connected) as [Socket];
  serverSocket.setNoDelay(true).on('error', () => undefined);
  streams = [];
  connection = new SpdyConnection(serverSocket, {
    streams: STREAMS,
    onStream: (stream) => streams.push(stream),
    onData: () => undefined,
  });
  run = connection.run().catch((error: unknown) => error);
});

afterEach(() => {
  client.close();
  serverSocket.destroy();
  listener.close();
});

/** Opens a stream and returns both ends. */
async function open(headers: Record<string, string> = { streamtype: 'data' }) {
  const ours = await client.open(headers);
  await ours.until(({ replied }) => replied);
  return { ours, theirs: streams.at(-1) as SpdyStream };
}

describe('a SPDY connection', () => {
  it('has streams with headers, which both ends end by themselves', async () => {
    const { ours, theirs } = await open({ streamtype: 'data', port: '22', requestid: '0' });
    expect(Object.fromEntries(theirs.headers)).toEqual({ streamtype: 'data', port: '22', requestid: '0' });
    client.data(ours, 'ping', { end: true });
    expect(Buffer.concat(await theirs.toArray()).toString()).toBe('ping');
    expect(theirs.destroyed).toBe(false);
    theirs.write('po');
    theirs.end('ng');
    await ours.until(({ ended }) => ended);
    expect(ours.text).toBe('pong');
    expect(ours.reset).toBe(false);
  });

  it('compresses headers with regard to earlier ones, and answers pings of the client', async () => {
    for (const port of ['1', '2', '3']) {
      const { theirs } = await open({ streamtype: 'error', port });
      expect(theirs.headers.get('port')).toBe(port);
    }
    client.ping(7);
    const { ours } = await open();
    expect(ours.replied).toBe(true);
    expect(client.pings).toEqual([7]);
  });

  it('carries 20 MiB in both directions unchanged, on two streams at once', async () => {
    const both = [await open(), await open()];
    const echoes = streams.map(echo);
    const exchanges = both.map(async ({ ours }) => {
      const bytes = randomBytes(20 * MEBIBYTE);
      await client.sendAll(ours, bytes);
      await ours.until(({ ended }) => ended);
      expect(sha256(Buffer.concat(ours.chunks))).toBe(sha256(bytes));
    });
    await Promise.all([...echoes, ...exchanges]);
  });

  it('is not read while nobody reads a stream', async () => {
    const { ours, theirs } = await open();
    void client.sendAll(ours, Buffer.alloc(64 * MEBIBYTE)).catch(() => undefined);
    // Both the stream and the socket are full.
    await cyclesUntil(() => serverSocket.readableLength >= theirs.readableHighWaterMark);
    client.ping(1);
    await nextCycle();
    expect(theirs.readableLength + serverSocket.readableLength).toBeLessThan(MEBIBYTE);
    expect(client.pings).toEqual([]);
    theirs.destroy();
    const after = await open();
    expect(after.ours.replied).toBe(true);
  });

  it('is not read while a stream has many small pieces, and brings all of them to a late reader', async () => {
    const { ours, theirs } = await open();
    const count = 20_000;
    for (let sent = 0; sent < count; sent += 1) {
      client.data(ours, 'x', { end: sent === count - 1 });
    }
    await cyclesUntil(() => serverSocket.readableLength >= theirs.readableHighWaterMark);
    expect(theirs.readableLength).toBe(1024);
    const copy = new PassThrough({ highWaterMark: 1 });
    const copied = pipeline(theirs, copy);
    expect(Buffer.concat(await copy.toArray())).toHaveLength(count);
    await copied;
  });

  it('stops the source of a stream that the client does not read', async () => {
    const { theirs } = await open();
    client.pause();
    let written = 0;
    while (written < 64 * MEBIBYTE && theirs.write(Buffer.alloc(16 * 1024))) {
      written += 16 * 1024;
      await nextCycle();
    }
    expect(written).toBeLessThan(16 * MEBIBYTE);
  });

  it('tells the client that a stream is closed early, and drops what still comes', async () => {
    const { ours, theirs } = await open();
    theirs.destroy();
    await ours.until(({ reset }) => reset);
    client.data(ours, 'late');
    expect((await open()).ours.replied).toBe(true);
  });

  it('fails a stream that the client resets, and no other stream', async () => {
    const [first, second] = [await open(), await open()];
    const failed = first.theirs.toArray().then(
      () => 'complete',
      () => 'failed',
    );
    client.resetStream(first.ours);
    await expect(failed).resolves.toBe('failed');
    second.theirs.end('fine');
    await second.ours.until(({ ended }) => ended);
    expect(second.ours.text).toBe('fine');
  });

  it('refuses streams beyond the limit, until one is closed', async () => {
    for (let count = 0; count < STREAMS; count += 1) {
      await open();
    }
    const refused = await client.open({ streamtype: 'data' });
    await refused.until(({ reset }) => reset);
    streams[0]?.destroy();
    expect((await open({ streamtype: 'late' })).theirs.headers.get('streamtype')).toBe('late');
  });

  it('destroys streams when it is lost, also while a full stream keeps it from reading', async () => {
    const { ours, theirs } = await open();
    void client.sendAll(ours, Buffer.alloc(64 * MEBIBYTE)).catch(() => undefined);
    await cyclesUntil(() => serverSocket.readableLength >= theirs.readableHighWaterMark);
    serverSocket.destroy();
    await run;
    expect(theirs.destroyed).toBe(true);
  });

  it.each<[string, () => unknown]>([
    ['a frame of SPDY/2', () => client.raw(Buffer.from([0x80, 2, 0, 6, 0, 0, 0, 4, 0, 0, 0, 1]))],
    ['a long control frame', () => client.control(FRAME.synStream, Buffer.alloc(20), 0, 0xff_ff_ff)],
    ['a control frame that is too short', () => client.control(FRAME.synStream, Buffer.alloc(4))],
    ['settings', () => client.control(FRAME.settings, Buffer.alloc(4))],
    ['headers without a stream', () => client.control(FRAME.headers, Buffer.alloc(4))],
    ['data for a stream that was never opened', () => client.data({ id: 9 }, 'x')],
    ['data for a stream of the server', () => client.data({ id: 2 }, 'x')],
    [
      'headers that are no compressed data',
      () => client.control(FRAME.synStream, synStream(1, Buffer.alloc(9))),
    ],
    [
      'headers with another dictionary',
      () =>
        client.control(
          FRAME.synStream,
          synStream(1, deflateSync(Buffer.alloc(4), { dictionary: Buffer.alloc(9) })),
        ),
    ],
    ['more headers than bytes', () => sendBlock(Buffer.from([0, 0, 0, 9]))],
    ['a header longer than the block', () => sendBlock(Buffer.from([0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff, 1]))],
    ['headers with a rest', () => sendBlock(Buffer.from([0, 0, 0, 0, 1]))],
    ['a stream that is one-way', () => client.open({}, { flags: 2 })],
    ['a stream id that is even', () => client.control(FRAME.synStream, synStream(2, packed({})))],
  ])('ends at %s', async (_, send) => {
    await send();
    await client.closed();
    expect(await run).toBeInstanceOf(ProtocolError);
    expect(client.goAway).toBe(1);
  });

  it('ends at headers that unpack to more than it keeps', async () => {
    await sendBlock(Buffer.alloc(8 * MEBIBYTE));
    expect(await run).toMatchObject({ message: 'the headers of a stream have more than 16384 bytes' });
  });

  it('ends at a stream id that was used', async () => {
    await open();
    client.control(FRAME.synStream, synStream(1, Buffer.alloc(0)), FIN);
    expect(await run).toBeInstanceOf(ProtocolError);
  });

  it('cuts off a client who sends pings and reads no answers', async () => {
    client.pause();
    const pings = Buffer.concat(
      Array.from({ length: 10_000 }, () => Buffer.from([0x80, 3, 0, 6, 0, 0, 0, 4, 0, 0, 0, 1])),
    );
    while (!serverSocket.destroyed) {
      client.raw(pings);
      await nextCycle();
    }
    await run;
    expect(serverSocket.destroyed).toBe(true);
  });
});

/** Sends back what the client sends, at the speed of the client. */
async function echo(stream: SpdyStream): Promise<void> {
  const copy = new PassThrough();
  await Promise.all([pipeline(stream, copy), pipeline(copy, stream)]);
}

/** Resolves when the condition holds, which is checked at each turn of the event loop. */
async function cyclesUntil(condition: () => boolean): Promise<void> {
  while (!condition()) {
    await nextCycle();
  }
}

function sha256(bytes: Buffer): string {
  return createHash('sha256').update(bytes).digest('hex');
}

function synStream(id: number, block: Buffer): Buffer {
  const ids = Buffer.alloc(10);
  ids.writeUInt32BE(id);
  return Buffer.concat([ids, block]);
}

function packed(headers: object): Buffer {
  const block = Buffer.alloc(4 + Object.keys(headers).length);
  return deflateSync(block, { dictionary: SPDY_DICTIONARY });
}

async function sendBlock(block: Buffer): Promise<void> {
  client.control(FRAME.synStream, synStream(1, await client.packBytes(block)));
}
