/** Returns options of a suite that skip its tests for the reason `why`. If `why` is undefined, the tests run. */
export function unless(why: string | undefined): { skip: boolean; meta: { skipReason?: string } } {
  return { skip: why !== undefined, meta: why === undefined ? {} : { skipReason: why } };
}
