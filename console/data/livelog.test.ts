import { afterEach, beforeEach, expect, it, vi } from 'vitest';
import type { Api } from './api.ts';
import { RefusedRequestError } from './refusal.ts';
import { LiveLog } from './livelog.ts';
import { pauseFor } from './waits.ts';

const VM = { namespace: 'platform-ci', name: 'one' };

beforeEach(() => {
  vi.useFakeTimers();
  vi.stubGlobal('document', Object.assign(new EventTarget(), { hidden: false }));
});

afterEach(() => {
  vi.useRealTimers();
  vi.unstubAllGlobals();
});

/**
 * Follows a log for two minutes. Each request gets the next answer: its pieces and pauses in milliseconds, or an error. Returns the paths, the
 * times of the requests in milliseconds, and the texts of the lines.
 */
async function follow(...answers: (readonly (string | number)[] | Error)[]) {
  const paths: string[] = [];
  const times: number[] = [];
  const begin = performance.now();
  const api = {
    async *texts(path: string): AsyncGenerator<string> {
      paths.push(path.replace(/^.*vms/, ''));
      times.push(performance.now() - begin);
      const answer = answers.shift() ?? new RefusedRequestError(401, 'Unauthorized');
      if (answer instanceof Error) {
        throw answer;
      }
      for (const piece of answer) {
        if (typeof piece === 'string') {
          yield piece;
        } else {
          await pauseFor(piece, new AbortController().signal);
        }
      }
    },
  };
  const log = new LiveLog(api as unknown as Api, VM);
  log.start();
  await vi.advanceTimersByTimeAsync(120_000);
  log.stop();
  return { paths, times, texts: log.lines.map(({ text }) => text), state: log.freshness.state };
}

it('goes on after the last line, and shows no line twice', async () => {
  const [one, two, three] = ['1', '2', '3'].map(
    (number) => `2026-11-22T10:00:00.00000000${number}Z line ${number}\n`,
  );
  const { paths, texts, state } = await follow(
    ['\n', `${one}`, `${two?.slice(0, 20)}`, `${two?.slice(20)}`],
    [`\n${one}${two}${three}`],
  );
  expect(paths).toEqual([
    '/one',
    '/one?sinceTime=2026-11-22T10:00:00Z',
    '/one?sinceTime=2026-11-22T10:00:00Z',
  ]);
  expect(texts).toEqual(['line 1', 'line 2', 'line 3']);
  expect(state).toBe('refused');
});

it('waits for the log of a VM that starts, and gives up without the right', async () => {
  const missing = new RefusedRequestError(404, 'pods "one" not found');
  const early = new RefusedRequestError(400, 'Pod one has no console yet');
  const line = '2026-11-22T10:00:00.000000001Z boots\n';
  const { paths, texts } = await follow(missing, early, [line], new RefusedRequestError(403, 'forbidden'));
  expect(paths).toHaveLength(4);
  expect(texts).toEqual(['boots']);
});

it('shows each line of a burst once, which has one time and was cut', async () => {
  const burst = ['1', '2', '3', '4'].map((number) => `2026-11-22T10:00:00.123Z line ${number}\n`);
  const { texts } = await follow(
    ['2026-11-22T10:00:00.122Z line 0\n', ...burst.slice(0, 2)],
    [`2026-11-22T10:00:00.122Z line 0\n${burst.slice(0, 3).join('')}`],
    [['2026-11-22T10:00:00.122Z line 0\n', ...burst, '2026-11-22T10:00:00.124Z line 5\n'].join('')],
  );
  expect(texts).toEqual(['line 0', 'line 1', 'line 2', 'line 3', 'line 4', 'line 5']);
});

it('asks seldom for a log that ends at once', async () => {
  const { paths, state } = await follow(...Array.from({ length: 200 }, () => ['\n']));
  expect(paths.length).toBeGreaterThan(5);
  expect(paths.length).toBeLessThan(10);
  expect(state).toBe('live');
});

it('asks at once for the rest of a log that went on for long', async () => {
  const { times } = await follow(['\n'], ['\n'], ['\n'], ['\n', 40_000], ['\n']);
  const [begin = 0, next = 0] = times.slice(3);
  expect(next - begin - 40_000).toBeLessThan(2_000);
  expect(times).toHaveLength(6);
});
