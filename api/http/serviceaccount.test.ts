import { expect, it } from 'vitest';
import { lifeSeconds, tokenRequestSchema } from './serviceaccount.ts';

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
