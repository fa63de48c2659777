import { describe, expect, it } from 'vitest';
import { ReasonedError } from '../../../api/v1alpha1/reasons.ts';
import { LeastRate, networkError, retryAfterMilliseconds, retrying, TransientError } from './failures.ts';

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
    message: 'x: this host does not trust the certificate of the server (SELF_SIGNED_CERT_IN_CHAIN)',
  });
});

it.each([
  ['ENOTFOUND', 'getaddrinfo ENOTFOUND registry.example', 'the name of the server was not found'],
  ['ECONNREFUSED', 'connect ECONNREFUSED 10.1.2.3:5000', 'there is no connection to the server'],
  [
    'EHOSTUNREACH',
    'connect EHOSTUNREACH 10.1.2.3:5000 - Local (10.9.8.7:4711)',
    'there is no connection to the server',
  ],
  ['UND_ERR_CONNECT_TIMEOUT', 'attempted address: 10.1.2.3:5000', 'there is no connection to the server'],
  ['ECONNRESET', 'read ECONNRESET', 'the connection to the server was lost'],
  ['ERR_SSL_WRONG_VERSION_NUMBER', 'tls_get_more_records:wrong version', 'the server answers without TLS'],
  ['EUNKNOWN', 'bind 10.1.2.3 eth0', 'the request failed (EUNKNOWN)'],
])('the message of %s shows nothing of the network of the host, and its cause does', (code, text, cause) => {
  const error = Object.assign(new Error(text), { code });
  for (const one of [error, new AggregateError([error], ''), new Error(text, { cause: error })]) {
    const failure = networkError(one, 'registry.example/image', signal);
    const final = failure instanceof TransientError ? failure.final : failure;
    expect(final).toMatchObject({ message: `registry.example/image: ${cause}`, cause: one });
  }
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
