import { expect, it } from 'vitest';
import { chosenProtocol } from './session.ts';

it.each([
  ['a', 'a'],
  ['other ,\t b', 'b'],
  ['b, a', 'a'],
  ['ab', undefined],
  [undefined, undefined],
])('of the protocols %j of a client, %j is chosen', (header, chosen) => {
  expect(chosenProtocol(header, ['a', 'b'])).toBe(chosen);
});

it('a header of a megabyte of spaces is read at once', { timeout: 5_000 }, () => {
  expect(chosenProtocol(`a${' '.repeat(1_000_000)}b`, ['a'])).toBeUndefined();
});
