import { expect, it } from 'vitest';
import { lineOfLog } from './log.ts';

const TIME = '2026-11-22T10:00:00.000000001Z';

it.each([
  ['text', 'text'],
  ['<b>no HTML</b>', '<b>no HTML</b>'],
  ['\u001b[31mred\u001b[0m', 'red'],
  ['10 %\r20 %', '20 %'],
  ['\u001b]0;stolen\u0007\u001b]8;;https://evil.example\u0007click\u001b]8;;\u0007', 'click'],
  ['\u202egpj.exe', 'gpj.exe'],
  ['x'.repeat(200), 'x'.repeat(200)],
  ['\u001b]0;a title without an end', ''],
  ['the next line', 'the next line'],
])('shows the line %j as %j', (line, text) => {
  expect(lineOfLog(`${TIME} ${line}`)).toEqual({ time: TIME, text });
});

it.each(['', 'a line without a time'])('leaves out %j', (line) => expect(lineOfLog(line)).toBeUndefined());
