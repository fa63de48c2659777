import { expect, it } from 'vitest';
import { similarTo } from './similar.ts';

it.each([
  ['runer', 'runner'],
  ['rnuner', 'runner'],
  ['mac-2', 'mac-1'],
  ['a', undefined],
  ['absent', undefined],
  ['x'.repeat(200), undefined],
])('for %s suggests %s', (mistyped, name) => {
  expect(similarTo(mistyped, ['runner', 'mac-1', 'b'])).toBe(name);
});
