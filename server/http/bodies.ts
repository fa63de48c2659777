/**
 * Reads request bodies as JSON, in all forms that clients send. The total size of the bodies that are being read is limited, because
 * thousands of connections can send bodies at the same time. The structure is counted while the bytes arrive, because a body with many values
 * would block the process while it is parsed. The letter case of keys does not matter. A field that the schema does not know is
 * refused. A field with the value null counts as absent, and so does an entry of a map with this value. An optional or unknown field also
 * counts as absent if it is an empty text, and an optional field if it is zero and is one of {@link WITHOUT_ZERO}.
 */
import { isDeepStrictEqual } from 'node:util';
import type { IncomingMessage } from 'node:http';
import * as z from 'zod';
import { VM_FIELD_ROWS } from '../../api/v1alpha1/fields.ts';
import { type FieldMistake, invalidField, invalidFields, StatusError } from './errors.ts';
import { similarTo } from '../../base/similar.ts';
import { JsonCheck, JsonError } from '../../base/json.ts';
import { UserShares } from './shares.ts';
import type { UnreadBodies } from './unreadbodies.ts';

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

const MEBIBYTE = 1024 * 1024;
/** Largest body of a request in bytes. Only uploads of files can be larger, because files are not held in memory. */
export const BODY_BYTES = MEBIBYTE;
/**
 * Largest number of values in a body. The longest lists of honest bodies are the 4,096 hosts of an image cache request. To parse this
 * number of values takes at most 26 ms.
 */
const BODY_ITEMS = 16_384;
/**
 * Number of bytes at the start of each body that do not count in {@link TOTAL_BYTES}. Most bodies are shorter than this number, so they are
 * never refused because of that limit. For all 2,048 connections together, these bytes need 16 MiB.
 */
const FREE_BYTES = 8 * 1024;
/** Limit in bytes for the total of all bodies that are being read. The container of the server has 512 MiB of memory. */
const TOTAL_BYTES = 48 * MEBIBYTE;
/**
 * Limit in bytes for all bodies of one user that are being read: a few large bodies, or hundreds with user data of 16 KiB. The other bytes
 * are for other users.
 */
const USER_BYTES = TOTAL_BYTES / 6;

export class BodyReader {
  /** Bytes of the bodies that are being read, without the first {@link FREE_BYTES} of each body. */
  readonly #shares = new UserShares({
    user: USER_BYTES,
    total: TOTAL_BYTES,
    refuseUser: (user) =>
      new StatusError(
        429,
        `The bodies that user ${user} sends at the same time have more than ${USER_BYTES} bytes. Try again later`,
      ),
    refuseAll: () => new StatusError(503, 'Too many large requests arrive at the same time. Try again later'),
  });
  readonly #unread: UnreadBodies;

  constructor(unread: UnreadBodies) {
    this.#unread = unread;
  }

  /**
   * Reads and parses the whole body. An empty body counts as an object without fields. `user` is the name of the caller.
   *
   * @throws StatusError 400 when the body is not JSON, 413 when it is too large or has too many values, 429 when the user sends too much at
   * the same time, 503 when all users together send too much. @throws Error when the connection ends before the end of the body.
   */
  async read(body: IncomingMessage, user: string): Promise<unknown> {
    const check = new JsonCheck({ bytes: BODY_BYTES, items: BODY_ITEMS });
    // The bytes are copied into one buffer, because clients choose the size of chunks. A list of many small chunks would need many times
    // the memory of their bytes.
    let buffer: Buffer = Buffer.alloc(0);
    let length = 0;
    try {
      for await (const chunk of body.iterator({ destroyOnReturn: false }) as AsyncIterable<Buffer>) {
        check.push(chunk);
        if (length + chunk.length > buffer.length) {
          buffer = this.#grown(buffer, length + chunk.length, user);
        }
        length += chunk.copy(buffer, length);
      }
      const bytes = buffer.subarray(0, length);
      return isBlank(bytes) ? {} : check.parse(bytes);
    } catch (error) {
      throw error instanceof JsonError ? refusalOf(error) : error;
    } finally {
      this.#shares.release(user, counted(buffer.length));
      this.#unread.drop(body);
    }
  }

  #grown(buffer: Buffer, needed: number, user: string): Buffer {
    const size = 2 ** Math.ceil(Math.log2(needed));
    this.#shares.take(user, counted(size) - counted(buffer.length));
    const grown = Buffer.allocUnsafeSlow(size);
    buffer.copy(grown);
    return grown;
  }
}

function counted(size: number): number {
  return Math.max(0, size - FREE_BYTES);
}

function isBlank(bytes: Buffer): boolean {
  return bytes.length <= FREE_BYTES && bytes.toString('utf8').trim() === '';
}

function refusalOf({ fault, message }: JsonError): StatusError {
  switch (fault) {
    case 'bytes':
      return new StatusError(413, `The body is larger than ${BODY_BYTES} bytes`);
    case 'syntax':
      return new StatusError(400, 'the body is not JSON');
    default:
      return new StatusError(413, `The body ${message}`);
  }
}
