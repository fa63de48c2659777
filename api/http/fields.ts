/** Schemas of numbers in request bodies, and the check of fields that have several names. */
import * as z from 'zod';

/**
 * Returns the arguments of a `refine` that refuses a body with different values in fields that are names of the same field. Only one of
 * these values could have an effect. The first name is the one that the error message names.
 */
export function sameField(
  ...names: readonly [string, ...string[]]
): [(body: object) => boolean, { error: string; path: string[] }] {
  const hasOneValue = (body: object) => {
    const values = names.map((name) => (body as Readonly<Record<string, unknown>>)[name]);
    return new Set(values.filter((value) => value !== undefined)).size <= 1;
  };
  const error = `must be the only one of ${names.join(', ')}, because they are names of the same field`;
  return [hasOneValue, { error, path: [names[0]] }];
}

/** Returns the schema of an integer from `minimum` to `maximum`. The error message names both bounds. */
export function whole(minimum: number, maximum: number) {
  const error = `must be from ${minimum} to ${maximum}`;
  return z.int().min(minimum, { error }).max(maximum, { error });
}

/** Returns the schema of a number from `minimum` to `maximum`. The error message names both bounds. */
export function decimal(minimum: number, maximum: number) {
  const error = `must be from ${minimum} to ${maximum}`;
  return z.number().min(minimum, { error }).max(maximum, { error });
}
