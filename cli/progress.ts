/** Shows progress in one line of a terminal. Programs that read the error stream get none. */
import type { Terminal } from './terminal.ts';
import { printable } from './text.ts';

const CLEAR = '\r\u001b[K';
/** Longest line in characters. A line that wraps could not be cleared. */
const LENGTH = 79;

export interface Progress {
  readonly show: (line: string) => void;
  readonly end: () => void;
}

export function progressLine({ isForPeople, err }: Terminal): Progress {
  let shown = '';
  const show = (line: string) => {
    const next = printable(line).slice(0, LENGTH);
    if (isForPeople && next !== shown) {
      err(CLEAR + next);
      shown = next;
    }
  };
  return { show, end: () => show('') };
}
