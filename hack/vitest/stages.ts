/** Order of the work of a whole test run. */

/** Steps that run one after the other. */
export type Lane<Step> = readonly Step[];
/** Lanes that run side by side. The next stage begins when all of them have ended. */
export type Stage<Step> = readonly Lane<Step>[];

/**
 * Runs the stages and resolves with all results in the order of the steps. `run` learns whether its step is in the first lane of its
 * stage.
 */
export async function runStages<Step, Result>(
  stages: readonly Stage<Step>[],
  run: (step: Step, isFirstLane: boolean) => Promise<Result>,
): Promise<Result[]> {
  const results: Result[] = [];
  for (const lanes of stages) {
    const ended = await Promise.all(
      lanes.map(async (lane, index) => {
        const ofLane: Result[] = [];
        for (const step of lane) {
          ofLane.push(await run(step, index === 0));
        }
        return ofLane;
      }),
    );
    results.push(...ended.flat());
  }
  return results;
}
