import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { LONGEST } from './sequencer.ts';
import { runStages } from './stages.ts';

test('a lane takes the next step when its own has ended, and the next stage waits for all lanes', async () => {
  const running = new Set<string>();
  const seen: string[] = [];
  // A capital letter is a step that takes two rounds of the event loop longer.
  const run = async (step: string, lane: number): Promise<string> => {
    running.add(step);
    // The other lane begins its step, if there is one, before this one looks.
    await nextRound();
    seen.push(`${[...running].toSorted().join('+')} in ${lane}`);
    for (let round = 0; round < (step === step.toUpperCase() ? 3 : 1); round += 1) {
      await nextRound();
    }
    running.delete(step);
    return step;
  };
  const stages = [['a'], ['B', 'c', 'd'], ['e']];
  expect(await runStages(stages, run)).toEqual(['a', 'B', 'c', 'd', 'e']);
  expect(seen).toEqual(['a in 0', 'B+c in 0', 'B+c in 1', 'B+d in 1', 'e in 0']);
});

function nextRound(): Promise<void> {
  return new Promise((resolve) => setImmediate(resolve));
}

test('each of the longest test files exists', () => {
  const root = join(import.meta.dirname, '..', '..');
  expect(LONGEST.filter((file) => !existsSync(join(root, file)))).toEqual([]);
});
