/** Lines of a terminal: characters with styles, a cursor, and the lines that have moved up above the screen. */

/** Size of the screen. A serial console cannot tell its guest another size, and guests take this one. */
export const COLUMNS = 80;
export const ROWS = 24;
/** Number of lines above the screen that stay. All lines together are in the page. */
const EARLIER_LINES = 170;
const TAB_COLUMNS = 8;

/** Text with one style. A style is a list of CSS classes, and is empty for plain text. */
export interface TextRun {
  readonly text: string;
  readonly style: string;
}

export interface TerminalLine {
  /** Number of the line. It stays the same when the line moves up. */
  readonly id: number;
  readonly runs: readonly TextRun[];
}

interface ScreenLine {
  readonly id: number;
  /** Characters from the left. Places after the last one are blank. */
  cells: TextRun[];
}

const BLANK: TextRun = { text: ' ', style: '' };

export class TerminalGrid {
  /** Style of the next characters. */
  style = '';
  /** Whether a character after the last column begins a new line. */
  wraps = true;
  isCursorShown = true;
  #nextID = 0;
  #earlier: TerminalLine[] = [];
  #screen = this.#blankLines(ROWS);
  /** Screen of the shell while a program has the whole screen, for example an editor. */
  #covered: { readonly screen: ScreenLine[]; readonly row: number; readonly column: number } | undefined;
  #row = 0;
  /** Column from 0. It is {@link COLUMNS} after the last column was written. */
  #column = 0;
  #saved = { row: 0, column: 0, style: '' };
  /** First and last line of the part that scrolls. */
  #top = 0;
  #bottom = ROWS - 1;

  /** Lines above the screen, the oldest first. */
  get earlier(): readonly TerminalLine[] {
    return this.#earlier;
  }

  get lines(): readonly TerminalLine[] {
    return this.#screen.map(({ id, cells }) => ({ id, runs: runsOf(cells) }));
  }

  get cursor(): { readonly row: number; readonly column: number } | undefined {
    return this.isCursorShown ? { row: this.#row, column: Math.min(this.#column, COLUMNS - 1) } : undefined;
  }

  /** Writes a character, and moves the cursor to the right. */
  put(text: string): void {
    if (this.#column >= COLUMNS && this.wraps) {
      this.#column = 0;
      this.lineFeed();
    }
    const column = Math.min(this.#column, COLUMNS - 1);
    this.#pad(column)[column] = { text, style: this.style };
    this.#column = column + 1;
  }

  /** Moves the cursor by lines and columns. */
  move(lines: number, columns: number): void {
    this.place(this.#row + lines, Math.min(this.#column, COLUMNS - 1) + columns);
  }

  /** Moves the cursor to a place, from 0. An undefined part stays as it is. */
  place(row = this.#row, column = this.#column): void {
    this.#row = Math.min(Math.max(row, 0), ROWS - 1);
    this.#column = Math.min(Math.max(column, 0), COLUMNS - 1);
  }

  tab(): void {
    this.place(undefined, (Math.floor(this.#column / TAB_COLUMNS) + 1) * TAB_COLUMNS);
  }

  /** Moves the cursor down. In the last line, the lines move up instead. */
  lineFeed(): void {
    if (this.#row === this.#bottom) {
      this.scroll(1);
    } else {
      this.place(this.#row + 1);
    }
  }

  /** Moves the cursor up. In the first line, the lines move down instead. */
  reverseLineFeed(): void {
    if (this.#row === this.#top) {
      this.scroll(-1);
    } else {
      this.place(this.#row - 1);
    }
  }

  /** Moves the lines of the scrolling part up, or down if `count` is negative. */
  scroll(count: number): void {
    this.#shift(this.#top, count);
  }

  /** Inserts blank lines at the cursor, or removes lines if `count` is negative. */
  insertLines(count: number): void {
    if (this.#row >= this.#top && this.#row <= this.#bottom) {
      this.#shift(this.#row, -count);
      this.#column = 0;
    }
  }

  insertCharacters(count: number): void {
    const cells = this.#pad(this.#column);
    const blanks = Array.from({ length: Math.min(count, COLUMNS) }, () => BLANK);
    cells.splice(this.#column, 0, ...blanks);
    cells.splice(COLUMNS);
  }

  removeCharacters(count: number): void {
    this.#cells.splice(this.#column, count);
  }

  /** Makes characters blank from the cursor on, without moving others. */
  blankCharacters(count: number): void {
    this.#blank(this.#column, Math.min(this.#column + count, COLUMNS));
  }

  /** Makes a part of the line blank: from the cursor to its end (0), from its begin to the cursor (1), or all of it (2). */
  eraseLine(part: number): void {
    const from = part === 0 ? this.#column : 0;
    this.#blank(from, part === 1 ? Math.min(this.#column + 1, COLUMNS) : COLUMNS);
  }

  /** Makes a part of the screen blank: from the cursor on (0), up to the cursor (1), or all of it (2). */
  eraseScreen(part: number): void {
    const [first, end] = part === 0 ? [this.#row + 1, ROWS] : [0, part === 1 ? this.#row : ROWS];
    this.#screen.slice(first, end).forEach((line) => {
      line.cells = [];
    });
    this.eraseLine(part);
  }

  /** Limits scrolling to lines, from 0. Wrong limits mean the whole screen. */
  limitScrolling(top: number, bottom: number): void {
    const isValid = top >= 0 && top < bottom && bottom < ROWS;
    [this.#top, this.#bottom] = isValid ? [top, bottom] : [0, ROWS - 1];
    this.place(0, 0);
  }

  save(): void {
    this.#saved = { row: this.#row, column: this.#column, style: this.style };
  }

  restore(): void {
    const { row, column, style } = this.#saved;
    this.place(row, column);
    this.style = style;
  }

  /** Shows another, empty screen to a program that wants one, and the earlier one again when the program has ended. */
  cover(isCovered: boolean): void {
    if (isCovered && this.#covered === undefined) {
      this.#covered = { screen: this.#screen, row: this.#row, column: this.#column };
      this.#screen = this.#blankLines(ROWS);
    } else if (!isCovered && this.#covered !== undefined) {
      const { screen, row, column } = this.#covered;
      this.#covered = undefined;
      this.#screen = screen;
      this.place(row, column);
    }
  }

  /** Makes everything as at the beginning, but keeps the lines above the screen. */
  reset(): void {
    this.cover(false);
    this.style = '';
    this.wraps = true;
    this.isCursorShown = true;
    this.limitScrolling(0, ROWS - 1);
    this.eraseScreen(2);
  }

  get #cells(): TextRun[] {
    return this.#screen[this.#row]?.cells ?? [];
  }

  /** Returns the cells of the line, filled with blanks up to the column. */
  #pad(column: number): TextRun[] {
    const cells = this.#cells;
    while (cells.length < column) {
      cells.push(BLANK);
    }
    return cells;
  }

  #blank(from: number, end: number): void {
    const cells = this.#cells;
    if (end >= COLUMNS) {
      cells.splice(from);
      return;
    }
    for (let column = from; column < Math.min(end, cells.length); column += 1) {
      cells[column] = BLANK;
    }
  }

  /** Moves lines from `top` to the end of the scrolling part up, or down if `count` is negative. */
  #shift(top: number, count: number): void {
    const size = this.#bottom - top + 1;
    const lines = Math.min(Math.abs(count), size);
    const blank = this.#blankLines(lines);
    if (count < 0) {
      this.#screen.splice(this.#bottom - lines + 1, lines);
      this.#screen.splice(top, 0, ...blank);
      return;
    }
    const gone = this.#screen.splice(top, lines);
    this.#screen.splice(this.#bottom - lines + 1, 0, ...blank);
    if (top === 0 && this.#covered === undefined) {
      this.#earlier.push(...gone.map(({ id, cells }) => ({ id, runs: runsOf(cells) })));
      this.#earlier.splice(0, this.#earlier.length - EARLIER_LINES);
    }
  }

  #blankLines(count: number): ScreenLine[] {
    return Array.from({ length: count }, () => {
      this.#nextID += 1;
      return { id: this.#nextID, cells: [] };
    });
  }
}

/** Returns the text of the cells, with neighbours of the same style put together. */
function runsOf(cells: readonly TextRun[]): TextRun[] {
  const runs: { text: string; style: string }[] = [];
  for (const { text, style } of cells) {
    const last = runs.at(-1);
    if (last?.style === style) {
      last.text += text;
    } else {
      runs.push({ text, style });
    }
  }
  return runs;
}
