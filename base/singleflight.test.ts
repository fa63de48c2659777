import { expect, test } from 'vitest';
import { SingleFlight } from './singleflight.ts';

interface Begun {
  signal: AbortSignal;
  onProgress: (percent: number) => void;
  end: PromiseWithResolvers<string>;
}

/** Sets up work that the test ends. */
function setUp(): { flights: SingleFlight<string>; begun: Begun[]; join: (signal?: AbortSignal) => Asked } {
  const flights = new SingleFlight<string>();
  const begun: Begun[] = [];
  function join(signal = new AbortController().signal): Asked {
    const percents: number[] = [];
    const options = { signal, onProgress: (percent: number) => percents.push(percent) };
    const result = flights.join('key', options, async (own, onProgress) => {
      const end = Promise.withResolvers<string>();
      begun.push({ signal: own, onProgress, end });
      return await end.promise;
    });
    return { result: result.catch((error: unknown) => error), percents };
  }
  return { flights, begun, join };
}

interface Asked {
  result: Promise<unknown>;
  percents: number[];
}

test('is done once for all callers, each of whom gets the progress', async () => {
  const { begun, join } = setUp();
  const first = join();
  begun[0]?.onProgress(30);
  const second = join();
  begun[0]?.onProgress(60);
  begun[0]?.end.resolve('done');
  expect(await first.result).toEqual({ result: 'done', joined: false });
  expect(await second.result).toEqual({ result: 'done', joined: true });
  expect([first.percents, second.percents]).toEqual([
    [30, 60],
    [30, 60],
  ]);
  expect(begun).toHaveLength(1);
  join();
  expect(begun).toHaveLength(2);
});

test('is cancelled when the last caller leaves, and not started again before its end', async () => {
  const { begun, join } = setUp();
  const [one, other] = [new AbortController(), new AbortController()];
  const [first, second] = [join(one.signal), join(other.signal)];
  one.abort('first left');
  expect(await first.result).toBe('first left');
  expect(begun[0]?.signal.aborted).toBe(false);
  other.abort('second left');
  expect(await second.result).toBe('second left');
  expect(begun[0]?.signal.aborted).toBe(true);
  const third = join();
  expect(begun).toHaveLength(1);
  begun[0]?.end.reject(new Error('given up'));
  await expect.poll(() => begun.length).toBe(2);
  begun[1]?.end.resolve('done');
  expect(await third.result).toEqual({ result: 'done', joined: false });
});

test('is not started for a caller that has left already', async () => {
  const { begun, join } = setUp();
  expect(await join(AbortSignal.abort('left')).result).toBe('left');
  expect(begun).toEqual([]);
});

test('lets a caller leave that waits for the end of abandoned work', async () => {
  const { begun, join } = setUp();
  const [one, other] = [new AbortController(), new AbortController()];
  const first = join(one.signal);
  one.abort('first left');
  expect(await first.result).toBe('first left');
  const second = join(other.signal);
  let outcome: unknown;
  void second.result.then((result) => {
    outcome = result;
  });
  other.abort('second left');
  await expect.poll(() => outcome).toBe('second left');
  expect(begun).toHaveLength(1);
});
