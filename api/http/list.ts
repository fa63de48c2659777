/** Schema for the lists of the HTTP API. */
import * as z from 'zod';

/** Query of each list. Its parameters are those of lists in Kubernetes. */
export const listQuerySchema = z.object({
  labelSelector: z.string().max(1024).optional(),
  limit: z.coerce.number().int().min(1).max(500).optional(),
  continue: z.string().max(4096).optional(),
});
export type ListQuery = z.infer<typeof listQuerySchema>;

/** Query of each list that combines the objects of two namespaces. Such a list has no pages. */
export const sharedListQuerySchema = listQuerySchema.pick({ labelSelector: true });
