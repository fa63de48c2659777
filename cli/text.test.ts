import { expect, it } from 'vitest';
import { age, aligned, printable } from './text.ts';

it('writes nothing that controls a terminal', () => {
  expect(printable('a\u001b[31mb\nc\u202ed\u009b')).toBe('a [31mb c d ');
});

it('shows the place of characters that nobody sees', () => {
  expect(printable('al\u200bice a\ufeffb c\u{e0041}d\u2066e')).toBe('al ice a b c d e');
});

it('aligns columns, without spaces at the ends of lines', () => {
  const rows = [
    ['NAME', 'IP'],
    ['a-long-name', '10.0.0.1'],
    ['b', ''],
  ];
  expect(aligned(rows)).toBe('NAME          IP\na-long-name   10.0.0.1\nb\n');
});

it.each([
  [0, '0s'],
  [119, '119s'],
  [120, '2m'],
  [7_200, '2h'],
  [172_800, '2d'],
])('shows an age of %i s as %s', (seconds, shown) => {
  const now = Date.parse('2026-11-23T12:00:00Z');
  expect(age(new Date(now - seconds * 1000).toISOString(), now)).toBe(shown);
});

it('shows no age without a time', () => expect(age(undefined)).toBe(''));
