import { expect, it } from 'vitest';
import { writerTo } from './terminal.ts';

/** A title for the window, a color, and a sequence that begins with a single character of C1. JSON escapes none of the last kind. */
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
