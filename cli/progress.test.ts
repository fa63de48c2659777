import { expect, it } from 'vitest';
import { estimator, progressLine } from './progress.ts';
import { parseDuration, timeText } from './duration.ts';
import { makeTerminal } from '../test/fixtures/terminals.ts';

const CLEAR = '\r\u001b[K';

/** Shows the lines in a terminal with this number of columns. Returns what was written. */
function shown(lines: readonly string[], columns?: number, isForPeople = true): string[] {
  const written: string[] = [];
  const err = (text: string) => void written.push(text);
  const progress = progressLine(makeTerminal({ err, isForPeople, columns: () => columns }));
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

it('estimates the time that is left, and begins anew with the work', () => {
  let now = 0;
  const timed = estimator(() => now);
  const estimate = (percent: number) => timed(percent, `${percent} %`);
  expect(estimate(10)).toBe('10 %');
  now = 30_000;
  expect(estimate(11)).toBe('11 %');
  now = 60_000;
  expect(estimate(40)).toBe('40 %, 2 min left');
  expect(estimate(5)).toBe('5 %');
  now = 70_000;
  expect(estimate(55)).toBe('55 %, 9 s left');
  // The next step of the work has a progress of its own.
  expect(estimate(10)).toBe('10 %');
  now = 80_000;
  expect(estimate(60)).toBe('60 %, 8 s left');
});

it.each([
  ['90s', 90_000, '90 s'],
  ['10m', 600_000, '10 min'],
  ['10', 600_000, '10 min'],
  ['3h', 10_800_000, '3 h'],
])('reads %s as %i ms', (text, milliseconds, expected) => {
  expect(parseDuration(text)).toBe(milliseconds);
  expect(timeText(milliseconds)).toBe(expected);
});

it.each(['0s', '', '-1m', '1d', '999999h', '1.5h', 'm'])('refuses %j', (text) => {
  expect(() => parseDuration(text)).toThrow('90s, 10m or 2h');
});
