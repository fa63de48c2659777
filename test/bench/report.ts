/** Functions for tables of results. */

/** Returns the value below which this share of the values lies. */
export function quantile(values: readonly number[], part: number): number {
  return values.toSorted((a, b) => a - b)[Math.floor(values.length * part)] ?? Number.NaN;
}

export function milliseconds(value: number): string {
  return `${value.toFixed(0)} ms`;
}

/** Returns rows with aligned columns. */
export function format(rows: readonly string[][]): string {
  const widths = (rows[0] ?? []).map((_, column) => Math.max(...rows.map((row) => row[column]?.length ?? 0)));
  return rows
    .map((row) =>
      row
        .map((cell, column) => cell.padEnd(widths[column] ?? 0))
        .join('  ')
        .trimEnd(),
    )
    .join('\n');
}

export function seconds(value: number): string {
  return `${value.toFixed(2)} s`;
}
