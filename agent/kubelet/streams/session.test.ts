import { expect, it } from 'vitest';
import { chooseProtocol } from './session.ts';

it.each([
  ['a', 'a'],
  ['other ,\t b', 'b'],
  ['b, a', 'a'],
])('of the protocols %j of a client, %j is chosen', (header, chosen) => {
  expect(chooseProtocol(header, ['a', 'b'])).toBe(chosen);
});

it.each(['ab', undefined])('a client that offers only %j is refused', (header) => {
  expect(() => chooseProtocol(header, ['a', 'b'])).toThrow('none of the protocols a, b');
});

it('a header of a megabyte of spaces is read at once', { timeout: 30_000 }, () => {
  expect(() => chooseProtocol(`a${' '.repeat(1_000_000)}b`, ['a'])).toThrow('none of the protocols a');
});
