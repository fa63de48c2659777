/** Finds the name that a user might have meant. */

/**
 * Largest number of letters in which a mistyped name may differ from the suggested name. With more letters, the suggestion would be a
 * guess.
 */
const DIFFERENCE = 2;
/** Longest name that is compared. The time of a comparison grows with the square of the length. */
const LENGTH = 64;

/** Returns the name that is most similar to the mistyped name. The result is undefined if no name is similar. */
export function similarTo(mistyped: string, names: readonly string[]): string | undefined {
  const near = names
    .filter((name) => name.length <= LENGTH && Math.abs(name.length - mistyped.length) <= DIFFERENCE)
    .map((name) => ({ name, distance: distanceOf(mistyped, name) }))
    .filter(({ name, distance }) => distance <= DIFFERENCE && distance < name.length / 2);
  return near.sort((a, b) => a.distance - b.distance)[0]?.name;
}

/** Returns the number of letters that must be added, removed or replaced to turn `from` into `to`. */
function distanceOf(from: string, to: string): number {
  let row = Array.from({ length: to.length + 1 }, (_, index) => index);
  for (const [index, letter] of from.split('').entries()) {
    const next = [index + 1];
    for (let at = 1; at <= to.length; at += 1) {
      const replaced = (row[at - 1] ?? 0) + (to[at - 1] === letter ? 0 : 1);
      next.push(Math.min(replaced, (row[at] ?? 0) + 1, (next[at - 1] ?? 0) + 1));
    }
    row = next;
  }
  return row.at(-1) ?? 0;
}
