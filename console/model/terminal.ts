/**
 * Takes the output of a serial console, as a terminal does. The guest is not trusted. So the terminal answers nothing, sets no title, makes
 * no links, and leaves out characters that hide or reorder others.
 */
import { COLUMNS, ROWS, TerminalGrid } from './terminalgrid.ts';
import { changeStyle, PLAIN, styleName, type TerminalStyle } from './terminalstyle.ts';

/** Longest control sequence in characters. A longer one has no effect. */
const SEQUENCE_CHARACTERS = 64;
/** Largest number of characters of a title, a link, or another text that is not shown. After them, the rest is shown. */
const HIDDEN_CHARACTERS = 4_096;
/** Largest number in a control sequence. */
const LARGEST_NUMBER = 9_999;
const ESCAPE = '\u001b';

/** Characters of the set with which programs draw lines (DEC Special Graphics). */
const DRAWINGS: Readonly<Record<string, string>> = {
  a: '▒',
  j: '┘',
  k: '┐',
  l: '┌',
  m: '└',
  n: '┼',
  q: '─',
  t: '├',
  u: '┤',
  v: '┴',
  w: '┬',
  x: '│',
};

/** Characters that are not shown: controls, and those that hide, change or reorder others. */
const UNSHOWN = /[\p{C}\p{Zl}\p{Zp}]/u;

/** What the characters that follow belong to. */
type State = 'text' | 'escape' | 'sequence' | 'hidden' | 'hidden end' | 'charset' | 'ignored';

export class SerialTerminal {
  readonly grid = new TerminalGrid();
  /** Whether arrow keys send the sequences for applications. */
  hasApplicationKeys = false;
  #state: State = 'text';
  #sequence = '';
  #hidden = 0;
  #style: TerminalStyle = PLAIN;
  #draws = false;

  /** Takes output. A control sequence can be spread over several texts. */
  write(text: string): void {
    for (const character of text) {
      this.#state = this.#take(character);
    }
  }

  /** Takes a character, and returns what the next one belongs to. */
  #take(character: string): State {
    switch (this.#state) {
      case 'escape':
        return this.#takeEscape(character);
      case 'sequence':
        return this.#takeSequence(character);
      case 'hidden':
      case 'hidden end':
        return this.#takeHidden(character);
      case 'charset':
        this.#draws = character === '0';
        return 'text';
      case 'ignored':
        return 'text';
      default:
        return this.#takeText(character);
    }
  }

  #takeText(character: string): State {
    if (character === ESCAPE) {
      return 'escape';
    }
    const control = CONTROLS.get(character);
    if (control !== undefined) {
      control(this.grid);
    } else if (!UNSHOWN.test(character)) {
      this.grid.put(this.#draws ? (DRAWINGS[character] ?? character) : character);
    }
    return 'text';
  }

  #takeEscape(character: string): State {
    const next = AFTER_ESCAPE.get(character);
    if (next !== undefined) {
      this.#sequence = '';
      this.#hidden = 0;
      return next;
    }
    if (character === 'c') {
      this.#style = PLAIN;
      this.#draws = false;
      this.hasApplicationKeys = false;
    }
    ESCAPES.get(character)?.(this.grid);
    return 'text';
  }

  #takeSequence(character: string): State {
    if (character === ESCAPE) {
      return 'escape';
    }
    // The last character of a sequence is a letter or one of a few signs. All characters before it are lower.
    if (character < '@' || character > '~') {
      this.#sequence += this.#sequence.length < SEQUENCE_CHARACTERS ? character : '';
      return 'sequence';
    }
    if (this.#sequence.length < SEQUENCE_CHARACTERS) {
      this.#execute(character, this.#sequence);
    }
    return 'text';
  }

  #takeHidden(character: string): State {
    this.#hidden += 1;
    const isEnd = character === BELL || (this.#state === 'hidden end' && character === '\\');
    if (isEnd || this.#hidden >= HIDDEN_CHARACTERS) {
      return 'text';
    }
    return character === ESCAPE ? 'hidden end' : 'hidden';
  }

  #execute(name: string, parameters: string): void {
    const numbers = parseNumbers(parameters);
    if (parameters.startsWith('?')) {
      numbers.forEach((mode) => this.#setMode(mode, name === 'h'));
      return;
    }
    if (/[^\d;:]/.test(parameters)) {
      return;
    }
    if (name === 'm') {
      this.#style = changeStyle(this.#style, numbers);
      this.grid.style = styleName(this.#style);
      return;
    }
    SEQUENCES.get(name)?.(this.grid, numbers);
  }

  #setMode(mode: number, isOn: boolean): void {
    if (mode === 1) {
      this.hasApplicationKeys = isOn;
    } else if (mode === 7) {
      this.grid.wraps = isOn;
    } else if (mode === 25) {
      this.grid.isCursorShown = isOn;
    } else if (WHOLE_SCREEN.has(mode)) {
      this.grid.cover(isOn);
    }
  }
}

/** Modes with which a program takes the whole screen. */
const WHOLE_SCREEN: ReadonlySet<number> = new Set([47, 1047, 1049]);
const BELL = '\u0007';

type Operation = (grid: TerminalGrid) => void;

const CONTROLS: ReadonlyMap<string, Operation> = new Map<string, Operation>([
  ['\b', (grid) => grid.move(0, -1)],
  ['\t', (grid) => grid.tab()],
  ['\n', (grid) => grid.lineFeed()],
  ['\v', (grid) => grid.lineFeed()],
  ['\f', (grid) => grid.lineFeed()],
  ['\r', (grid) => grid.place(undefined, 0)],
]);

const AFTER_ESCAPE: ReadonlyMap<string, State> = new Map<string, State>([
  ['[', 'sequence'],
  // Titles, links, the clipboard, and commands for terminals.
  ...[']', 'P', 'X', '^', '_'].map((one): [string, State] => [one, 'hidden']),
  ['(', 'charset'],
  ...[')', '*', '+', '#', '%', ' '].map((one): [string, State] => [one, 'ignored']),
  [ESCAPE, 'escape'],
]);

const ESCAPES: ReadonlyMap<string, Operation> = new Map<string, Operation>([
  ['7', (grid) => grid.save()],
  ['8', (grid) => grid.restore()],
  ['D', (grid) => grid.lineFeed()],
  ['M', (grid) => grid.reverseLineFeed()],
  [
    'E',
    (grid) => {
      grid.place(undefined, 0);
      grid.lineFeed();
    },
  ],
  ['c', (grid) => grid.reset()],
]);

type Command = (grid: TerminalGrid, numbers: readonly number[]) => void;

/** Returns a command for a number of lines or columns, which is 1 if it is 0 or missing. */
function counted(operation: (grid: TerminalGrid, count: number) => void): Command {
  return (grid, [count = 0]) => operation(grid, Math.max(count, 1));
}

/** Returns the command that moves the cursor to a line and a column. They are counted from 1. */
const placeCursor: Command = (grid, [row = 1, column = 1]) => grid.place(row - 1, column - 1);

const SEQUENCES: ReadonlyMap<string, Command> = new Map<string, Command>([
  ['A', counted((grid, count) => grid.move(-count, 0))],
  ['B', counted((grid, count) => grid.move(count, 0))],
  ['C', counted((grid, count) => grid.move(0, count))],
  ['D', counted((grid, count) => grid.move(0, -count))],
  ['E', counted((grid, count) => grid.move(count, -COLUMNS))],
  ['F', counted((grid, count) => grid.move(-count, -COLUMNS))],
  ['G', counted((grid, column) => grid.place(undefined, column - 1))],
  ['`', counted((grid, column) => grid.place(undefined, column - 1))],
  ['d', counted((grid, row) => grid.place(row - 1))],
  ['H', placeCursor],
  ['f', placeCursor],
  ['J', (grid, [part = 0]) => grid.eraseScreen(part)],
  ['K', (grid, [part = 0]) => grid.eraseLine(part)],
  ['L', counted((grid, count) => grid.insertLines(count))],
  ['M', counted((grid, count) => grid.insertLines(-count))],
  ['@', counted((grid, count) => grid.insertCharacters(count))],
  ['P', counted((grid, count) => grid.removeCharacters(count))],
  ['X', counted((grid, count) => grid.blankCharacters(count))],
  ['S', counted((grid, count) => grid.scroll(count))],
  ['T', counted((grid, count) => grid.scroll(-count))],
  ['r', (grid, [top = 1, bottom = ROWS]) => grid.limitScrolling(Math.max(top, 1) - 1, (bottom || ROWS) - 1)],
  ['s', (grid) => grid.save()],
  ['u', (grid) => grid.restore()],
]);

/** Returns the numbers of a control sequence. Missing ones are 0, and too large ones are smaller. */
function parseNumbers(parameters: string): number[] {
  const text = parameters.replace(/^\?/, '');
  return text === ''
    ? []
    : text.split(/[;:]/).map((one) => (/^\d{1,9}$/.test(one) ? Math.min(Number(one), LARGEST_NUMBER) : 0));
}
