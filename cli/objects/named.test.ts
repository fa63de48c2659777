import { setImmediate as nextPhase } from 'node:timers/promises';
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

it('works with at most 100 names at the same time', async () => {
  const names = Array.from({ length: 250 }, (_, index) => `vm-${index}`);
  let running = 0;
  let most = 0;
  const { done, rethrow } = await forEachName(names, async (name) => {
    running += 1;
    most = Math.max(most, running);
    await nextPhase();
    running -= 1;
    return name === 'vm-7' ? await Promise.reject(new Error(name)) : name;
  });
  expect([most, done.length, done.at(-1)]).toEqual([100, 249, 'vm-249']);
  expect(rethrow).toThrow('vm-7');
});
