import { expect, it } from 'vitest';
import { LeastRate } from './leastrate.ts';

/** Receives pieces with this number of bytes, each after this number of seconds. `busySeconds` is the receiver's time for each piece. */
async function received(
  pieces: number,
  bytes: number,
  { seconds, busySeconds = 0 }: { seconds: number; busySeconds?: number },
): Promise<number> {
  let now = 0;
  async function* body(): AsyncGenerator<Buffer> {
    for (let piece = 0; piece < pieces; piece += 1) {
      now += seconds * 1000;
      yield Buffer.alloc(bytes);
    }
  }
  let count = 0;
  for await (const chunk of new LeastRate('The server', () => now).over(body())) {
    count += chunk.length;
    now += busySeconds * 1000;
  }
  return count;
}

it('a source that sends 1 KiB per second ends with TooSlow after five minutes', async () => {
  const slow = received(301, 1024, { seconds: 1 });
  await expect(slow).rejects.toMatchObject({
    reason: 'TooSlow',
    message: expect.stringContaining('1024 bytes'),
  });
  expect(await received(299, 1024, { seconds: 1 })).toBe(299 * 1024);
});

it('a source that is slow but above the rate is received, however long it takes', async () => {
  expect(await received(4_000, 17 * 1024, { seconds: 1 })).toBe(4_000 * 17 * 1024);
});

it('the time that the host needs for the bytes does not count', async () => {
  expect(await received(100, 17 * 1024, { seconds: 1, busySeconds: 60 })).toBe(100 * 17 * 1024);
});

it('pauses before interruptions count, over all attempts', async () => {
  let now = 0;
  const rate = new LeastRate('The server', () => now);
  // eslint-disable-next-line require-yield
  async function* paused(): AsyncGenerator<Buffer> {
    now += 60_000;
    throw new Error('interrupted');
  }
  async function attempt(): Promise<void> {
    for await (const _chunk of rate.over(paused())) {
      throw new Error('no piece arrives');
    }
  }
  for (let count = 0; count < 4; count += 1) {
    await expect(attempt()).rejects.toThrow('interrupted');
  }
  await expect(attempt()).rejects.toMatchObject({ reason: 'TooSlow' });
});
