import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { LONGEST } from './sequencer.ts';
import { runStages } from './stages.ts';

test('lanes run side by side, their steps one after the other, and the next stage waits for all lanes', async () => {
  const running = new Set<string>();
  const seen: string[] = [];
  const run = async (step: string, isFirstLane: boolean): Promise<string> => {
    running.add(step);
    // All lanes that can continue do so before this step ends.
    await new Promise((resolve) => setImmediate(resolve));
    seen.push(`${[...running].toSorted().join('+')}${isFirstLane ? ', first lane' : ''}`);
    await new Promise((resolve) => setImmediate(resolve));
    running.delete(step);
    return step;
  };
  expect(await runStages([[['a']], [['b', 'c'], ['d']], [['e']]], run)).toEqual(['a', 'b', 'c', 'd', 'e']);
  expect(seen).toEqual(['a, first lane', 'b+d, first lane', 'b+d', 'c, first lane', 'e, first lane']);
});

test('each of the longest test files exists', () => {
  const root = join(import.meta.dirname, '..', '..');
  expect(LONGEST.filter((file) => !existsSync(join(root, file)))).toEqual([]);
});
