import { afterEach, beforeEach, expect, it, vi } from 'vitest';
import { type Api, RefusedRequestError } from './api.ts';
import { LiveLog } from './livelog.ts';

const VM = { namespace: 'platform-ci', name: 'one' };

beforeEach(() => {
  vi.useFakeTimers();
  vi.stubGlobal('document', Object.assign(new EventTarget(), { hidden: false }));
});

afterEach(() => {
  vi.useRealTimers();
  vi.unstubAllGlobals();
});

/** Follows a log for two minutes. Each request gets the next answer: its pieces, or an error. Returns the paths and the texts of the lines. */
async function follow(...answers: (readonly string[] | Error)[]) {
  const paths: string[] = [];
  const api = {
    async *texts(path: string): AsyncGenerator<string> {
      paths.push(path.replace(/^.*vms/, ''));
      const answer = answers.shift() ?? new RefusedRequestError(401, 'Unauthorized');
      if (answer instanceof Error) {
        throw answer;
      }
      yield* answer;
    },
  };
  const log = new LiveLog(api as unknown as Api, VM);
  log.start();
  await vi.advanceTimersByTimeAsync(120_000);
  log.stop();
  return { paths, texts: log.lines.map(({ text }) => text), state: log.freshness.state };
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
