/** Schemas of numbers in request bodies. */
import * as z from 'zod';

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
