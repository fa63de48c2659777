/**
 * Reads request bodies in all forms that clients send. The letter case of keys does not matter. A field that the schema does not know is
 * refused. A field with the value null counts as absent, and so does an entry of a map with this value. An optional or unknown field also
 * counts as absent if it is an empty text, and an optional field if it is zero and is one of {@link WITHOUT_ZERO}.
 */
import { isDeepStrictEqual } from 'node:util';
import * as z from 'zod';
import { VM_FIELD_ROWS } from '../../api/v1alpha1/fields.ts';
import { type FieldMistake, invalidField, invalidFields } from './errors.ts';
import { similarTo } from '../../base/similar.ts';

/** Largest number of entries of a map in a body. There is a limit, because zod makes an error for each wrong entry, which needs memory. */
const ENTRIES = 1_024;
/**
 * Longest list in a body whose elements are read. No schema allows a longer list. Without this limit, the elements of one body could take
 * several seconds of the processor, in which no other request is answered.
 */
const ELEMENTS = 4_096;

/**
 * Fields in which zero means that the client gives no value: the time limit, and the numbers of a machine that a VM config can give, too.
 * Some clients send zero for each of these fields that their users left empty. In all other fields, zero is a number like any other, and
 * is refused if it is out of bounds.
 */
const WITHOUT_ZERO: ReadonlySet<string> = new Set([
  'memory',
  'timeout',
  ...VM_FIELD_ROWS.flatMap(({ type, isInConfig, http }) =>
    type === 'integer' && isInConfig && http !== undefined ? [http] : [],
  ),
]);

/** Fields that other vendors' clients send in the bodies of a route, and that its schema does not have. Letter case does not matter. */
export interface Dialect {
  /** Names of fields, by other names of these fields. */
  readonly aliases?: Readonly<Record<string, string>> | undefined;
  /** Fields without effect, each with the reason. */
  readonly withoutEffect?: Readonly<Record<string, string>> | undefined;
}

/**
 * Translates a body into the fields of the schema, and returns it with a warning for each field without effect. A field that asks for
 * nothing (null, false or an empty text) gets no warning.
 *
 * @throws StatusError 422 when the body has different values under two names of one field.
 */
export function translateBody(
  body: unknown,
  { aliases = {}, withoutEffect = {} }: Dialect = {},
): { body: unknown; warnings: string[] } {
  if (!isObject(body)) {
    return { body, warnings: [] };
  }
  const ignored = lowerCased(withoutEffect);
  const renamed = lowerCased(aliases);
  const own: [string, unknown][] = [];
  const others: [field: string, value: unknown][] = [];
  const warnings = new Map<string, string>();
  for (const [key, value] of Object.entries(body)) {
    const name = key.toLowerCase();
    const [field, reason] = [renamed.get(name), ignored.get(name)];
    if (field !== undefined) {
      others.push([field, value]);
    } else if (reason === undefined) {
      own.push([key, value]);
    } else if (!isNothing(value)) {
      warnings.set(name, `${key} has no effect. ${reason}`);
    }
  }
  return {
    body: Object.fromEntries([...own, ...renamedFields(own, others, aliases)]),
    warnings: [...warnings.values()],
  };
}

/** Returns the values of the fields that a body gives under `others`, their other names, and not under their own. */
function renamedFields(
  own: readonly (readonly [string, unknown])[],
  others: readonly (readonly [field: string, value: unknown])[],
  aliases: Readonly<Record<string, string>>,
): Map<string, unknown> {
  const before = new Map(own.map(([key, value]) => [key.toLowerCase(), value]));
  const read = new Map<string, unknown>();
  for (const [field, value] of others.filter(([, given]) => !isUnset(given))) {
    const name = field.toLowerCase();
    const first = before.get(name);
    if (isUnset(first)) {
      before.set(name, value);
      read.set(field, value);
    } else if (!isDeepStrictEqual(first, value)) {
      const names = [field, ...Object.keys(aliases).filter((alias) => aliases[alias] === field)].join(', ');
      throw invalidField(field, `must be the only one of ${names}, because they are names of the same field`);
    }
  }
  return read;
}

/** Reports whether a value asks for nothing. Some clients write all fields that they know. */
function isNothing(value: unknown): boolean {
  return isUnset(value) || value === false;
}

/** Reports whether a field counts as absent, so that another name of the field can give its value. */
function isUnset(value: unknown): boolean {
  return value === undefined || value === null || value === '';
}

function lowerCased(names: Readonly<Record<string, string>>): Map<string, string> {
  return new Map(Object.entries(names).map(([name, value]) => [name.toLowerCase(), value]));
}

/**
 * Returns the body with its keys in the spelling of the schema. Absent fields are left out.
 *
 * @throws StatusError 422 when the body has a field that the schema does not know, or a field in several spellings, or when a map has too
 * many entries.
 */
export function normalizeBody(schema: z.ZodType, body: unknown): unknown {
  const names = new FieldNames();
  const read = normalized(schema, body ?? {}, { path: '', names });
  names.refuse();
  return read;
}

/** Place of a part of the body. */
interface Place {
  /** Names of the fields that lead to the part, with a dot between. It is empty for the body itself. */
  readonly path: string;
  /** Collects mistakes in the names of fields. */
  readonly names: FieldNames;
}

/** Does the same as {@link normalizeBody} for a part of the body, and adds the mistakes in its names to `place`. */
function normalized(schema: z.ZodType, value: unknown, place: Place): unknown {
  if (schema instanceof z.ZodOptional) {
    return normalized(schema.unwrap() as z.ZodType, value, place);
  }
  if (schema instanceof z.ZodRecord) {
    return normalizedMap(value, place.path);
  }
  if (schema instanceof z.ZodArray && isShortList(value)) {
    return value.map((element, index) =>
      normalized(schema.element as z.ZodType, element, inside(place, String(index))),
    );
  }
  if (schema instanceof z.ZodUnion) {
    return normalizedUnion(schema, value, place);
  }
  return schema instanceof z.ZodObject && isObject(value) ? normalizedObject(schema, value, place) : value;
}

function inside({ path, names }: Place, name: string): Place {
  return { path: pathOf(path, name), names };
}

/**
 * Reads the value in the first form that fits. A form in which all names are known comes before one that fits only without some fields.
 * If no form fits, the cause can be a misspelt field: then the form with known and unknown fields tells its name. Otherwise the value
 * stays, and the validation refuses it.
 */
function normalizedUnion(schema: z.ZodUnion, value: unknown, { path, names }: Place): unknown {
  const forms = schema.options.map((option) => {
    const own = new FieldNames();
    const form = normalized(option as z.ZodType, value, { path, names: own });
    return { form, names: own, fits: (option as z.ZodType).safeParse(form).success };
  });
  const best =
    forms.find(({ fits, names: { count } }) => fits && count === 0) ??
    forms.find(({ fits }) => fits) ??
    forms.find(({ form, names: { count } }) => count > 0 && isObject(form) && Object.keys(form).length > 0);
  if (best === undefined) {
    return value;
  }
  names.addAll(best.names);
  return best.form;
}

/** Reports whether the value is a list whose elements are read. The schema refuses longer lists without reading their elements. */
function isShortList(value: unknown): value is readonly unknown[] {
  return Array.isArray(value) && value.length <= ELEMENTS;
}

/** Returns the map without the entries whose value is null. Values that are no map stay, and the validation refuses them. */
function normalizedMap(map: unknown, field: string): unknown {
  if (!isObject(map)) {
    return map;
  }
  const entries = Object.entries(map);
  if (entries.length > ENTRIES) {
    throw invalidField(field, `must have at most ${ENTRIES} entries`);
  }
  return Object.fromEntries(entries.filter(([, value]) => value !== null));
}

function normalizedObject(schema: z.ZodObject, given: object, place: Place): object {
  const fields = new Map(
    Object.entries(schema.shape as Record<string, z.ZodType>).map(([name, field]) => [
      name.toLowerCase(),
      { name, field },
    ]),
  );
  const values = new Map<string, { field: z.ZodType; value: unknown }>();
  for (const [key, value] of Object.entries(given)) {
    const known = fields.get(key.toLowerCase());
    if (known === undefined) {
      // An unknown field without a value says nothing, so nothing is lost without it. Some clients write all fields that they know.
      if (value !== null && value !== '') {
        place.names.unknown(place.path, key, () => Object.keys(schema.shape));
      }
    } else if (!isAbsent(known, value)) {
      // The value in another spelling is not read, because there can be thousands of spellings.
      if (values.has(known.name)) {
        place.names.repeated(place.path, known.name);
      }
      values.set(known.name, { field: known.field, value });
    }
  }
  return Object.fromEntries(
    [...values].map(([name, { field, value }]) => [name, normalized(field, value, inside(place, name))]),
  );
}

function isObject(value: unknown): value is object {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

function isAbsent({ name, field }: { name: string; field: z.ZodType }, value: unknown): boolean {
  if (value === null) {
    return true;
  }
  const isEmpty = value === '' || (value === 0 && WITHOUT_ZERO.has(name));
  return isEmpty && field.safeParse(undefined).success;
}

/** Largest number of unknown fields that an answer names. There is a limit, because a hostile body can have thousands of them. */
const NAMED = 3;
/** An answer shows at most this number of characters from the name of a field that the client sent. */
const NAME_LENGTH = 100;

/**
 * Collects mistakes in the names of the fields of a body, or of the parameters of a query. Only the first mistakes are kept, and the others
 * are counted.
 */
export class FieldNames {
  readonly #noun: 'field' | 'query parameter';
  readonly #mistakes: FieldMistake[] = [];
  #count = 0;
  /** Sentence with the known fields. It is empty if each unknown field is similar to a known field. */
  #known = '';

  constructor(noun: 'field' | 'query parameter' = 'field') {
    this.#noun = noun;
  }

  /** Number of mistakes. */
  get count(): number {
    return this.#count;
  }

  /**
   * Adds an unknown field. `path` is the path of the object that has the field, and it is empty for the body. `known` has the names of the
   * object's fields.
   */
  unknown(path: string, name: string, known: () => readonly string[]): void {
    this.#add(path, name, () => {
      const names = known();
      const similar = similarField(name, names);
      const message = `is not a known ${this.#noun}`;
      if (similar === undefined) {
        this.#known ||= formatSentence(`${this.#noun}s${path === '' ? '' : ` of ${path}`}`, names);
        return message;
      }
      return `${message} (did you mean ${similar}?)`;
    });
  }

  /** Adds a field that the object at `path` has in several spellings. Only one of their values could have an effect. */
  repeated(path: string, name: string): void {
    this.#add(path, name, () => 'is given more than once, in different letter case');
  }

  /** Adds the mistakes of another part of the body. */
  addAll(others: FieldNames): void {
    this.#mistakes.push(...others.#mistakes.slice(0, NAMED - this.#mistakes.length));
    this.#count += others.#count;
    this.#known ||= others.#known;
  }

  /** @throws StatusError 422 if there is a mistake. */
  refuse(): void {
    if (this.#count === 0) {
      return;
    }
    const rest = this.#count - this.#mistakes.length;
    const more = rest === 0 ? '' : `${rest} more wrong ${rest === 1 ? 'name' : 'names'}`;
    throw invalidFields(this.#mistakes, [more, this.#known].filter((part) => part !== '').join('. '));
  }

  #add(path: string, name: string, message: () => string): void {
    this.#count += 1;
    if (this.#mistakes.length < NAMED) {
      this.#mistakes.push({ field: pathOf(path, shortened(name)), message: message() });
    }
  }
}

/** Returns the path of a field. `path` is the path of the object that has the field, and it is empty for the body. */
function pathOf(path: string, name: string): string {
  return path === '' ? name : `${path}.${name}`;
}

/** Returns the name of a field as an answer shows it. */
function shortened(name: string): string {
  return name.length <= NAME_LENGTH ? name || '""' : `${name.slice(0, NAME_LENGTH)}…`;
}

function formatSentence(subject: string, names: readonly string[]): string {
  return names.length === 0 ? `There are no ${subject}` : `The known ${subject} are ${names.join(', ')}`;
}

/** Returns the known name that is most similar. Letter case counts for parameters of a query, but it makes no name less similar. */
function similarField(name: string, known: readonly string[]): string | undefined {
  const similar = similarTo(
    name.toLowerCase(),
    known.map((one) => one.toLowerCase()),
  );
  return known.find((one) => one.toLowerCase() === similar);
}

/**
 * Refuses a query that has other parameters than the `known` ones.
 *
 * @throws StatusError 422 with their names.
 */
export function refuseUnknownParameters(query: object, known: readonly string[]): void {
  const names = new FieldNames('query parameter');
  for (const name of Object.keys(query).filter((one) => !known.includes(one))) {
    names.unknown('', name, () => known);
  }
  names.refuse();
}
