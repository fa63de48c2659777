import { expect, it } from 'vitest';
import { forEachName } from './named.ts';

it('works once for each name, in the order of the names, even if the user repeats a name', async () => {
  const begun: string[] = [];
  const { done } = await forEachName(['b', 'a', 'b', 'a'], async (name) => {
    begun.push(name);
    return name;
  });
  expect([begun, done]).toEqual([
    ['b', 'a'],
    ['b', 'a'],
  ]);
});
