import { expect, test } from 'vitest';
import { isDiskPressed } from './freedisk.ts';

const GIB = 1024 ** 3;

test.each([
  ['less than a twentieth is free', { share: 0.0499, bytes: 40 * GIB }, false, true],
  ['a twentieth is free', { share: 0.05, bytes: 40 * GIB }, false, false],
  ['less is free than images leave', { share: 0.5, bytes: 2 * GIB - 1 }, false, true],
  ['as much is free as images leave', { share: 0.5, bytes: 2 * GIB }, false, false],
  ['a little more is free, and was less', { share: 0.5, bytes: 2.2 * GIB }, true, true],
  ['the share is a little larger, and was smaller', { share: 0.07, bytes: 40 * GIB }, true, true],
  ['there is room again', { share: 0.09, bytes: 2.5 * GIB }, true, false],
])('%s', (_, free, wasPressed, pressed) => {
  expect(isDiskPressed(free, 2 * GIB, wasPressed)).toBe(pressed);
});
