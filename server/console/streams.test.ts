import { afterEach, beforeEach, expect, it, vi } from 'vitest';
import { DeadlineError } from '../../kube/errors.ts';
import { StatusError } from '../http/errors.ts';
import { endOfRight } from './streams.ts';

beforeEach(() => {
  vi.useFakeTimers();
});

afterEach(() => {
  vi.useRealTimers();
});

it('ends a stream within five minutes after the right to it is gone', async () => {
  const answers = [undefined, new DeadlineError('no answer in time'), new StatusError(403, 'may not attach')];
  const mayStream = async () => {
    const answer = answers.shift();
    if (answer !== undefined) {
      throw answer;
    }
  };
  const onEnd = vi.fn();
  void endOfRight(mayStream, new AbortController().signal).then(onEnd);
  // An API server that does not answer takes no right away.
  await vi.advanceTimersByTimeAsync(600_000);
  expect(onEnd).not.toHaveBeenCalled();
  await vi.advanceTimersByTimeAsync(300_000);
  expect(onEnd).toHaveBeenCalledWith({ code: 1008, reason: 'may not attach' });
});
