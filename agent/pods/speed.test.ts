import { expect, it } from 'vitest';
import { meanSpeed } from './speed.ts';

it('the speed counts the bytes since the first call, and is unknown at first', () => {
  let at = 0;
  const speed = meanSpeed(() => at);
  expect(speed(undefined)).toBeUndefined();
  at = 10_000;
  // An earlier attempt had fetched these bytes.
  expect(speed(5_000_000)).toBeUndefined();
  at = 10_499;
  expect(speed(6_000_000)).toBeUndefined();
  at = 12_000;
  expect(speed(9_000_000)).toBe(2_000_000);
});
