/** Estimates the time that is left of work that reports its progress in percent. */
import { timeText } from './duration.ts';

/** Percent that must be done before an estimate is shown. Before it, the speed of the start would count too much. */
const ENOUGH_PERCENT = 3;

/** Returns a function that takes each report and returns it for people, for example `42 %, 3 min left`. `clock` is in milliseconds. */
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
