import { expect, it } from 'vitest';
import { isLeaveKey, textOfKey, textOfPaste } from './keys.ts';

const PRESSED = { key: 'a', ctrlKey: false, altKey: false, metaKey: false, shiftKey: false };

it.each([
  [{ key: 'a' }, 'a'],
  [{ key: 'ü' }, 'ü'],
  [{ key: 'Enter' }, '\r'],
  [{ key: 'Backspace' }, '\u007f'],
  [{ key: 'ArrowUp' }, '\u001b[A'],
  [{ key: 'F5' }, '\u001b[15~'],
  [{ key: 'Tab', shiftKey: true }, '\u001b[Z'],
  [{ key: 'c', ctrlKey: true }, '\u0003'],
  [{ key: ' ', ctrlKey: true }, '\0'],
  [{ key: 'b', altKey: true }, '\u001bb'],
  // The key AltGr of many keyboards.
  [{ key: '@', ctrlKey: true, altKey: true }, '@'],
  [{ key: 'c', metaKey: true }, undefined],
  [{ key: 'C', ctrlKey: true, shiftKey: true }, undefined],
  [{ key: 'Shift', shiftKey: true }, undefined],
  [{ key: '5', ctrlKey: true }, undefined],
])('the key %j sends %j', (pressed, text) => expect(textOfKey({ ...PRESSED, ...pressed }, false)).toBe(text));

it('arrow keys send what applications want', () => {
  expect(textOfKey({ ...PRESSED, key: 'ArrowUp' }, true)).toBe('\u001bOA');
});

it('Ctrl+] leaves', () => {
  expect(isLeaveKey({ ...PRESSED, key: ']', ctrlKey: true })).toBe(true);
  expect(isLeaveKey({ ...PRESSED, key: ']' })).toBe(false);
});

it('pasted text has no control characters that nobody sees', () => {
  expect(textOfPaste('a\r\nb\nc\td\u001b[201~\u0003')).toBe('a\rb\rc\td[201~');
});
