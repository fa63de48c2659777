/** Prepares texts for terminals. */
export { age } from '../base/age.ts';

/**
 * Characters that can control a terminal, and invisible characters, which can make two different names look the same. They are replaced,
 * because texts of objects can come from people who are not trusted.
 */
const CONTROL = /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu;
/** Terminal sequences for colors and for moves of the cursor. */
// oxlint-disable-next-line no-control-regex -- A sequence begins with the character Escape.
const SEQUENCE = /\u001b\[[0-?]*[ -/]*[@-~]/g;
/** Space between two columns. */
const GAP = '   ';

/** Returns the text in one line, without characters that control a terminal. */
export function printable(text: string): string {
  return text.replace(CONTROL, ' ');
}

/** Returns the text without sequences and characters that control a terminal. Line breaks and tabs stay. */
export function printableLines(text: string): string {
  return text
    .replace(SEQUENCE, '')
    .replaceAll('\r\n', '\n')
    .replace(CONTROL, (character) => (character === '\n' || character === '\t' ? character : ' '));
}

/** Returns one line for each row. In all lines, the cells of a column begin at the same place. */
export function aligned(rows: readonly (readonly string[])[]): string {
  const widths: number[] = [];
  for (const row of rows) {
    row.forEach((cell, index) => {
      widths[index] = Math.max(widths[index] ?? 0, cell.length);
    });
  }
  return rows
    .map(
      (row) =>
        `${row
          .map((cell, index) => cell.padEnd(widths[index] ?? 0))
          .join(GAP)
          .trimEnd()}\n`,
    )
    .join('');
}
