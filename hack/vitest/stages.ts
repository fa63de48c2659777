/** Order of the work of a whole test run. */

/** Steps that run side by side. Each lane takes the next step of the list when its own has ended, so that no lane waits for another. */
export type Stage<Step> = readonly Step[];

/**
 * Number of lanes. A project with real parts waits about half of its time: e2e alone uses 55 % of two processors, and faults less. Beside two
 * other projects, its emulated guests boot too late for their time limits.
 */
export const LANES = 2;

/**
 * Runs the stages one after the other and resolves with all results in the order of the steps. `run` learns the number of its lane,
 * from 0. The only step of a stage runs in lane 0, with nothing beside it.
 */
export async function runStages<Step, Result>(
  stages: readonly Stage<Step>[],
  run: (step: Step, lane: number) => Promise<Result>,
): Promise<Result[]> {
  const results: Result[] = [];
  for (const stage of stages) {
    const first = results.length;
    const waiting = [...stage.entries()];
    const work = async (lane: number): Promise<void> => {
      for (let next = waiting.shift(); next !== undefined; next = waiting.shift()) {
        const [index, step] = next;
        results[first + index] = await run(step, lane);
      }
    };
    await Promise.all(Array.from({ length: LANES }, async (_, lane) => await work(lane)));
  }
  return results;
}
