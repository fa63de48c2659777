import { expect, it } from 'vitest';
import { progressLine } from './progress.ts';

const CLEAR = '\r\u001b[K';

/** Shows the lines in a terminal with this number of columns. Returns what was written. */
function shown(lines: readonly string[], columns?: number, isForPeople = true): string[] {
  const written: string[] = [];
  const progress = progressLine({
    name: 'berth',
    environment: {},
    out: () => undefined,
    err: (text) => void written.push(text),
    isForPeople,
    columns: () => columns,
    signal: new AbortController().signal,
  });
  for (const line of lines) {
    progress.show(line);
  }
  progress.end();
  return written;
}

it('cuts a line that the terminal would wrap, because a wrapped line could not be cleared', () => {
  const line = 'mac: '.padEnd(100, 'x');
  expect(shown([line], 40)).toEqual([CLEAR + line.slice(0, 39), CLEAR]);
  expect(shown([line], 200)).toEqual([CLEAR + line, CLEAR]);
});

it('assumes 80 columns if the terminal does not tell its width', () => {
  const line = 'x'.repeat(100);
  expect(shown([line])).toEqual([CLEAR + line.slice(0, 79), CLEAR]);
  expect(shown([line], 0)).toEqual([CLEAR + line.slice(0, 79), CLEAR]);
});

it('writes a line only when it changes, and nothing for programs', () => {
  expect(shown(['a', 'a', 'b'], 40)).toEqual([`${CLEAR}a`, `${CLEAR}b`, CLEAR]);
  expect(shown(['a'], 40, false)).toEqual([]);
});
