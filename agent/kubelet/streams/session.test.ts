import { setImmediate as nextCycle } from 'node:timers/promises';
import { expect, it } from 'vitest';
import { chooseProtocol, ReceivingStream } from './session.ts';

it.each([
  ['a', 'a'],
  ['other ,\t b', 'b'],
  ['b, a', 'a'],
])('of the protocols %j of a client, %j is chosen', (header, chosen) => {
  expect(chooseProtocol(header, ['a', 'b'])).toBe(chosen);
});

it.each(['ab', undefined])('a client that offers only %j is refused', (header) => {
  expect(() => chooseProtocol(header, ['a', 'b'])).toThrow('none of the protocols a, b');
});

it('a header of a megabyte of spaces is read at once', { timeout: 30_000 }, () => {
  expect(() => chooseProtocol(`a${' '.repeat(1_000_000)}b`, ['a'])).toThrow('none of the protocols a');
});

const CHUNK_BYTES = 16 * 1024;
const PIECES = 1024;

class Received extends ReceivingStream {
  room = 0;

  give(piece: Buffer): boolean {
    return this.receive(piece);
  }

  protected override hasRoom(): void {
    this.room += 1;
  }
}

it.each([
  [1, 1],
  [CHUNK_BYTES / 2, CHUNK_BYTES],
])('a piece of %i bytes from a large chunk keeps %i bytes of memory', async (length, kept) => {
  const stream = new Received();
  const pieces: Buffer[] = [];
  stream.on('data', (piece: Buffer) => pieces.push(piece));
  const content = Buffer.allocUnsafeSlow(CHUNK_BYTES).fill('x').subarray(0, length);
  stream.give(content);
  await nextCycle();
  expect(pieces.map((piece) => piece.buffer.byteLength)).toEqual([kept]);
  expect(Buffer.concat(pieces).equals(content)).toBe(true);
});

it('a stream with many small pieces is full until they are read', async () => {
  const stream = new Received();
  const answers: boolean[] = [];
  for (let count = 0; count < PIECES; count += 1) {
    answers.push(stream.give(Buffer.from('x')));
    await nextCycle();
  }
  expect(answers.indexOf(false)).toBe(PIECES - 1);
  stream.room = 0;
  await nextCycle();
  expect(stream.room).toBe(0);
  expect(String(stream.read())).toBe('x'.repeat(PIECES));
  expect(stream.room).toBeGreaterThan(0);
  expect(stream.give(Buffer.from('x'))).toBe(true);
});
