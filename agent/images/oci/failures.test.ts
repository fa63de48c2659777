import { describe, expect, it } from 'vitest';
import { ReasonedError } from '../../../api/v1alpha1/reasons.ts';
import { networkError, retryAfterMilliseconds, retrying, TransientError } from './failures.ts';

const { signal } = new AbortController();

describe('retrying', () => {
  it('repeats only work that may succeed next time', async () => {
    let calls = 0;
    const result = await retrying(async () => {
      calls += 1;
      if (calls < 2) {
        throw new TransientError(new ReasonedError('ImageFetchFailed', 'busy'));
      }
      return calls;
    }, signal);
    expect(result).toBe(2);
    const hopeless = new ReasonedError('ImageNotFound', 'none');
    let asked = 0;
    const failing = retrying(async () => {
      asked += 1;
      throw hopeless;
    }, signal);
    await expect(failing).rejects.toBe(hopeless);
    expect(asked).toBe(1);
  });

  it('passes on a wait that is too long for it', async () => {
    const busy = new TransientError(new ReasonedError('ImageFetchFailed', 'busy'), 3_600_000);
    const failing = retrying(async () => await Promise.reject(busy), signal);
    const error: unknown = await failing.catch((thrown: unknown) => thrown);
    expect(error).toMatchObject({ reason: 'ImageFetchFailed', retryAfterMilliseconds: 3_600_000 });
    // An error that wraps it keeps the wait.
    const outer = new ReasonedError('ImageFetchFailed', 'outer', { cause: error });
    expect(outer.retryAfterMilliseconds).toBe(3_600_000);
  });

  // Its wait is longer than the limit of this test.
  it('ends with the reason of its signal while it waits', { timeout: 15_000 }, async () => {
    const abort = new AbortController();
    const busy = new TransientError(new ReasonedError('ImageFetchFailed', 'busy'), 20_000);
    const waiting = retrying(async () => {
      setImmediate(() => abort.abort(new Error('deleted')));
      throw busy;
    }, abort.signal);
    await expect(waiting).rejects.toThrow('deleted');
  });
});

it('distinguishes a passing error of the network from a lasting one', () => {
  const reset = Object.assign(new Error('read ECONNRESET'), { code: 'ECONNRESET' });
  expect(networkError(reset, 'x', signal)).toBeInstanceOf(TransientError);
  expect(networkError(new AggregateError([reset], ''), 'x', signal)).toBeInstanceOf(TransientError);
  expect(networkError(new Error('outer', { cause: reset }), 'x', signal)).toBeInstanceOf(TransientError);
  const untrusted = Object.assign(new Error('no'), { code: 'SELF_SIGNED_CERT_IN_CHAIN' });
  expect(networkError(untrusted, 'x', signal)).toMatchObject({
    reason: 'ImageFetchFailed',
    message: 'x: no; this host does not trust the certificate of the server (SELF_SIGNED_CERT_IN_CHAIN)',
  });
});

it('Retry-After is in seconds or a date', () => {
  expect(retryAfterMilliseconds('7')).toBe(7000);
  expect(retryAfterMilliseconds(new Date(Date.now() - 1000).toUTCString())).toBe(0);
  expect(retryAfterMilliseconds(new Date(Date.now() + 60_000).toUTCString())).toBeGreaterThan(50_000);
  expect(retryAfterMilliseconds(' 1.5 ')).toBe(1500);
  expect(retryAfterMilliseconds('99999999999')).toBe(99_999_999_999_000);
  expect(retryAfterMilliseconds(['7', '9'])).toBe(7000);
  for (const wrong of ['soon', '', '-1', '2026', '1e3', '3600 s', undefined, []]) {
    expect(retryAfterMilliseconds(wrong)).toBe(wrong === '2026' ? 2_026_000 : undefined);
  }
});
