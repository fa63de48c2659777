/** Computes the wait before the operator checks again whether an obstacle is gone, for example a quota. No watch shows this. */

/** Shortest and longest wait in milliseconds. After a minute without a change, people do not expect a start within seconds. */
const SHORTEST_MILLISECONDS = 10_000;
const LONGEST_MILLISECONDS = 60_000;

/**
 * Returns the wait in milliseconds. It is as long as the object has waited so far, so the waits grow, and need no memory or status. At most
 * half of the wait is removed at random. Otherwise, all objects that one quota refuses would send their requests at the same time.
 *
 * @param since RFC 3339 time since which the object waits; undefined if it begins to wait now
 * @param now milliseconds since the epoch
 */
export function recheckMilliseconds(since: string | undefined, now: number): number {
  const age = since === undefined ? 0 : now - Date.parse(since);
  const wait = Math.min(Math.max(age, SHORTEST_MILLISECONDS), LONGEST_MILLISECONDS);
  return wait * (1 - Math.random() / 2);
}
