/** Shows progress in one line of a terminal. If a program reads the error stream, nothing is shown. */
import type { Terminal } from './terminal.ts';
import { printable } from './text.ts';

const CLEAR = '\r\u001b[K';
/** Number of columns if the terminal does not tell it, for example a serial console. It is the usual width of a terminal. */
const COLUMNS = 80;

export interface Progress {
  readonly show: (line: string) => void;
  readonly end: () => void;
}

export function progressLine({ isForPeople, err, columns }: Terminal): Progress {
  let shown = '';
  const show = (line: string) => {
    // The terminal would wrap a longer line, and then the line could not be cleared. The user can change the width at any time.
    const next = printable(line).slice(0, (columns?.() || COLUMNS) - 1);
    if (isForPeople && next !== shown) {
      err(CLEAR + next);
      shown = next;
    }
  };
  return { show, end: () => show('') };
}
