import { describe, expect, it } from 'vitest';
import { retry } from './retry.ts';

const LIMITS = { attempts: 5, firstMilliseconds: 10, capMilliseconds: 40 };

/** Calls `retry` with a clock that notes its waits. The attempt with the number `succeeding` returns a value. */
async function tried(succeeding: number, random = 0) {
  const waits: number[] = [];
  const numbers: number[] = [];
  const attempt = async (number: number) => {
    numbers.push(number);
    return number === succeeding ? 'done' : undefined;
  };
  const wait = async (milliseconds: number) => void waits.push(milliseconds);
  const result = await retry(LIMITS, attempt, { wait, random: () => random });
  return { result, numbers, waits };
}

describe('an attempt', () => {
  it('that succeeds at once is the only one, and nobody waits', async () => {
    expect(await tried(1)).toEqual({ result: 'done', numbers: [1], waits: [] });
  });

  it('is repeated after growing waits up to a bound', async () => {
    expect(await tried(4)).toEqual({ result: 'done', numbers: [1, 2, 3, 4], waits: [10, 20, 40] });
    expect(await tried(9)).toEqual({
      result: undefined,
      numbers: [1, 2, 3, 4, 5],
      waits: [10, 20, 40, 40],
    });
  });

  it('waits for a random time of at most twice the wait', async () => {
    expect((await tried(9, 1)).waits).toEqual([20, 40, 80, 80]);
  });

  it('that throws is not repeated', async () => {
    const numbers: number[] = [];
    const attempt = async (number: number) => {
      numbers.push(number);
      throw new Error('wrong');
    };
    await expect(retry(LIMITS, attempt)).rejects.toThrow('wrong');
    expect(numbers).toEqual([1]);
  });

  it('is not repeated when the signal aborts during a wait', async () => {
    const ended = new AbortController();
    const numbers: number[] = [];
    const attempt = async (number: number) => {
      numbers.push(number);
      ended.abort(new Error('left'));
      return undefined;
    };
    await expect(retry(LIMITS, attempt, { signal: ended.signal })).rejects.toThrow('left');
    expect(numbers).toEqual([1]);
  });
});
