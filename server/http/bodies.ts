/**
 * Reads request bodies as the clients send them. Keys have any letter case. An optional field may be null, an empty text, or zero if zero is
 * below its minimum: each of them means that the field is not given.
 */
import * as z from 'zod';

/** Returns the body with the keys of the schema, without unknown keys and without fields that are not given. */
export function normalizeBody(schema: z.ZodType, body: unknown): unknown {
  const given = body ?? {};
  if (!(schema instanceof z.ZodObject) || typeof given !== 'object' || Array.isArray(given)) {
    return given;
  }
  const fields = new Map(
    Object.entries(schema.shape as Record<string, z.ZodType>).map(([name, field]) => [
      name.toLowerCase(),
      { name, field },
    ]),
  );
  const entries = Object.entries(given).flatMap(([key, value]): [string, unknown][] => {
    const known = fields.get(key.toLowerCase());
    return known === undefined || isAbsent(known.field, value) ? [] : [[known.name, value]];
  });
  return Object.fromEntries(entries);
}

function isAbsent(field: z.ZodType, value: unknown): boolean {
  if (!field.safeParse(undefined).success) {
    return false;
  }
  return value === null || value === '' || (value === 0 && !field.safeParse(0).success);
}
