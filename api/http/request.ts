/** Schemas that many requests share: queries of lists, numbers in bodies, and the check of fields that have several names. */
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

/** Query of each list. Its parameters are those of lists in Kubernetes. */
export const listQuerySchema = z.object({
  labelSelector: z
    .string()
    .max(1024)
    .optional()
    .meta({ description: 'Selects objects by their labels, for example job=42,team!=web.' }),
  limit: z.coerce
    .number()
    .int()
    .min(1)
    .max(500)
    .optional()
    .meta({ description: 'Largest number of items in the answer. More are on the next page.' }),
  continue: z
    .string()
    .max(4096)
    .optional()
    .meta({ description: 'The field `continue` of the answer with the page before.' }),
});
export type ListQuery = z.infer<typeof listQuerySchema>;

/** Field of a list that has more pages. */
export const continueField = z
  .string()
  .optional()
  .meta({ description: 'Parameter `continue` of the request for the next page. Absent on the last page.' });

/** Query of each list that combines the objects of two namespaces. Such a list has no pages. */
export const sharedListQuerySchema = listQuerySchema.pick({ labelSelector: true });
