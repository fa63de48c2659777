/** The cache of images on hosts, as the HTTP API shows and changes it. */
import * as z from 'zod';
import { IMAGE_NAME_LENGTH } from '../v1alpha1/reference.ts';

/** Largest number of hosts or tags in a request. An ImageCacheEntry has the same limit. */
const NAMES = 4096;
const NAME_LENGTH = 253;
/** Longest text with a list of names, in characters. It has room for {@link NAMES} names of the largest length. */
const NAMES_LENGTH = NAMES * (NAME_LENGTH + 1);

const TOO_MANY = `must have at most ${NAMES} names`;

function names(description: string) {
  return z
    .union(
      [
        // If a list is too long, these limits refuse it before its names are checked. Without the limits, each wrong name in the list would
        // need memory for its own error.
        z.array(z.string().min(1).max(NAME_LENGTH)).max(NAMES),
        z.string().max(NAMES_LENGTH),
      ],
      { error: ({ input }) => (Array.isArray(input) && input.length > NAMES ? TOO_MANY : undefined) },
    )
    .refine((given) => typeof given !== 'string' || given.split(',').length <= NAMES, { error: TOO_MANY })
    .optional()
    .meta({
      description: `${description} A list of names, or a text with names separated by commas. At most ${NAMES} names.`,
    });
}

const selection = {
  nodes: names('Hosts by name.'),
  tags: names('Hosts that have all of these tags.'),
  all: z.boolean().optional().meta({ description: 'All hosts of the namespace.' }),
};

/** Selection of hosts. Exactly one of its fields must select the hosts. */
export const cacheSelectionSchema = z.object(selection);
export type CacheSelection = z.infer<typeof cacheSelectionSchema>;

/** Body of a request that selects hosts and names an image. */
export const cacheRemovalSchema = z.object({
  image: z
    .string()
    .min(1)
    .max(IMAGE_NAME_LENGTH)
    .meta({ description: 'Name of an Image, or an OCI reference.' }),
  namespace: z
    .string()
    .min(1)
    .max(NAME_LENGTH)
    .optional()
    .meta({ description: 'Namespace of the cache. The default namespace when omitted.' }),
  ...selection,
});

export const cacheResultSchema = z
  .object({
    items: z.array(
      z.object({
        node: z.string(),
        code: z.int().meta({ description: 'HTTP status code for this host.' }),
        status: z.enum(['Success', 'Failure']),
        message: z.string().optional(),
      }),
    ),
  })
  .meta({ id: 'ImageCacheResult', description: 'A status for each selected host.' });
export type CacheResult = z.infer<typeof cacheResultSchema>;

const cacheStatus = z.enum(['ready', 'caching', 'queued', 'removing', 'failed', 'outdated']);

export const cacheInfoSchema = z
  .object({
    image: z.string(),
    items: z.array(
      z.object({
        node: z.string(),
        status: cacheStatus,
        message: z.string().optional(),
        size: z.string().optional().meta({ description: 'Size on the host, for example 31.23G.' }),
      }),
    ),
  })
  .meta({ id: 'ImageCacheInfo', description: 'The state of an image on each host that has it.' });
export type CacheInfo = z.infer<typeof cacheInfoSchema>;

export const cacheListSchema = z
  .object({
    items: z.array(
      z
        .object({
          image: z.string(),
          tag: z.string().optional(),
          imageId: z.string().optional().meta({ description: 'Digest of the image.' }),
          size: z.string().optional(),
          nodes: z.int().meta({ description: 'Number of hosts of the namespace that have the image.' }),
          status: cacheStatus.meta({
            description: 'Status of the image on all hosts: `ready`, or that of a host without it.',
          }),
          message: z.string().optional().meta({ description: 'Why the image is not on all hosts yet.' }),
        })
        .meta({ id: 'CachedImage' }),
    ),
  })
  .meta({ id: 'CachedImageList', description: 'Images of the cache of a namespace, and on its hosts.' });
export type CacheList = z.infer<typeof cacheListSchema>;
