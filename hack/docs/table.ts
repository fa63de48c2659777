/** Makes tables for generated pages. */

/** Returns a Markdown table. Cells are Markdown; line breaks become spaces, and bars are escaped. */
export function table(head: readonly string[], rows: readonly (readonly string[])[]): string {
  const line = (cells: readonly string[]): string =>
    `| ${cells.map((cell) => cell.replaceAll('|', '\\|').replaceAll('\n', ' ')).join(' | ')} |`;
  return [line(head), line(head.map(() => '---')), ...rows.map(line)].join('\n');
}

/**
 * Returns `page` with `content` between the comments `<!-- name -->` and `<!-- end -->`.
 *
 * @throws Error for a page without these comments.
 */
export function between(page: string, name: string, content: string): string {
  const section = new RegExp(`(<!-- ${name} -->\n)[^]*?(<!-- end -->)`);
  if (!section.test(page)) {
    throw new Error(`the page has no place for ${name}: <!-- ${name} --> and <!-- end -->`);
  }
  return page.replace(section, (_, begin: string, end: string) => `${begin}\n${content}\n\n${end}`);
}

/** Part of a JSON schema that the pages show. */
export interface JsonSchema {
  readonly type?: string;
  readonly description?: string;
  readonly default?: unknown;
  readonly const?: string | boolean | undefined;
  readonly enum?: readonly string[];
  readonly minimum?: number;
  readonly maximum?: number;
  readonly exclusiveMinimum?: number;
  readonly items?: JsonSchema;
  readonly properties?: Readonly<Record<string, JsonSchema>>;
  readonly anyOf?: readonly JsonSchema[];
  readonly oneOf?: readonly JsonSchema[];
  readonly allOf?: readonly JsonSchema[];
  readonly [key: string]: unknown;
}

/** Returns whether a value is a real bound. zod writes the largest safe integer for a missing bound. */
function isBound(value: number | undefined): value is number {
  return value !== undefined && Math.abs(value) < Number.MAX_SAFE_INTEGER;
}

/** Returns the type and bounds in a few words, for example `integer, from 1 to 256`. */
export function typeOf(schema: JsonSchema): string {
  if (schema['x-kubernetes-int-or-string'] === true) {
    return 'quantity';
  }
  const values = schema.enum ?? [schema, ...(schema.anyOf ?? [])].flatMap((one) => one.const ?? []);
  if (values.length > 0) {
    return values.map((word) => `\`${word}\``).join(', ');
  }
  if (schema.items !== undefined) {
    const { type = 'object' } = schema.items;
    return type === 'object' ? 'list' : `list of ${type}s`;
  }
  return [schema.type ?? 'text', ...boundsOf(schema)].join(', ');
}

/** Returns one text for the bounds of a number, and an empty list for other types. */
function boundsOf({ type = '', minimum, maximum, exclusiveMinimum }: JsonSchema): string[] {
  const bounds = [
    ...(isBound(minimum) ? [`from ${minimum}`] : []),
    ...(isBound(exclusiveMinimum) ? [`above ${exclusiveMinimum}`] : []),
    ...(isBound(maximum) ? [`to ${maximum}`] : []),
  ];
  return ['integer', 'number'].includes(type) && bounds.length > 0 ? [bounds.join(' ')] : [];
}

/** Field of a schema with its path, for example `images.registries[].host`. */
export interface Field {
  readonly path: string;
  readonly schema: JsonSchema;
}

/** Returns every leaf of a schema, and every object with its own description. For alternatives it returns the fields of each. */
export function fieldsOf(schema: JsonSchema, path = ''): Field[] {
  const parts = [...(schema.anyOf ?? []), ...(schema.oneOf ?? []), ...(schema.allOf ?? [])];
  const own = Object.entries(schema.properties ?? {}).flatMap(([key, field]) =>
    fieldsOf(field, path === '' ? key : `${path}.${key}`),
  );
  const inside = parts.flatMap((part) => fieldsOf(part, path));
  const nested = [...own, ...inside.filter((field) => field.path !== path)];
  const items = schema.items === undefined ? [] : fieldsOf(schema.items, `${path}[]`);
  const below = [...nested, ...items.filter((field) => field.path !== `${path}[]`)];
  const isShown = path !== '' && (nested.length === 0 || schema.description !== undefined);
  return unique([...(isShown ? [{ path, schema }] : []), ...below]);
}

function unique(fields: readonly Field[]): Field[] {
  const byPath = new Map<string, JsonSchema>();
  for (const { path, schema } of fields) {
    const known = byPath.get(path);
    byPath.set(path, known === undefined ? schema : either(known, schema));
  }
  return [...byPath].map(([path, schema]) => ({ path, schema }));
}

/**
 * Merges the same field of two alternatives. If the fields are constants, the result has the constants of both. If not, the result is the
 * first field.
 */
function either(one: JsonSchema, other: JsonSchema): JsonSchema {
  const values = [one, other].flatMap(
    (schema) => schema.enum ?? (schema.const === undefined ? [] : [`${schema.const}`]),
  );
  return values.length === 0 ? one : { ...one, const: undefined, enum: [...new Set(values)] };
}
