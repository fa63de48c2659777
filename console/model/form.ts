/** Forms that are made from the JSON Schemas with which the server checks their requests. */

/** The parts of a JSON Schema that a form uses. */
export interface FormSchema {
  readonly type?: string;
  readonly description?: string;
  readonly enum?: readonly string[];
  readonly const?: unknown;
  readonly default?: unknown;
  readonly format?: string;
  readonly pattern?: string;
  readonly minimum?: number;
  readonly maximum?: number;
  readonly maxLength?: number;
  readonly properties?: Readonly<Record<string, FormSchema>>;
  readonly required?: readonly string[];
  readonly items?: FormSchema;
  readonly anyOf?: readonly FormSchema[];
  readonly additionalProperties?: FormSchema | boolean;
}

/** How people give the value of a field. `lines` is a list with one item per line, and `pairs` is a map with one `key=value` per line. */
export type FieldKind =
  | 'choice'
  | 'flag'
  | 'integer'
  | 'number'
  | 'text'
  | 'paragraph'
  | 'time'
  | 'lines'
  | 'pairs';

export interface FormField {
  /** Names of the field and of the objects around it, for example `readiness.type`. */
  readonly path: string;
  readonly kind: FieldKind;
  readonly description: string;
  readonly isRequired: boolean;
  readonly choices: readonly string[];
  readonly minimum: number | undefined;
  readonly maximum: number | undefined;
  /** Largest number of characters. */
  readonly length: number | undefined;
}

/** Texts of the inputs by the paths of their fields. An empty or missing text means that the field is not given. */
export type Texts = Readonly<Record<string, string>>;
/** Mistakes by the paths of the fields. */
export type Mistakes = ReadonlyMap<string, string>;

/** Number of characters from which a text without a pattern gets an input of several lines. */
const PARAGRAPH = 1_000;

/** Returns the fields of a form for the schema of an object. A field with only one allowed value is left out. */
export function formFields(schema: FormSchema, before = ''): FormField[] {
  return Object.entries(schema.properties ?? {}).flatMap(([name, property]) => {
    const path = before === '' ? name : `${before}.${name}`;
    if ('const' in property) {
      return [];
    }
    if (property.properties !== undefined) {
      return formFields(property, path);
    }
    const isRequired = before === '' && (schema.required ?? []).includes(name);
    return [
      {
        path,
        kind: kindOf(property),
        description: property.description ?? '',
        isRequired: isRequired && property.default === undefined,
        choices: property.enum ?? [],
        minimum: property.minimum,
        maximum: property.maximum,
        length: property.maxLength,
      },
    ];
  });
}

function kindOf(schema: FormSchema): FieldKind {
  const forms = schema.anyOf ?? [schema];
  if (forms.some((form) => typeof form.additionalProperties === 'object')) {
    return 'pairs';
  }
  if (schema.enum !== undefined) {
    return 'choice';
  }
  switch (schema.type) {
    case 'boolean':
      return 'flag';
    case 'integer':
    case 'number':
      return schema.type;
    case 'array':
      return 'lines';
    default:
      return textKind(schema);
  }
}

function textKind({ format, pattern, maxLength = 0 }: FormSchema): FieldKind {
  if (format === 'date-time') {
    return 'time';
  }
  return pattern === undefined && maxLength >= PARAGRAPH ? 'paragraph' : 'text';
}

/** Parts of names that are written in another way in a label. */
const SPELLINGS: Readonly<Record<string, string>> = {
  cpu: 'CPU',
  dpi: 'DPI',
  iso: 'ISO',
  ref: '',
  ssh: 'SSH',
  ttl: 'TTL',
  vm: 'VM',
  vnc: 'VNC',
};

/** Returns the label of a field, for example `SSH authorized keys` for `sshAuthorizedKeys`. */
export function labelOf(path: string): string {
  const parts = path
    .replaceAll(/([a-z])([A-Z])/g, '$1 $2')
    .replaceAll('.', ' ')
    .toLowerCase()
    .split(' ')
    .map((word) => (Object.hasOwn(SPELLINGS, word) ? (SPELLINGS[word] ?? '') : word))
    .filter((word) => word !== '');
  const label = parts.join(' ');
  return label.charAt(0).toUpperCase() + label.slice(1);
}

/** Returns the values of the fields, and the mistakes in them that need no server. Fields without a text are left out. */
export function readForm(
  fields: readonly FormField[],
  texts: Texts,
): { readonly values: Record<string, unknown>; readonly mistakes: Mistakes } {
  const values: Record<string, unknown> = {};
  const mistakes = new Map<string, string>();
  for (const field of fields) {
    const text = texts[field.path] ?? '';
    const mistake = mistakeIn(field, text);
    if (mistake !== undefined) {
      mistakes.set(field.path, mistake);
    } else if (text !== '') {
      put(values, field.path, parseText(field, text));
    }
  }
  return { values, mistakes };
}

function mistakeIn(field: FormField, text: string): string | undefined {
  if (text === '') {
    return field.isRequired ? 'is required' : undefined;
  }
  return CHECKS[field.kind](field, text);
}

type Check = (field: FormField, text: string) => string | undefined;
const checkLength: Check = ({ length }, text) =>
  length !== undefined && text.length > length ? `must have at most ${length} characters` : undefined;
/** Checks of the texts that need no server. */
const CHECKS: Readonly<Record<FieldKind, Check>> = {
  choice: checkLength,
  flag: checkLength,
  integer: (field, text) => mistakeInNumber(field, Number(text)),
  number: (field, text) => mistakeInNumber(field, Number(text)),
  text: checkLength,
  paragraph: checkLength,
  time: (_, text) => (Number.isNaN(Date.parse(text)) ? 'must be a date and a time' : undefined),
  lines: checkLength,
  pairs: (_, text) =>
    linesOf(text).every((line) => line.indexOf('=') > 0) ? undefined : 'must have one key=value on each line',
};

function mistakeInNumber({ kind, minimum, maximum }: FormField, value: number): string | undefined {
  if (Number.isNaN(value)) {
    return 'must be a number';
  }
  if (kind === 'integer' && !Number.isInteger(value)) {
    return 'must be a whole number';
  }
  const [low, high] = [minimum ?? Number.NEGATIVE_INFINITY, maximum ?? Number.POSITIVE_INFINITY];
  return value < low || value > high ? `must be from ${low} to ${high}` : undefined;
}

function parseText({ kind }: FormField, text: string): unknown {
  switch (kind) {
    case 'integer':
    case 'number':
      return Number(text);
    case 'flag':
      return text === 'true';
    case 'time':
      return `${new Date(text).toISOString().slice(0, 19)}Z`;
    case 'lines':
      return linesOf(text);
    case 'pairs':
      return Object.fromEntries(
        linesOf(text).map((line) => {
          const at = line.indexOf('=');
          return [line.slice(0, at).trim(), line.slice(at + 1).trim()];
        }),
      );
    default:
      return text;
  }
}

function linesOf(text: string): string[] {
  return text
    .split('\n')
    .map((line) => line.trim())
    .filter((line) => line !== '');
}

/** Puts a value at its path into the object, and makes the objects around it. */
function put(values: Record<string, unknown>, path: string, value: unknown): void {
  const [name = '', rest] = path.split(/\.(.*)/);
  if (rest === undefined) {
    values[name] = value;
    return;
  }
  const inner = (values[name] ??= {}) as Record<string, unknown>;
  put(inner, rest, value);
}

/** Returns the texts of the fields for these values. */
export function textsOf(fields: readonly FormField[], values: object): Texts {
  return Object.fromEntries(
    fields.flatMap((field) => {
      const value = field.path
        .split('.')
        .reduce<unknown>((at, name) => (at as Record<string, unknown> | undefined)?.[name], values);
      return value === undefined || value === null ? [] : [[field.path, formatValue(field, value)]];
    }),
  );
}

function formatValue({ kind }: FormField, value: unknown): string {
  switch (kind) {
    case 'time':
      return formatLocalTime(String(value));
    case 'lines':
      return (value as readonly string[]).join('\n');
    case 'pairs':
      return Object.entries(value as object)
        .map(([key, text]) => `${key}=${text}`)
        .join('\n');
    default:
      return String(value);
  }
}

/** Returns an RFC 3339 time in the form of an input for a local time. */
function formatLocalTime(time: string): string {
  const date = new Date(time);
  const local = date.getTime() - date.getTimezoneOffset() * 60_000;
  return Number.isNaN(local) ? '' : new Date(local).toISOString().slice(0, 19);
}

/** Returns the fields whose text differs: their new values, and the names of those that are now empty. */
export function changesOf(
  fields: readonly FormField[],
  before: Texts,
  after: Texts,
): { readonly set: object; readonly remove: string[]; readonly mistakes: Mistakes } {
  const changed = fields.filter(({ path }) => (before[path] ?? '') !== (after[path] ?? ''));
  const { values, mistakes } = readForm(changed, after);
  return {
    set: values,
    remove: changed.map(({ path }) => path).filter((path) => (after[path] ?? '') === ''),
    mistakes,
  };
}

/** Mistake in a field that the server has found. */
export interface FieldCause {
  readonly field?: string;
  readonly message?: string;
}

/** Parts around the fields of a form in the paths that servers name. */
const AROUND = /^(?:spec|set)\./;

/**
 * Sorts the mistakes that a server has found by the fields of the form. Those in other fields are returned as sentences. The API server
 * writes `spec.ports[0]` and the HTTP API writes `ports.0`.
 */
export function placeCauses(
  fields: readonly FormField[],
  causes: readonly FieldCause[],
): { readonly mistakes: Mistakes; readonly others: string[] } {
  const mistakes = new Map<string, string>();
  const others: string[] = [];
  for (const { field = '', message = 'is refused' } of causes) {
    const path = field.replace(AROUND, '').replaceAll(/\[[^\]]*\]/g, '');
    const found =
      fields.find((one) => path === one.path || path.startsWith(`${one.path}.`)) ??
      fields.find((one) => path !== '' && one.path.startsWith(`${path}.`));
    if (found === undefined) {
      others.push(field === '' ? message : `${field}: ${message}`);
    } else {
      mistakes.set(found.path, message);
    }
  }
  return { mistakes, others };
}
