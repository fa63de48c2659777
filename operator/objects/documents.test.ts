import { expect, it } from 'vitest';
import * as z from 'zod';
import { Documents } from './documents.ts';

const documents = new Documents(z.object({ name: z.string() }));

function textOf(length: number): string {
  return JSON.stringify({ name: 'x'.repeat(length - JSON.stringify({ name: '' }).length) });
}

it('checks a text once, and returns the same document for it again', () => {
  const document = documents.in('{"name":"a"}');
  expect(document).toEqual({ name: 'a' });
  expect(documents.in(['{"name":', '"a"}'].join(''))).toBe(document);
});

it.each([undefined, '', '{', '{"name":1}'])('has no document for %s, also when it is asked again', (text) => {
  expect([documents.in(text), documents.in(text)]).toEqual([undefined, undefined]);
});

it('remembers a million characters at most', () => {
  const [first, second] = [textOf(600_000), textOf(600_001)];
  const document = documents.in(first);
  expect(documents.in(first)).toBe(document);
  documents.in(second);
  expect(documents.in(first)).not.toBe(document);
  const huge = textOf(1_000_000);
  expect(documents.in(huge)).toEqual(documents.in(huge));
  expect(documents.in(huge)).not.toBe(documents.in(huge));
});
