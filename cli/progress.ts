/** Shows progress in one line of a terminal. If a program reads the error stream, nothing is shown. */
import type { Terminal } from './terminal.ts';
import { printable } from './text.ts';

const CLEAR = '\r\u001b[K';
/** Longest line in characters. The terminal would wrap a longer line, and the line could not be cleared. */
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
