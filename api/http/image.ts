/** Images and ISOs as the HTTP API shows and accepts them. */
import * as z from 'zod';
import { diskQuantity, objectName } from '../v1alpha1/schema.ts';
import { descriptionSchema } from '../v1alpha1/source.ts';
import { architectureSchema } from '../v1alpha1/template.ts';

/** Image or ISO. The architecture and the description are empty texts if nobody gave them, because clients always read both fields. */
export const imageItemSchema = z
  .object({
    name: z.string(),
    namespace: z
      .string()
      .optional()
      .meta({ description: 'Namespace of the object: the requested one or the default one.' }),
    description: z.string(),
    type: z
      .enum(['arm64', 'amd64', ''])
      .meta({ description: 'Architecture, or an empty text if it is not known.' }),
    state: z.enum(['Ready', 'Updating', 'Failed']),
    size: z
      .string()
      .optional()
      .meta({ description: 'Size of the disk of an Image, or of the disc of an ISO, as a quantity.' }),
    storageSize: z
      .string()
      .optional()
      .meta({ description: 'Disk space that the content needs in storage, as a quantity.' }),
    memorySize: z.string().optional().meta({
      description:
        'Size of the memory from which VMs of an Image start, as a quantity. Absent if the Image has only a disk.',
    }),
    errorMessage: z.string().optional(),
    lastUpdatedTimestamp: z
      .string()
      .optional()
      .meta({ description: 'RFC 3339 time of the last change of the content.' }),
    progressPercent: z.int().optional(),
    digest: z.string().optional(),
  })
  .meta({ id: 'Image', description: 'An Image or an ISO, with the state of its content.' });
export type ImageItem = z.infer<typeof imageItemSchema>;

export const imageListSchema = z
  .object({ items: z.array(imageItemSchema) })
  .meta({ id: 'ImageList', description: 'Images or ISOs.' });

/** Longest name of a new image. */
const NAME_LENGTH = 63;

const imageName = objectName('Name of the new object.').max(NAME_LENGTH);

export const generateRequestSchema = z.object({
  imageName,
  size: diskQuantity('size', 'Size of the empty disk.'),
  description: descriptionSchema.optional(),
  type: architectureSchema.optional(),
});

export const copyRequestSchema = z.object({
  imageName,
  description: descriptionSchema
    .optional()
    .meta({ description: 'Description of the copy. The description of the source when omitted.' }),
});

/** Body of a request that replaces a description. To remove the stored description, clients send an empty text. */
export const descriptionRequestSchema = z.object({ description: descriptionSchema });
