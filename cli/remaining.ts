/** Estimates the remaining time of work that reports its progress in percent. */
import { timeText } from './duration.ts';

/** Smallest progress in percent for an estimate. An earlier estimate would depend too much on the speed at the start. */
const ENOUGH_PERCENT = 3;

/**
 * Returns a function that takes a progress in percent and returns it as a text for people, for example `42 %, 3 min left`. `clock` returns
 * a time in milliseconds.
 */
export function estimator(clock: () => number = () => performance.now()): (percent: number) => string {
  let first: { percent: number; at: number } | undefined;
  return (percent) => {
    const at = clock();
    if (first === undefined || percent < first.percent) {
      // The work has begun again, for example on another host.
      first = { percent, at };
    }
    const done = percent - first.percent;
    const left =
      done < ENOUGH_PERCENT ? '' : `, ${timeText(((100 - percent) * (at - first.at)) / done)} left`;
    return `${percent} %${left}`;
  };
}
