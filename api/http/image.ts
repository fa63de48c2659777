/** Images and ISOs as the HTTP API shows and accepts them. */
import * as z from 'zod';
import { formatSchema, TTL } from '../v1alpha1/image.ts';
import { SOURCE_FIELDS } from '../v1alpha1/imagefields.ts';
import { diskQuantity, objectName } from '../v1alpha1/schema.ts';
import {
  descriptionSchema,
  downloadSchema,
  NO_CREDENTIALS,
  registrySchema,
  RELATIVE_PATH,
  sharedFileSchema,
} from '../v1alpha1/source.ts';
import { architectureSchema, osSchema } from '../v1alpha1/template.ts';
import { whole } from './request.ts';

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
    reference: z.string().optional().meta({ description: 'Reference of the source in a registry.' }),
    url: z.string().optional().meta({ description: 'Address of the source on a web server.' }),
    sha256: z.string().optional().meta({ description: 'SHA-256 of the file at the address.' }),
    sharedFile: z
      .string()
      .optional()
      .meta({ description: 'Path of the source in a folder that all hosts mount.' }),
    format: z.string().optional().meta({ description: 'Format of the file of an Image.' }),
    os: z.string().optional().meta({ description: 'Operating system of the VMs.' }),
    ttlSecondsAfterFinished: z
      .int()
      .optional()
      .meta({ description: 'Seconds until an Image is deleted after it is finished.' }),
  })
  .meta({ id: 'Image', description: 'An Image or an ISO, with the state of its content.' });
export type ImageItem = z.infer<typeof imageItemSchema>;

export const imageListSchema = z
  .object({ items: z.array(imageItemSchema) })
  .meta({ id: 'ImageList', description: 'Images or ISOs.' });

/** Longest name of a new image. */
const NAME_LENGTH = 63;

const fileSchema = downloadSchema('A file on a web server.');
/** Pattern of addresses with a user name before the host. */
const CREDENTIALS = /^https?:\/\/[^/?#]*@/;

const imageName = objectName('Name of the new object.').max(NAME_LENGTH);

/** Fields of a request that an Image and an ISO have in common. */
const contentFields = {
  imageName,
  description: descriptionSchema.optional(),
  type: architectureSchema.optional(),
  os: osSchema.optional(),
  reference: registrySchema.shape.reference.optional().meta({
    description: 'Reference of the content in a registry, for example `registry.example/team/desktop:15`.',
  }),
  url: fileSchema.shape.url
    .refine((url) => !CREDENTIALS.test(url), { error: NO_CREDENTIALS })
    .optional()
    .meta({ description: 'Address of the content on a web server. It requires `sha256`.' }),
  sha256: fileSchema.shape.sha256.optional(),
  sharedFile: sharedFileSchema.shape.path
    .refine((path) => !path.startsWith('/') && !path.split('/').includes('..'), { error: RELATIVE_PATH })
    .optional(),
};

const imageFields = {
  ...contentFields,
  size: diskQuantity('size', 'Size of an empty disk.').optional(),
  format: formatSchema.optional(),
  ttlSecondsAfterFinished: whole(TTL.minimum, TTL.maximum).optional().meta({ description: TTL.description }),
};

/** TypeScript type of a request. An ISO has fewer fields. */
export type ContentRequest = Partial<Omit<z.infer<z.ZodObject<typeof imageFields>>, 'imageName'>>;

const ONE_FILE = { error: 'must be given together with url', path: ['sha256'] };

/** Body of a request that makes an Image. */
export const imageRequestSchema = z
  .object(imageFields)
  .refine(hasOneSource, { error: `exactly one of ${SOURCE_FIELDS.join(', ')} must be given` })
  .refine(hasBothOfFile, ONE_FILE);

/** Body of a request that makes an ISO. */
export const isoRequestSchema = z
  .object(contentFields)
  .refine(hasOneSource, {
    error: `exactly one of ${SOURCE_FIELDS.filter((field) => field !== 'size').join(', ')} must be given`,
  })
  .refine(hasBothOfFile, ONE_FILE);

function hasOneSource(request: ContentRequest): boolean {
  return SOURCE_FIELDS.filter((field) => request[field] !== undefined).length === 1;
}

function hasBothOfFile({ url, sha256 }: ContentRequest): boolean {
  return (url === undefined) === (sha256 === undefined);
}

export const copyRequestSchema = z.object({
  imageName,
  description: descriptionSchema
    .optional()
    .meta({ description: 'Description of the copy. The description of the source when omitted.' }),
});

/** Body of a request that replaces a description. To remove the stored description, clients send an empty text. */
export const descriptionRequestSchema = z.object({ description: descriptionSchema });
