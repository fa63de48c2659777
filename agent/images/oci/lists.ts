/** Schemas for long lists in the JSON of registries. */
import * as z from 'zod';

/**
 * Returns the schema of a list of at most `limit` elements. The schema reports only the first wrong element. zod's own lists make an error
 * for each wrong element, and 130,000 errors block the event loop for half a second.
 */
export function listOf<T>(element: z.ZodType<T>, limit: number): z.ZodType<T[]> {
  return z
    .array(z.unknown())
    .max(limit)
    .transform((elements, context) => {
      const read: T[] = [];
      for (const [index, one] of elements.entries()) {
        const { data, error } = element.safeParse(one);
        const [issue] = error?.issues ?? [];
        if (issue !== undefined) {
          context.addIssue({ code: 'custom', message: issue.message, path: [index, ...issue.path] });
          return z.NEVER;
        }
        read.push(data as T);
      }
      return read;
    });
}
