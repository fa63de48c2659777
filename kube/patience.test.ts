import { afterEach, beforeEach, expect, it, vi } from 'vitest';
import { ApiError, CredentialError } from './errors.ts';
import { Patience } from './patience.ts';

beforeEach(() => void vi.useFakeTimers());
afterEach(() => void vi.useRealTimers());

function refused(status: number): ApiError {
  return new ApiError('refused', { status, reason: '' });
}

it.each([
  ['status 401', refused(401)],
  ['status 403', refused(403)],
  ['a credential plug-in that fails', new CredentialError('The identity provider does not answer', 5)],
])('takes %s as final only after 20 s, counted from the first in a row', (_cause, error) => {
  const patience = new Patience();
  expect(patience.endsWith(error)).toBe(false);
  vi.advanceTimersByTime(15_000);
  patience.reset();
  expect(patience.endsWith(error)).toBe(false);
  vi.advanceTimersByTime(20_000);
  expect(patience.endsWith(error)).toBe(false);
  vi.advanceTimersByTime(1_000);
  expect(patience.endsWith(error)).toBe(true);
});

it('takes other refusals as final at once, and errors that pass never', () => {
  const patience = new Patience();
  expect([404, 409, 422].map((status) => patience.endsWith(refused(status)))).toEqual([true, true, true]);
  const passing = [refused(410), refused(429), refused(503), new Error('connection lost')];
  expect(passing.map((error) => patience.endsWith(error))).toEqual([false, false, false, false]);
});
