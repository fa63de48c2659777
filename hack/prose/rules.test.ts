import { expect, test } from 'vitest';
import { faultsIn } from './rules.ts';

function advice(markdown: string): string[] {
  return faultsIn(markdown).map((fault) => fault.advice);
}

test('a sentence has at most 25 words, inline code counting as one', () => {
  const sentenceOf = (count: number): string =>
    `${['Word', ...Array.from({ length: count - 1 }, () => 'word')].join(' ')}.`;
  expect(advice(sentenceOf(25))).toEqual([]);
  expect(advice(sentenceOf(26))).toEqual(['has 26 words, at most 25 are allowed']);
  expect(advice(`\`one two three\` ${sentenceOf(24)}`)).toEqual([]);
  expect(advice(`${sentenceOf(20)} ${sentenceOf(20)}`)).toEqual([]);
});

test.each([
  ['Is there a namespace of that name, choose another.', 'begins a condition with a verb'],
  ['The rollout waits: are there too many, it stops.', 'has an inverted condition'],
  ['The message says what is missing.', 'uses "what" as a noun'],
  ['A manifest may remain; such are removed by hand.', 'uses "such" as a noun'],
  ['Of an index the image for the host is taken.', 'has an elliptic beginning'],
  ['Who names a Secret needs the right to read it.', 'names nobody'],
  ['A new token mends it.', 'write "fix"'],
  ['The host has no free place.', 'write "slot"'],
  ['Add a node that runs VMs.', 'write "host"'],
])('%s', (sentence, expected) => {
  expect(advice(sentence)).toEqual([expect.stringContaining(expected)]);
});

test.each([
  'Is there a namespace of that name, or not?',
  'Decide what to do, then do it.',
  'Namespaces such as these are served.',
  'Label the nodes of the cluster that are to run VMs.',
  'Set `what` in the file.',
])('%s is allowed', (sentence) => {
  expect(advice(sentence)).toEqual([]);
});

test('headings name a topic', () => {
  expect(advice('# Watch it')).toEqual(['names no topic']);
  expect(advice('## Ready, steady, go!')).toEqual(['ends with punctuation']);
  expect(advice('## Monitoring')).toEqual([]);
});

test('lists and cells of tables are read, code blocks and comments are not', () => {
  const markdown = [
    '- It mends itself.',
    '',
    '| alert | meaning |',
    '| --- | --- |',
    '| a | It is made anew. |',
    '',
    '```sh',
    'what mends',
    '```',
    '<!-- what -->',
  ].join('\n');
  expect(faultsIn(markdown).map(({ line }) => line)).toEqual([1, 5]);
});
