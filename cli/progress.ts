/** Shows progress in one line of a terminal. If a program reads the error stream, nothing is shown. */
import type { Terminal } from './terminal.ts';
import { printable } from './text.ts';

const CLEAR = '\r\u001b[K';
/** Number of columns if the terminal does not report it, for example on a serial console. Most terminals have this width. */
const COLUMNS = 80;

export interface Progress {
  readonly show: (line: string) => void;
  readonly end: () => void;
}

export function progressLine({ isForPeople, err, columns }: Terminal): Progress {
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
