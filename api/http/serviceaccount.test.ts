import { expect, it } from 'vitest';
import { lifeSeconds, tokenItem, tokenRequestSchema } from './serviceaccount.ts';

it.each([
  [{}, 31_536_000],
  [{ duration: '8760h' }, 31_536_000],
  [{ duration: '1h30m5s' }, 5_405],
  [{ duration: '600s', noExpiration: false }, 600],
  [{ expirationSeconds: 600 }, 600],
  [{ noExpiration: true }, 4_294_967_296],
])('%j is a life of %i s', (body, seconds) => {
  expect(lifeSeconds(tokenRequestSchema.parse(body))).toBe(seconds);
});

it.each([
  { duration: '9m' },
  { duration: '1193047h' },
  { duration: '1d' },
  { duration: '-1h' },
  { duration: '1.5h' },
  { duration: 'h' },
  { duration: `${'9'.repeat(400)}h` },
  { expirationSeconds: 599 },
  { expirationSeconds: 4_294_967_297 },
  { duration: '1h', expirationSeconds: 3_600 },
  { duration: '1h', noExpiration: true },
])('%j is refused', (body) => {
  expect(tokenRequestSchema.safeParse(body).success).toBe(false);
});

it.each([
  [
    31_536_000,
    86_400,
    'The token lives for 24h instead of 8760h, because the API server of the cluster allows',
  ],
  [86_405, 5_430, 'The token lives for 1h30m30s instead of 24h5s, because'],
])('a token for %i s that lives for %i s says so', (wanted, grantedSeconds, message) => {
  const expirationTimestamp = '2026-11-30T12:00:00Z';
  expect(tokenItem({ token: 'a', expirationTimestamp, grantedSeconds }, wanted)).toEqual({
    token: 'a',
    expirationTimestamp,
    expirationSeconds: grantedSeconds,
    message: expect.stringContaining(message),
  });
});

it('a token with the wanted life has no message', () => {
  expect(tokenItem({ token: 'a', grantedSeconds: 600 }, 600).message).toBeUndefined();
});
