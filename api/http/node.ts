/** Hosts as the HTTP API shows them. */
import * as z from 'zod';
import { namespaceName } from '../v1alpha1/schema.ts';
import { TAG, TAG_FORM, TAG_LENGTH } from '../v1alpha1/names.ts';

const memory = z
  .string()
  .meta({ description: 'Memory in units of 1,000,000,000 bytes, for example 31.23G.' });

export const nodeItemSchema = z
  .object({
    name: z.string(),
    namespace: z.string().meta({ description: 'Namespace that the host belongs to.' }),
    nodeIP: z.string().optional(),
    availableCpu: z.int().meta({ description: 'Number of whole CPUs that no machine uses.' }),
    availableMemory: memory,
    availableGpu: z.int(),
    allocatableCpu: z.int().meta({ description: 'Number of whole CPUs that machines can use in total.' }),
    allocatableMemory: memory,
    allocatableGpu: z.int(),
    nodeType: z.enum(['WORKER']),
    phase: z.enum(['READY', 'NOT READY']),
    reason: z.string().optional().meta({
      description: 'Reason in one word why the host takes no VMs. Absent if it takes VMs.',
    }),
    message: z.string().optional().meta({ description: 'All causes why the host takes no VMs.' }),
    tags: z.array(z.string()),
    architecture: z.string().optional(),
    slots: z
      .int()
      .meta({ description: 'Largest number of machines and tasks that the host runs at the same time.' }),
    slotsFree: z.int(),
    versions: z
      .object({ agent: z.string().optional(), os: z.string().optional() })
      .meta({ description: 'Versions of the agent and of the operating system of the host.' }),
  })
  .meta({ id: 'Node' });
export type NodeItem = z.infer<typeof nodeItemSchema>;

export const nodeListSchema = z
  .object({ items: z.array(nodeItemSchema) })
  .meta({ id: 'NodeList', description: 'The hosts of a namespace.' });

const tagName = z.string().min(1).max(TAG_LENGTH).regex(TAG, TAG_FORM);

export const nodeTagSchema = z
  .object({
    tag: tagName.optional(),
    tags: z
      .array(tagName)
      .length(1)
      .optional()
      .meta({ description: 'A list with exactly one tag, for clients that send `tags` instead of `tag`.' }),
  })
  .refine(({ tag, tags }) => (tag === undefined) !== (tags === undefined), {
    error: 'exactly one tag is required',
  });

export const nodeNamespaceSchema = z.object({
  namespace: namespaceName(
    'Namespace that gets the host. To end the dedication of a host, name the default namespace.',
  ),
});
