import { expect, it } from 'vitest';
import * as z from 'zod';
import { listOf } from './lists.ts';

const pairs = z.object({ map: listOf(z.tuple([z.number(), z.number()]), 3) });

it('a list in which all elements are right is read', () => {
  expect(
    pairs.parse({
      map: [
        [1, 2],
        [3, 4],
      ],
    }),
  ).toEqual({
    map: [
      [1, 2],
      [3, 4],
    ],
  });
  expect(pairs.parse({ map: [] })).toEqual({ map: [] });
});

it('of many wrong elements only the first is reported, with its place', () => {
  const { error } = pairs.safeParse({ map: [[1, 2], [3, 'x'], 'y'] });
  expect(error?.issues.map(({ path }) => path)).toEqual([['map', 1, 1]]);
});

it('a list that is too long is refused, and none of its elements is reported', () => {
  const { error } = pairs.safeParse({ map: ['a', 'b', 'c', 'd'] });
  expect(error?.issues.map(({ code, path }) => [code, path])).toEqual([['too_big', ['map']]]);
});
