/** Writes objects as YAML, for people who know them from `kubectl get -o yaml`. */

/** A text that YAML reads as the same text without quotes. */
const PLAIN = /^[A-Za-z_/][\w./@+-]*(?:[ :=,]?[\w./@+-]+)*$/;
/** Texts that some readers of YAML take for another value. */
const OTHER_VALUES = /^(?:true|false|null|yes|no|on|off|y|n)$/i;

/** Returns the YAML of a value that came from JSON. */
export function formatYAML(value: unknown): string {
  return isEmptyOrPlain(value) ? `${formatScalar(value)}\n` : `${linesOf(value, '').join('\n')}\n`;
}

function linesOf(value: unknown, indent: string): string[] {
  if (Array.isArray(value)) {
    return value.flatMap((item) => itemLines(item, indent));
  }
  return Object.entries(value as object).flatMap(([key, item]) =>
    isEmptyOrPlain(item)
      ? [`${indent}${formatText(key)}: ${formatScalar(item)}`]
      : [`${indent}${formatText(key)}:`, ...linesOf(item, `${indent}  `)],
  );
}

/** Returns the lines of an item of a list. The dash stands before its first line. */
function itemLines(item: unknown, indent: string): string[] {
  if (isEmptyOrPlain(item)) {
    return [`${indent}- ${formatScalar(item)}`];
  }
  const [first = '', ...rest] = linesOf(item, `${indent}  `);
  return [`${indent}- ${first.slice(indent.length + 2)}`, ...rest];
}

function isEmptyOrPlain(value: unknown): boolean {
  return typeof value !== 'object' || value === null || Object.keys(value).length === 0;
}

function formatScalar(value: unknown): string {
  if (typeof value === 'string') {
    return formatText(value);
  }
  // JSON writes numbers, true, false, null, and empty lists and objects as YAML does.
  return JSON.stringify(value) ?? 'null';
}

function formatText(text: string): string {
  return PLAIN.test(text) && !OTHER_VALUES.test(text) && !text.includes(': ') ? text : JSON.stringify(text);
}
