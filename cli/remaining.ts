/** Estimates the remaining time of work that reports its progress in percent. */
import { timeText } from './duration.ts';

/** Smallest progress in percent for an estimate. An earlier estimate would depend too much on the speed at the start. */
const ENOUGH_PERCENT = 3;

/**
 * Returns a function that takes the progress in percent and adds the remaining time to a text, for example `42 %, 3 min left`. `clock`
 * returns a time in milliseconds.
 */
export function estimator(
  clock: () => number = () => performance.now(),
): (percent: number, text: string) => string {
  let first: { percent: number; at: number } | undefined;
  let last = 0;
  return (percent, text) => {
    const at = clock();
    if (first === undefined || percent < last) {
      // The progress falls if the work begins again, for example on another host, or if the next step begins. In both cases, the estimate
      // also begins again.
      first = { percent, at };
    }
    last = percent;
    const done = percent - first.percent;
    return done < ENOUGH_PERCENT
      ? text
      : `${text}, ${timeText(((100 - percent) * (at - first.at)) / done)} left`;
  };
}
