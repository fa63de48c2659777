/** Namespaces as the HTTP API shows and accepts them. */
import * as z from 'zod';
import { namespaceName } from '../v1alpha1/schema.ts';

export const namespaceItemSchema = z
  .object({
    name: z.string(),
    customPods: z.boolean().meta({ description: 'Whether users are allowed to have Pods in the namespace.' }),
  })
  .meta({ id: 'Namespace', description: 'A namespace.' });
export type NamespaceItem = z.infer<typeof namespaceItemSchema>;

export const namespaceListSchema = z
  .object({ items: z.array(namespaceItemSchema) })
  .meta({ id: 'NamespaceList', description: 'The namespaces that the caller can see.' });

export const namespaceRequestSchema = z.object({
  name: namespaceName('Name of the namespace. It begins with the prefix that all namespaces of Berth have.'),
  enableCustomPods: z
    .boolean()
    .optional()
    .meta({ description: 'Whether users are allowed to have Pods in the namespace. False when omitted.' }),
});
