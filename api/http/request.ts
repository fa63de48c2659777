/** Schemas that many requests share: queries of lists, and numbers in bodies. */
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
