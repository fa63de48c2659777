/** What a terminal sends for keys and for pasted text. */

/** A key that was pressed, with the keys held at the same time. */
export interface PressedKey {
  readonly key: string;
  readonly ctrlKey: boolean;
  readonly altKey: boolean;
  readonly metaKey: boolean;
  readonly shiftKey: boolean;
}

const ESCAPE = '\u001b';
/** Texts of keys that have no character. */
const KEYS: Readonly<Record<string, string>> = {
  Enter: '\r',
  Backspace: '\u007f',
  Tab: '\t',
  Escape: ESCAPE,
  Insert: `${ESCAPE}[2~`,
  Delete: `${ESCAPE}[3~`,
  PageUp: `${ESCAPE}[5~`,
  PageDown: `${ESCAPE}[6~`,
  ...Object.fromEntries(['P', 'Q', 'R', 'S'].map((end, index) => [`F${index + 1}`, `${ESCAPE}O${end}`])),
  ...Object.fromEntries(
    [15, 17, 18, 19, 20, 21, 23, 24].map((code, index) => [`F${index + 5}`, `${ESCAPE}[${code}~`]),
  ),
};
/** Last characters of the texts of keys that move the cursor. */
const MOVES: Readonly<Record<string, string>> = {
  ArrowUp: 'A',
  ArrowDown: 'B',
  ArrowRight: 'C',
  ArrowLeft: 'D',
  Home: 'H',
  End: 'F',
};

/** Whether the key leaves the console or the screen: Ctrl+], as in `kubectl attach`. All other keys can go to the guest. */
export function isLeaveKey({ key, ctrlKey }: PressedKey): boolean {
  return ctrlKey && key === ']';
}

/** Returns the text for a key, or undefined if the browser keeps the key, for example for its menu or to copy text. */
export function textOfKey(pressed: PressedKey, hasApplicationKeys: boolean): string | undefined {
  const { key, ctrlKey, metaKey, shiftKey } = pressed;
  if (metaKey || (ctrlKey && shiftKey)) {
    return undefined;
  }
  if (key === 'Tab' && shiftKey) {
    return `${ESCAPE}[Z`;
  }
  const move = MOVES[key];
  return move === undefined
    ? (KEYS[key] ?? characterOf(pressed))
    : ESCAPE + (hasApplicationKeys ? 'O' : '[') + move;
}

/** Returns the text of a key with a character. It is undefined for other keys, for example Shift. */
function characterOf({ key, ctrlKey, altKey }: PressedKey): string | undefined {
  if (!/^.$/su.test(key)) {
    return undefined;
  }
  // Both keys together are AltGr of many keyboards, which only chooses the character.
  if (ctrlKey === altKey) {
    return key;
  }
  return ctrlKey ? controlOf(key) : ESCAPE + key;
}

/** Returns the control character of a key that is pressed with Ctrl. It is undefined if the key has none. */
function controlOf(key: string): string | undefined {
  const upper = key.toUpperCase();
  if (key === ' ') {
    return '\0';
  }
  return upper >= '@' && upper <= '_' ? String.fromCharCode(upper.charCodeAt(0) & 31) : undefined;
}

/** Returns pasted text as keys would send it. Control characters are left out, because they could be commands that nobody sees. */
export function textOfPaste(text: string): string {
  return text.replaceAll(/\r\n|\n/g, '\r').replaceAll(/[^\P{Cc}\r\t]/gu, '');
}
