import { afterEach, beforeEach, expect, it, vi } from 'vitest';
import { DeadlineError } from '../../kube/errors.ts';
import { StatusError } from '../http/errors.ts';
import { HttpError } from '../../kube/serving/httperror.ts';
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
  await vi.advanceTimersByTimeAsync(10_000);
  expect(onEnd).toHaveBeenCalledWith({ code: 1008, reason: 'may not attach' });
});

it('ends a stream if nobody can tell about its right three times in a row', async () => {
  const answers = ['busy', 'busy', undefined, 'busy', 'busy', 'busy'];
  const mayStream = async () => {
    const answer = answers.shift();
    if (answer !== undefined) {
      throw new HttpError(429, answer);
    }
  };
  const onEnd = vi.fn();
  void endOfRight(mayStream, new AbortController().signal).then(onEnd);
  await vi.advanceTimersByTimeAsync(630_000);
  expect(onEnd).not.toHaveBeenCalled();
  await vi.advanceTimersByTimeAsync(10_000);
  expect(onEnd).toHaveBeenCalledWith(expect.objectContaining({ code: 1008 }));
});
