import { setImmediate as nextTurn } from 'node:timers/promises';
import { expect, it } from 'vitest';
import { ReceivingStream } from './received.ts';

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
  await nextTurn();
  expect(pieces.map((piece) => piece.buffer.byteLength)).toEqual([kept]);
  expect(Buffer.concat(pieces).equals(content)).toBe(true);
});

it('a stream with many small pieces is full until they are read', async () => {
  const stream = new Received();
  const answers: boolean[] = [];
  for (let count = 0; count < PIECES; count += 1) {
    answers.push(stream.give(Buffer.from('x')));
    await nextTurn();
  }
  expect(answers.indexOf(false)).toBe(PIECES - 1);
  stream.room = 0;
  await nextTurn();
  expect(stream.room).toBe(0);
  expect(String(stream.read())).toBe('x'.repeat(PIECES));
  expect(stream.room).toBeGreaterThan(0);
  expect(stream.give(Buffer.from('x'))).toBe(true);
});
