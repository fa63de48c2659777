import { expect, it } from 'vitest';
import { selectionIn } from './commands.ts';

it.each([
  [{ nodes: ['a', ' b '] }, { nodes: ['a', 'b'] }],
  [{ tags: [' fast'], all: false }, { tags: ['fast'] }],
  [{ all: true, nodes: [] }, { all: true }],
])('%j selects hosts', (flags, selection) => {
  expect(selectionIn(flags)).toEqual(selection);
});

it.each([{}, { all: false }, { nodes: [] }, { nodes: ['a'], tags: ['fast'] }, { tags: ['fast'], all: true }])(
  'refuses %j, which does not say which hosts',
  (flags) => expect(() => selectionIn(flags)).toThrow('exactly one of --nodes, --tags and --all'),
);

it('names the flag, the tag and the allowed form', () => {
  expect(() => selectionIn({ tags: ['fast', '-x'] })).toThrow(
    'The value of --tags "-x" must be 1 to 63 letters, digits, "-", "_" and ".", with a letter or digit at both ends',
  );
});
