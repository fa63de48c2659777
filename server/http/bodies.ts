/**
 * Reads request bodies in all forms that clients send. The letter case of keys does not matter. A field with the value null counts as
 * absent, and so does an entry of a map with this value. An optional field also counts as absent if it is an empty text, or if it is zero
 * and is one of {@link WITHOUT_ZERO}.
 */
import * as z from 'zod';
import { invalidField } from './errors.ts';

/** Largest number of entries of a map in a body. There is a limit, because zod makes an error for each wrong entry, which needs memory. */
const ENTRIES = 1_024;
/**
 * Longest list in a body whose elements are read. No schema allows a longer list. Without this limit, the elements of one body could take
 * several seconds of the processor, in which no other request is answered.
 */
const ELEMENTS = 4_096;

/**
 * Fields in which zero means that the client gives no value. Some clients send zero for each field that their users left empty. In all
 * other fields, zero is a number like any other, and is refused if it is out of bounds.
 */
const WITHOUT_ZERO: ReadonlySet<string> = new Set([
  'cpu',
  'memory',
  'timeout',
  'displayWidth',
  'displayHeight',
  'displayDPI',
]);

/**
 * Returns the body with its keys in the spelling of the schema. Unknown keys and absent fields are left out.
 *
 * @throws StatusError 422 when a map has too many entries.
 */
export function normalizeBody(schema: z.ZodType, body: unknown): unknown {
  return normalized(schema, body ?? {}, '');
}

/** Does the same as {@link normalizeBody} for a part of the body. `field` is the name of the field that contains `value`. */
function normalized(schema: z.ZodType, value: unknown, field: string): unknown {
  if (schema instanceof z.ZodOptional) {
    return normalized(schema.unwrap() as z.ZodType, value, field);
  }
  if (schema instanceof z.ZodRecord) {
    return normalizedMap(value, field);
  }
  if (schema instanceof z.ZodArray && isShortList(value)) {
    return value.map((element) => normalized(schema.element as z.ZodType, element, field));
  }
  if (schema instanceof z.ZodUnion) {
    const forms = schema.options.map((option) => [
      option as z.ZodType,
      normalized(option as z.ZodType, value, field),
    ]);
    return forms.find(([option, form]) => (option as z.ZodType).safeParse(form).success)?.[1] ?? value;
  }
  return schema instanceof z.ZodObject && isObject(value) ? normalizedObject(schema, value) : value;
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

function normalizedObject(schema: z.ZodObject, given: object): object {
  const fields = new Map(
    Object.entries(schema.shape as Record<string, z.ZodType>).map(([name, field]) => [
      name.toLowerCase(),
      { name, field },
    ]),
  );
  // If the object has a field in several spellings, only the last value is read further, because there can be thousands of spellings.
  const values = new Map<string, { field: z.ZodType; value: unknown }>();
  for (const [key, value] of Object.entries(given)) {
    const known = fields.get(key.toLowerCase());
    if (known !== undefined && !isAbsent(known, value)) {
      values.set(known.name, { field: known.field, value });
    }
  }
  return Object.fromEntries(
    [...values].map(([name, { field, value }]) => [name, normalized(field, value, name)]),
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
