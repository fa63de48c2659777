/** What is wrong with the machine, if anything, as the options of a suite: then its tests are skipped for this reason. */
export function unless(why: string | undefined): { skip: boolean; meta: { skipReason?: string } } {
  return { skip: why !== undefined, meta: why === undefined ? {} : { skipReason: why } };
}
