/** Chooses the rows of a long list that the page has. The other rows are only empty space above and below. */

/** Largest number of rows in the page. It is enough for a screen of 5,000 pixels. */
export const ROWS_IN_PAGE = 200;
/** Height of the row of a table in pixels. The style sheet has the same height. */
export const ROW_HEIGHT = 30;
/** Distance in pixels that a table scrolls before it is rendered again. It is less than the spare rows above and below the visible ones. */
export const ROWS_STEP = 10 * ROW_HEIGHT;
/** Number of rows above and below the visible ones. With them, a scroll shows rows before the next render. */
const SPARE_ROWS = 20;

export interface Viewport {
  /** Number of pixels above the visible part. */
  readonly top: number;
  /** Height of the visible part in pixels. */
  readonly height: number;
}

export interface Range {
  /** Index of the first row in the page. */
  readonly first: number;
  /** Index after the last row in the page. */
  readonly end: number;
  /** Height of the empty space above the rows, in pixels. */
  readonly above: number;
  /** Height of the empty space below the rows, in pixels. */
  readonly below: number;
}

/** Returns the rows that the page has. `rows` is the number of all rows, and `rowHeight` is the height of each of them in pixels. */
export function visibleRange(
  rows: number,
  rowHeight: number,
  { top, height }: Viewport,
  spareRows = SPARE_ROWS,
): Range {
  const shown = Math.min(Math.ceil(height / rowHeight) + 1, ROWS_IN_PAGE);
  const highest = Math.max(0, rows - shown);
  const begin = Math.min(Math.max(0, Math.floor(top / rowHeight)), highest);
  const spare = Math.min(spareRows, Math.floor((ROWS_IN_PAGE - shown) / 2));
  const first = Math.max(0, begin - spare);
  const end = Math.min(rows, begin + shown + spare);
  return { first, end, above: first * rowHeight, below: (rows - end) * rowHeight };
}
