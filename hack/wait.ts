/** Waits for a state that another process reaches and that can only be polled. */
import { messageOf } from '../base/errors.ts';
import { pause } from '../base/time.ts';

export interface WaitOptions {
  deadlineMilliseconds?: number;
  intervalMilliseconds?: number;
}

/** Time limit of a wait. One step of a real cluster takes less, even on a machine that stands still for 20 s. */
const DEFAULT_DEADLINE_MILLISECONDS = 60_000;
/** Interval between two probes: short compared with typical waits, long compared with a request on loopback. */
const DEFAULT_INTERVAL_MILLISECONDS = 50;

/**
 * Calls `probe` until it returns a value other than `undefined` or `false`, and returns that value. A probe that throws is called again.
 *
 * @throws Error that names `what` and the last answer, after the deadline.
 */
export async function waitFor<T>(
  what: string,
  probe: () => Promise<T | undefined | false> | T | undefined | false,
  options: WaitOptions = {},
): Promise<T> {
  const milliseconds = options.deadlineMilliseconds ?? DEFAULT_DEADLINE_MILLISECONDS;
  const deadline = performance.now() + milliseconds;
  let last = 'not yet';
  for (;;) {
    try {
      const answer = await probe();
      if (answer !== undefined && answer !== false) {
        return answer;
      }
      last = 'not yet';
    } catch (error) {
      last = messageOf(error);
    }
    if (performance.now() >= deadline) {
      throw new Error(`waited ${milliseconds} ms for ${what}: ${last}`);
    }
    await pause(options.intervalMilliseconds ?? DEFAULT_INTERVAL_MILLISECONDS);
  }
}
