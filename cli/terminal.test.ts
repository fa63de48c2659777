import { expect, it } from 'vitest';
import { writerTo } from './terminal.ts';

/**
 * Text with a window title, a color, a control character of the set C1, and an invisible character. JSON does not escape characters of C1.
 */
const HOSTILE = 'a\u001b]0;title\u0007b\u001b[31mc\u009b31md\u202e\r\n\te\n';

function written(isTTY: boolean): string {
  const texts: string[] = [];
  writerTo({ isTTY, write: (text: string | Uint8Array) => texts.push(String(text)) > 0 })(HOSTILE);
  return texts.join('');
}

it('lets no text of an object control the terminal', () => {
  expect(written(true)).toBe('a ]0;title bc 31md \n\te\n');
});

it('changes nothing for programs', () => expect(written(false)).toBe(HOSTILE));
