/** Shows the progress of work, and estimates the time that is left. */
import type { Terminal } from './terminal.ts';
import { printable } from './text.ts';
import { timeText } from './duration.ts';

const CLEAR = '\r\u001b[K';
/** Number of columns if the terminal does not report it, for example on a serial console. Most terminals have this width. */
const COLUMNS = 80;

export interface ProgressLine {
  readonly show: (line: string) => void;
  readonly end: () => void;
}

export function progressLine({ isForPeople, err, columns }: Terminal): ProgressLine {
  let shown = '';
  const show = (line: string) => {
    // The terminal would wrap a longer line, and then the line could not be cleared. The width is read each time, because the user can
    // change it.
    const next = printable(line).slice(0, (columns?.() || COLUMNS) - 1);
    if (isForPeople && next !== shown) {
      err(CLEAR + next);
      shown = next;
    }
  };
  return { show, end: () => show('') };
}

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
