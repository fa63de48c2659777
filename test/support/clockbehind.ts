/**
 * Preloaded by Node.js into a program whose clock is behind by a number of seconds. Times that the program computes are then in the past
 * sooner. A test therefore needs no long wait to see what happens after them.
 */
const VARIABLE = 'BERTH_TEST_CLOCK_BEHIND';

/** Returns the environment of a program whose clock is behind by this number of seconds. */
export function clockBehind(seconds: number): Record<string, string> {
  return { NODE_OPTIONS: `--import=${import.meta.url}`, [VARIABLE]: String(seconds) };
}

const behind = Number(process.env[VARIABLE] ?? 0) * 1000;
if (behind > 0) {
  const now = Date.now.bind(Date);
  Date.now = () => now() - behind;
}
