import { once } from 'node:events';
import { createServer, type Http2Server, type ServerHttp2Session, type ServerHttp2Stream } from 'node:http2';
import { join } from 'node:path';
import { Readable } from 'node:stream';
import { setImmediate as nextCycle } from 'node:timers/promises';
import { afterEach, beforeEach, expect, it, vi } from 'vitest';
import { makeFolder } from '../../../test/support/folder.ts';
import { StreamRefused } from '../driver.ts';
import { TartGuest } from './guest.ts';

const NEVER = new AbortController().signal;
const COMMAND = { path: 'any', arguments: [], reserve: () => true, signal: NEVER };
/** Messages with the exit code 0, and with one byte of the standard error. */
const EXIT = message(0x0a, 0);
const PIECE = message(0x1a, 3, 0x0a, 1, 0x78);

let folder: string;
let server: Http2Server;
let sessions: ServerHttp2Session[];
/** What the guest sends as the answer to a call. */
let answer: (stream: ServerHttp2Stream) => unknown;
let guest: TartGuest;

beforeEach(async () => {
  folder = makeFolder();
  sessions = [];
  server = createServer();
  server.on('session', (session) => sessions.push(session));
  server.on('stream', (stream) => {
    stream.on('error', () => undefined);
    stream.on('wantTrailers', () => stream.sendTrailers({ 'grpc-status': '0' }));
    stream.respond({ ':status': 200, 'content-type': 'application/grpc' }, { waitForTrailers: true });
    answer(stream);
  });
  server.listen(join(folder, 'control.sock'));
  await once(server, 'listening');
  guest = new TartGuest(folder, async () => await Promise.resolve(true));
});

afterEach(() => {
  vi.restoreAllMocks();
  sessions.forEach((session) => session.destroy());
  server.close();
});

/** Returns a message of these bytes with its prefix. */
function message(...bytes: number[]): Buffer {
  return Buffer.of(0, 0, 0, 0, bytes.length, ...bytes);
}

function prefix(length: number): Buffer {
  const bytes = Buffer.alloc(5);
  bytes.writeUInt32BE(length, 1);
  return bytes;
}

/** Returns a number from 2^14 to 2^21 as a message has it. */
function varint(number: number): Buffer {
  return Buffer.of((number & 0x7f) | 0x80, ((number >> 7) & 0x7f) | 0x80, number >> 14);
}

function times(count: number, bytes: Buffer): Buffer {
  return Buffer.alloc(count * bytes.length, bytes);
}

it.each([
  ['no fields', message()],
  ['empty output', message(0x12, 0)],
])('refuses a guest that sends more messages with %s than there is a reason for', async (_, empty) => {
  answer = (stream) => stream.end(Buffer.concat([times(1_000, empty), EXIT]));
  expect(await guest.execute(COMMAND)).toMatchObject({ exitCode: 0, stdout: [] });
  answer = (stream) => stream.end(Buffer.concat([times(1_001, empty), EXIT]));
  await expect(guest.execute(COMMAND)).rejects.toThrow('more than 1000 empty messages');
});

it.each([
  [1_500, 'mac'],
  // With 10 bytes for each of these messages, this is more than 16 KiB.
  [1_700, undefined],
])('counts %d small messages with their prefixes against the limit of facts', async (count, hostName) => {
  const name = Buffer.from('mac');
  const output = message(0x12, 2 + name.length, 0x0a, name.length, ...name);
  answer = (stream) => stream.end(Buffer.concat([output, times(count, PIECE), EXIT]));
  const { facts } = (await guest.ask({ facts: true, signal: NEVER }, 'linux')) as { facts: object };
  expect(facts).toEqual({ addresses: [], ...(hostName !== undefined && { hostName }) });
});

it('reads an exit code of any length, and refuses a message with more fields than there are', async () => {
  const code = (...bytes: number[]) => message(0x0a, bytes.length + 1, 0x08, ...bytes);
  const minusOne = [...Buffer.alloc(9, 0xff), 0x01];
  for (const [bytes, exitCode] of [
    [[3], 3],
    [[0xff, 0x01], 255],
    [minusOne, 255],
    // Only the lowest 32 bits count.
    [[0x83, 0x80, 0x80, 0x80, 0x80, 0x01], 3],
  ] as const) {
    answer = (stream) => stream.end(code(...bytes));
    expect(await guest.execute(COMMAND)).toMatchObject({ exitCode });
  }
  const padded = (count: number) => message(...times(count, Buffer.of(0x20, 0)), 0x0a, 0);
  answer = (stream) => stream.end(padded(15));
  expect(await guest.execute(COMMAND)).toMatchObject({ exitCode: 0 });
  for (const broken of [
    padded(16),
    message(0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f),
    message(0x0a, 2, 0),
    message(0x0b),
    message(0x20, ...Buffer.alloc(10, 0x80), 0, 0x0a, 0),
    message(...Buffer.alloc(11, 0xff)),
  ]) {
    answer = (stream) => stream.end(broken);
    await expect(guest.execute(COMMAND)).rejects.toThrow('gave no valid answer');
  }
});

it('ends a command that does not read its input, although the whole input waits', async () => {
  answer = (stream) => stream.end(EXIT);
  const input = Buffer.alloc(1024 * 1024);
  expect(await guest.execute({ ...COMMAND, input })).toMatchObject({ exitCode: 0 });
});

it('reads a message of 64 KiB, and refuses a longer one before it comes', async () => {
  const [length, content] = [64 * 1024, 64 * 1024 - 8];
  const inner = Buffer.concat([Buffer.of(0x0a), varint(content), Buffer.alloc(content, 'x')]);
  const whole = Buffer.concat([Buffer.of(0x12), varint(inner.length), inner]);
  expect(whole).toHaveLength(length);
  answer = (stream) => stream.end(Buffer.concat([prefix(length), whole, EXIT]));
  const { stdout } = await guest.execute(COMMAND);
  expect(Buffer.concat(stdout)).toHaveLength(content);
  answer = (stream) => stream.write(prefix(length + 1));
  await expect(guest.execute(COMMAND)).rejects.toThrow('gave no valid answer');
});

it('refuses a command that prints more than 48 MiB, of which it keeps nothing', async () => {
  const piece = Buffer.alloc(64 * 1024);
  const inner = piece.length - 8;
  Buffer.concat([Buffer.of(0x1a), varint(inner + 4), Buffer.of(0x0a), varint(inner)]).copy(piece);
  const pieces = (count: number) => Array.from({ length: count }, () => [prefix(piece.length), piece]).flat();
  const kept = { ...COMMAND, reserve: () => false };
  answer = (stream) => Readable.from([...pieces(767), EXIT]).pipe(stream);
  expect(await guest.execute(kept)).toMatchObject({ exitCode: 0, truncated: true, stderr: [] });
  answer = (stream) => Readable.from([...pieces(768), EXIT]).pipe(stream);
  await expect(guest.execute(kept)).rejects.toThrow('prints more than 50331648 bytes');
});

it('repeats the explanation of a refusal as one short line', async () => {
  const text = `${'x'.repeat(299)}%22yes`;
  answer = (stream) => {
    stream.removeAllListeners('wantTrailers');
    stream.on('wantTrailers', () => stream.sendTrailers({ 'grpc-status': '2', 'grpc-message': text }));
    stream.end();
  };
  await expect(guest.execute(COMMAND)).rejects.toThrow(new StreamRefused(`${'x'.repeat(299)}"`));
});

it('reads messages that come byte by byte', async () => {
  const bytes = Buffer.concat([times(20, PIECE), message(), EXIT]);
  answer = async (stream) => {
    for (const byte of bytes) {
      stream.write(Buffer.of(byte));
      await nextCycle();
    }
    stream.end();
  };
  const { stderr, exitCode } = await guest.execute(COMMAND);
  expect([Buffer.concat(stderr).toString(), exitCode]).toEqual(['x'.repeat(20), 0]);
});

it('refuses a command with a sentence if the path of the socket is too long for macOS', async () => {
  vi.spyOn(process, 'platform', 'get').mockReturnValue('darwin');
  const far = new TartGuest(join(folder, 'x'.repeat(120)), async () => await Promise.resolve(true));
  const refused = far.execute(COMMAND);
  await expect(refused).rejects.toBeInstanceOf(StreamRefused);
  await expect(refused).rejects.toThrow('too long for the socket of the guest agent');
});
