/** Limits how long this process works without a pause. During the work, no timer fires and no answer of the network is read. */

/**
 * Longest work in one turn of the event loop, in milliseconds. A renewal of a lease, for example, is late by at most the sum of this time
 * and the time of one piece of work. The limit is not shorter, because a pause after each piece of a long list would double the time for
 * reading the list.
 */
const TURN_MILLISECONDS = 5;

/** Time, as in `performance.now`, at which the first work in this turn of the event loop began. */
let began: number | undefined;

/** Marks the beginning of work. The work of several callers in one turn of the event loop counts together. */
export function beginTurn(): number {
  if (began === undefined) {
    began = performance.now();
    setImmediate(() => (began = undefined));
  }
  return began;
}

/** Returns true if the work in this turn took too long. Further work must then wait for the next turn, for example by `setImmediate`. */
export function isTurnOver(): boolean {
  return performance.now() - beginTurn() > TURN_MILLISECONDS;
}
