import * as fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { SerialTerminal } from './terminal.ts';

/** Returns the terminal after the output. */
function after(...outputs: string[]): SerialTerminal {
  const terminal = new SerialTerminal();
  outputs.forEach((output) => terminal.write(output));
  return terminal;
}

function textsOf({ grid }: SerialTerminal): string[] {
  return grid.lines.map(({ runs }) => runs.map(({ text }) => text).join(''));
}

/** Returns the first lines of the screen, up to the last one with text. */
function screen(...outputs: string[]): string[] {
  const texts = textsOf(after(...outputs));
  return texts.slice(0, texts.findLastIndex((text) => text !== '') + 1);
}

it.each([
  ['lines', 'one\r\ntwo', ['one', 'two']],
  ['a line that is written again', 'loading\rdone   ', ['done   ']],
  ['corrections', 'abd\bc', ['abc']],
  ['tabs', 'a\tb', ['a       b']],
  ['long lines', `${'x'.repeat(80)}y`, ['x'.repeat(80), 'y']],
  ['long lines that are cut', `\u001b[?7l${'x'.repeat(80)}y`, [`${'x'.repeat(79)}y`]],
  ['places', '\u001b[2;3Hx\u001b[H\u001b[1By', ['', 'y x']],
  ['erased ends of lines', 'abc\u001b[2D\u001b[K', ['a']],
  ['erased begins of lines', 'abc\u001b[2D\u001b[1K', ['  c']],
  ['an erased screen', 'one\r\ntwo\u001b[2J', []],
  ['inserted and removed characters', 'abc\u001b[2G\u001b[2@\u001b[5G\u001b[P', ['a  b']],
  ['inserted and removed lines', 'a\r\nb\r\nc\u001b[2;1H\u001b[L\u001b[4;1H\u001b[M', ['a', '', 'b']],
  ['lines that are drawn', '\u001b(0lqk\u001b(Bq', ['┌─┐q']],
  ['the screen of an editor, which is gone at its end', 'shell\u001b[?1049heditor\u001b[?1049l', ['shell']],
  ['a part that scrolls', 'a\r\nb\r\nc\u001b[1;2r\u001b[2;1H\nd', ['b', 'd', 'c']],
])('shows %s', (_, output, lines) => expect(screen(output)).toEqual(lines));

it('keeps lines that have moved up, and not more than it needs', () => {
  const { grid } = after(Array.from({ length: 1_000 }, (_, index) => `${index}\r\n`).join(''));
  expect(grid.earlier).toHaveLength(170);
  expect(grid.earlier.at(-1)?.runs).toEqual([{ text: '976', style: '' }]);
});

it.each([
  ['\u001b[1;31mx', 'text-1 bold'],
  ['\u001b[4;7;44mx', 'ground-4 underlined inverse'],
  ['\u001b[38;5;196mx', 'text-9'],
  ['\u001b[38;2;0;100;0;1mx', 'text-2 bold'],
  ['\u001b[31m\u001b[mx', ''],
  ['\u001b[31m\u001b[>4;1mx', 'text-1'],
])('styles %j', (output, style) => expect(after(output).grid.lines[0]?.runs).toEqual([{ text: 'x', style }]));

describe('a guest that is hostile', () => {
  it.each([
    ['a title', 'a\u001b]0;stolen\u0007b', ['ab']],
    ['a title that ends otherwise', 'a\u001b]2;stolen\u001b\\b', ['ab']],
    ['a link', '\u001b]8;;https://evil.example\u0007click\u001b]8;;\u0007', ['click']],
    ['the clipboard', '\u001b]52;c;c3RvbGVu\u0007', []],
    ['a command for terminals', 'a\u001bP+q544e\u001b\\b', ['ab']],
    ['a question for the terminal', 'a\u001b[6n\u001b[c\u001b[>q\u0005b', ['ab']],
    ['text that reads from right to left', 'a\u202egpj.exe\u2066b', ['agpj.exeb']],
    ['characters without a width', 'a\u200b\u200d\ufeffb', ['ab']],
    ['HTML', '<img src=x onerror=alert(1)>', ['<img src=x onerror=alert(1)>']],
  ])('with %s does nothing', (_, output, lines) => expect(screen(output)).toEqual(lines));

  it('cannot hide its output behind a title without an end', () => {
    expect(screen(`\u001b]0;${'x'.repeat(4_096)}seen`)[0]).toMatch(/seen$/);
  });

  it('with any output keeps the size of the screen, and the place of the cursor in it', () => {
    const part = fc.oneof(
      fc.string({ unit: 'binary' }),
      fc.stringMatching(/^[[\]()#P?]?[\d;:?>]{0,12}[@-~]$/).map((end) => `\u001b${end}`),
      fc.constantFrom('\n', '\r', '\t', '\u001bM', '\u001bD', '\u001b[?1049h', '\u001b[99999999999A'),
    );
    fc.assert(
      fc.property(fc.array(part, { maxLength: 12 }), (parts) => {
        const terminal = after(...parts);
        const { row, column } = terminal.grid.cursor ?? { row: 0, column: 0 };
        expect(row >= 0 && row < 24 && column >= 0 && column < 80).toBe(true);
        expect(terminal.grid.lines).toHaveLength(24);
        expect(Math.max(...textsOf(terminal).map((text) => Array.from(text).length))).toBeLessThanOrEqual(80);
        expect(textsOf(terminal).join('')).not.toMatch(/[\p{Cc}\p{Cf}]/u);
        // A sequence can be spread over several texts.
        expect(textsOf(after(...Array.from(parts.join(''))))).toEqual(textsOf(terminal));
      }),
    );
  });
});
