/** Writes objects in the format that the user wants. */
import type { Terminal } from './terminal.ts';
import { aligned, printable } from './text.ts';

export const FORMATS = ['table', 'wide', 'json', 'yaml', 'name'] as const;
export type Format = (typeof FORMATS)[number];

/**
 * Option that quotes some texts in YAML, for example `no`, `1_000` and dates. Without quotes, programs with YAML 1.1, such as kubectl,
 * would not read these values as texts.
 */
export const QUOTING = { compat: 'yaml-1.1' } as const;

export interface Column<R> {
  readonly header: string;
  readonly value: (row: R) => string | number | undefined;
  /** Whether only the format `wide` shows the column. */
  readonly isWide?: true;
}

/** One row as JSON and YAML show it. Each row has a field `name`, `node`, `image` or `server`. The format `name` shows only this field. */
export type Item =
  | { readonly name: string }
  | { readonly node: string }
  | { readonly image: string }
  | { readonly server: string };

export interface Listing<R> {
  readonly rows: readonly R[];
  readonly columns: readonly Column<R>[];
  /** Returns the object as JSON and YAML show it. */
  readonly itemOf: (row: R) => Item;
  /** Sentence that people read if there are no rows. */
  readonly none?: string;
}

/**
 * Writes the rows in the format. JSON and YAML output is always a list, even if there is only one object. In these formats, the function
 * does not write to the error stream, because programs can read both output streams together.
 */
export async function print<R>(terminal: Terminal, format: Format, listing: Listing<R>): Promise<void> {
  const items = listing.rows.map(listing.itemOf);
  if (format === 'json') {
    terminal.out(`${JSON.stringify(items, undefined, 2)}\n`);
  } else if (format === 'yaml') {
    const { stringify } = await import('yaml');
    terminal.out(stringify(items, QUOTING));
  } else if (format === 'name') {
    terminal.out(items.map((item) => `${printable(nameOf(item))}\n`).join(''));
  } else if (items.length === 0) {
    terminal.err(`${printable(listing.none ?? 'There is nothing to show')}\n`);
  } else {
    terminal.out(table(listing, format === 'wide'));
  }
}

/** Returns one more row as a line below the table of the listing. The columns of the line are aligned with the columns of the table. */
export function lineBelow<R>({ rows, ...listing }: Listing<R>, row: R, isWide: boolean): string {
  return `${table({ ...listing, rows: [...rows, row] }, isWide)
    .trimEnd()
    .split('\n')
    .at(-1)}\n`;
}

/**
 * Writes the results: a sentence for each item, or the items in a format for programs. Each sentence consists of `words` and the name of
 * the item.
 */
export async function printDone(
  terminal: Terminal,
  format: Format,
  items: readonly Item[],
  message: string,
): Promise<void> {
  if (items.length === 0) {
    return;
  }
  if (format === 'table' || format === 'wide') {
    terminal.out(items.map((item) => `${message} ${printable(nameOf(item))}\n`).join(''));
  } else {
    await print(terminal, format, { rows: items, columns: [], itemOf: (item) => item });
  }
}

function nameOf(item: Item): string {
  if ('name' in item) {
    return item.name;
  }
  if ('node' in item) {
    return item.node;
  }
  return 'image' in item ? item.image : item.server;
}

function table<R>({ rows, columns }: Listing<R>, isWide: boolean): string {
  const shown = columns.filter((column) => isWide || column.isWide === undefined);
  const cells = rows.map((row) => shown.map(({ value }) => printable(String(value(row) ?? ''))));
  return aligned([shown.map(({ header }) => header), ...cells]);
}
