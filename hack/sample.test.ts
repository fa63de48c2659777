import { expect, test } from 'vitest';
import { collect, draw } from './sample.ts';

const FILE = `import { one } from './one.ts';
import {
  something,
} from './a-module-with-a-rather-long-name.ts';

/**
 * Says what the function is there for.
 */
export function measure(): number {
  // Short comment that is still long enough.
  const refusal = 'disk is larger than the host has room for';
  return something(one, refusal, 'kind');
}
`;

test('lines of code come with their context; imports, comments and short lines do not', () => {
  const places = collect('code', 'a.ts', FILE);
  expect(places.map(({ place }) => place)).toEqual(['a.ts:9', 'a.ts:11', 'a.ts:12']);
  expect(places[0]?.text.split('\n')).toHaveLength(9);
});

test('a comment is one sample, however many lines it has', () => {
  expect(collect('comments', 'a.ts', FILE)).toEqual([
    { place: 'a.ts:6', text: '/**\n* Says what the function is there for.\n*/' },
    { place: 'a.ts:10', text: '// Short comment that is still long enough.' },
  ]);
});

test('messages are the literals that are sentences', () => {
  expect(collect('messages', 'a.ts', FILE).map(({ text }) => text)).toEqual([
    "'disk is larger than the host has room for'",
  ]);
});

test('a seed draws the same samples again, and another seed others', () => {
  const samples = Array.from({ length: 200 }, (_, index) => ({ place: `a.ts:${index}`, text: '' }));
  expect(draw(samples, 'seven', 10)).toEqual(draw(samples.toReversed(), 'seven', 10));
  expect(draw(samples, 'seven', 10)).not.toEqual(draw(samples, 'eight', 10));
});
