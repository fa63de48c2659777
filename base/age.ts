/** Formats ages for people. */

const UNITS = [
  ['d', 86_400],
  ['h', 3_600],
  ['m', 60],
] as const;
/**
 * Smallest number of days, hours or minutes in a shown age. A smaller age is shown in the next smaller unit, because the larger unit would
 * be too imprecise.
 */
const ENOUGH = 2;

/**
 * Returns the time since `moment`, for example `3h`. `moment` is a time in RFC 3339, and `now` is in milliseconds since the epoch. If
 * `moment` is undefined or not a time, the result is empty.
 */
export function age(moment: string | undefined, now = Date.now()): string {
  const seconds = Math.max(0, Math.floor((now - Date.parse(moment ?? '')) / 1000));
  if (Number.isNaN(seconds)) {
    return '';
  }
  const [unit, length] = UNITS.find(([, length]) => seconds >= ENOUGH * length) ?? ['s', 1];
  return `${Math.floor(seconds / length)}${unit}`;
}
