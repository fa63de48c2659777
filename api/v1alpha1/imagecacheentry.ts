/** ImageCacheEntry: keeps one image on chosen hosts, so that VMs start there without a pull. */
import * as z from 'zod';
import { commonStatus } from './conditions.ts';
import { IMAGE_NAME_LENGTH } from './reference.ts';
import { AGE_COLUMN, conditionColumn, type KindDefinition, kindResource, wide } from './kind.ts';
import type { ApiObject } from './metadata.ts';
import {
  count,
  documented,
  immutable,
  namespaceName,
  objectName,
  oneOf,
  report,
  text,
  timestamp,
} from './schema.ts';
import { TAG } from './template.ts';

/** Hosts that one entry may name; with names of usual length a full status stays under etcd's 1.5 MB. */
const MAXIMUM_NODES = 4096;

function nodeNames(description: string) {
  return z
    .array(text('Name of a Node.', 253))
    .max(MAXIMUM_NODES)
    .meta({ description, 'x-kubernetes-list-type': 'set' })
    .optional();
}

const imageCacheEntrySpecSchema = z
  .object({
    reference: text('OCI reference of the image, in any spelling.', IMAGE_NAME_LENGTH).optional(),
    imageRef: z
      .object({
        namespace: namespaceName(
          'Namespace of the Image. Who names another one than platform-default needs the right to get the Image there.',
        ),
        name: objectName('Name of the Image.'),
      })
      .meta({ description: 'An Image object.' })
      .optional(),
    targets: z
      .object({
        all: z.boolean().meta({ description: 'Every host.' }).optional(),
        nodes: nodeNames('Hosts by name.'),
        tags: z
          .array(text('A tag of hosts.', 63, TAG))
          .max(64)
          .meta({ description: 'Hosts with any of these tags.', 'x-kubernetes-list-type': 'set' })
          .optional(),
        excludeNodes: nodeNames('Hosts left out, whatever else names them.'),
      })
      .meta({ description: 'Hosts that the image is kept on; what is given adds up.' })
      .optional(),
    pullSecretName: objectName(
      'Secret with the registry’s credentials, in berth-system. Who names it needs the right to get it.',
    ).optional(),
    refreshRequestedAt: timestamp('Set to a new time to look for a newer image once.').optional(),
  })
  .meta(
    documented(
      'Which image is kept on which hosts.',
      oneOf(['reference', 'imageRef'], true),
      ...immutable('reference', 'imageRef'),
    ),
  );
export type ImageCacheEntrySpec = z.infer<typeof imageCacheEntrySpecSchema>;

/** Longest word on one host. */
export const NODE_MESSAGE_LENGTH = 256;

const nodeStateSchema = z.object({
  node: report('Name of the Node.', 253),
  state: report('Queued, Caching, Removing, Failed or Outdated.', 64),
  message: report('For people.', NODE_MESSAGE_LENGTH).optional(),
  queuedAt: timestamp('When work for the host was first wanted; the deadline counts from here.').optional(),
  triedAt: timestamp('When the host’s turn last ended without a start, because it was full.').optional(),
  failures: count('Failures in a row.').optional(),
  retryAt: timestamp('When it is tried again.').optional(),
  refresh: z
    .boolean()
    .meta({ description: 'Whether a newer image is to be looked for, though one is there.' })
    .optional(),
});
export type NodeCacheState = z.infer<typeof nodeStateSchema>;

export const imageCacheEntryStatusSchema = z
  .object({
    ...commonStatus(),
    normalizedReference: report('The one spelling of the image’s name.', IMAGE_NAME_LENGTH + 64).optional(),
    digest: report('Digest that hosts should have.', 256).optional(),
    lastRefresh: timestamp('The last `refreshRequestedAt` that was taken up.').optional(),
    desired: count('Hosts that should have the image.').optional(),
    cached: count('Hosts that have it.').optional(),
    failed: count('Hosts where caching failed.').optional(),
    outdated: count('Hosts with an older one.').optional(),
    nodes: z
      .array(nodeStateSchema)
      .max(MAXIMUM_NODES)
      .meta({
        description: 'Hosts that do not have it as they should.',
        'x-kubernetes-list-type': 'map',
        'x-kubernetes-list-map-keys': ['node'],
      })
      .optional(),
    failing: report('Hosts where caching failed, in words.', 512).optional(),
    holders: z
      .array(report('Name of a Node.', 253))
      .max(MAXIMUM_NODES)
      .meta({
        description: 'Hosts that keep the image for this entry, or may: they are cleaned before it goes.',
        'x-kubernetes-list-type': 'set',
      })
      .optional(),
  })
  .meta({ description: 'What was last seen of the image on its hosts; written by the operator.' });
export type ImageCacheEntryStatus = z.infer<typeof imageCacheEntryStatusSchema>;
export type ImageCacheEntry = ApiObject<ImageCacheEntrySpec, ImageCacheEntryStatus>;

export const IMAGE_CACHE_ENTRY_RESOURCE = kindResource('ImageCacheEntry', 'imagecacheentries', false);

function countColumn(name: string, field: string) {
  return {
    name,
    type: 'integer',
    description: `Number of hosts: ${field}.`,
    jsonPath: `.status.${field}`,
  } as const;
}

export const IMAGE_CACHE_ENTRY_KIND: KindDefinition = {
  ...IMAGE_CACHE_ENTRY_RESOURCE,
  shortNames: ['ice'],
  description: 'Keeps one image on chosen hosts, so that VMs start there without a pull.',
  spec: imageCacheEntrySpecSchema,
  status: imageCacheEntryStatusSchema,
  rules: [],
  columns: [
    {
      name: 'Image',
      type: 'string',
      description: 'The image’s name in its one spelling.',
      jsonPath: '.status.normalizedReference',
    },
    { name: 'Digest', type: 'string', description: 'Digest.', jsonPath: '.status.digest' },
    countColumn('Cached', 'cached'),
    countColumn('Wanted', 'desired'),
    AGE_COLUMN,
    wide(conditionColumn('Ready', 'Ready', 'reason')),
    wide(countColumn('Outdated', 'outdated')),
    wide({
      name: 'Failing',
      type: 'string',
      description: 'Hosts where caching failed.',
      jsonPath: '.status.failing',
    }),
    wide(conditionColumn('Message', 'Ready', 'message')),
  ],
};
