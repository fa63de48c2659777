/**
 * ImageCacheEntry: keeps one image on chosen hosts, so that VMs of the entry's namespace with this image start there without a pull.
 */
import * as z from 'zod';
import { commonStatus } from './conditions.ts';
import { AGE_COLUMN, type ApiObject, column, conditionColumn, type KindContent, wide } from './kind.ts';
import { CACHE_NODES_LIMIT, TAG, TAG_LENGTH } from './names.ts';
import { IMAGE_NAME_LENGTH } from './reference.ts';
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

function tagNames(description: string) {
  return z
    .array(text('A tag of hosts.', TAG_LENGTH, TAG))
    .max(64)
    .meta({ description, 'x-kubernetes-list-type': 'set' })
    .optional();
}

function nodeNames(description: string) {
  return z
    .array(text('Name of a Node.', 253))
    .max(CACHE_NODES_LIMIT)
    .meta({ description, 'x-kubernetes-list-type': 'set' })
    .optional();
}

const imageCacheEntrySpecSchema = z
  .object({
    reference: text(
      'OCI reference of the image. A short form is allowed, for example without registry and tag.',
      IMAGE_NAME_LENGTH,
    ).optional(),
    imageRef: z
      .object({
        namespace: namespaceName(
          'Namespace of the Image. If it is neither the namespace of this entry nor platform-default, the user who writes this entry needs the right to get the Image.',
        ),
        name: objectName('Name of the Image.'),
      })
      .meta({ description: 'An Image object.' })
      .optional(),
    targets: z
      .object({
        all: z.boolean().meta({ description: 'Every host of the namespace.' }).optional(),
        nodes: nodeNames('Hosts by name.'),
        tags: tagNames('Hosts with any of these tags.'),
        excludeNodes: nodeNames(
          'Excluded hosts. They do not keep the image, even if other fields select them.',
        ),
        excludeTags: tagNames(
          'Excluded tags. Hosts with any of these tags do not keep the image, even if other fields select them.',
        ),
      })
      .meta({
        description:
          'Hosts that keep the image. A host keeps the image if VMs of the namespace can run there, at least one field selects the host, and no field excludes it.',
      })
      .optional(),
    pullSecretName: objectName(
      'Name of a Secret of this namespace with credentials for the registry.',
    ).optional(),
    refreshRequestedAt: timestamp(
      'When you change this time, each host checks once whether there is a newer image.',
    ).optional(),
  })
  .meta(
    documented(
      'An image and the hosts that keep it.',
      oneOf(['reference', 'imageRef']),
      ...immutable('reference', 'imageRef'),
    ),
  );
export type ImageCacheEntrySpec = z.infer<typeof imageCacheEntrySpecSchema>;

/** Largest number of earlier digests in the status of an entry. A host with an image that is older still counts as a host without the image. */
export const FORMER_DIGESTS = 32;
/** Largest length of the message for one host, in characters. */
export const NODE_MESSAGE_LENGTH = 256;

const nodeStateSchema = z.object({
  node: report('Name of the Node.', 253),
  state: report('State of the image on the host: Queued, Caching, Removing, Failed or Outdated.', 64),
  message: report('Details of the state, as text for people.', NODE_MESSAGE_LENGTH).optional(),
  queuedAt: timestamp(
    'Time when the host first had to fetch or remove the image. The deadline of the work is counted from this time.',
  ).optional(),
  triedAt: timestamp('Time of the last attempt that could not begin, because the host was full.').optional(),
  failures: count('Number of consecutive failures.').optional(),
  retryAt: timestamp('Time of the next attempt.').optional(),
  refresh: z.boolean().meta({ description: 'Whether the host looks for a newer image.' }).optional(),
});
export type NodeCacheState = z.infer<typeof nodeStateSchema>;

export const imageCacheEntryStatusSchema = z
  .object({
    ...commonStatus(),
    normalizedReference: report('Normalized name of the image.', IMAGE_NAME_LENGTH + 64).optional(),
    digest: report('Desired digest.', 256).optional(),
    formerDigests: z
      .array(report('A digest.', 256))
      .max(FORMER_DIGESTS)
      .meta({
        description:
          'Other digests of the image that hosts fetched for this entry: of earlier versions, and for single architectures. The newest comes first.',
        'x-kubernetes-list-type': 'atomic',
      })
      .optional(),
    lastRefresh: timestamp(
      'The last value of `refreshRequestedAt` for which the operator started work.',
    ).optional(),
    desired: count('Number of hosts that should have the image.').optional(),
    cached: count('Number of hosts that have the image.').optional(),
    failed: count('Number of hosts where caching failed.').optional(),
    outdated: count('Number of hosts with an older version of the image.').optional(),
    nodes: z
      .array(nodeStateSchema)
      .max(CACHE_NODES_LIMIT)
      .meta({
        description: 'Hosts on which the image is not yet in the desired state.',
        'x-kubernetes-list-type': 'map',
        'x-kubernetes-list-map-keys': ['node'],
      })
      .optional(),
    failing: report('Names of the hosts where caching failed, as one text.', 512).optional(),
    holders: z
      .array(report('Name of a Node.', 253))
      .max(CACHE_NODES_LIMIT)
      .meta({
        description:
          'Hosts that have or might have the image because of this entry. Before the entry is deleted, each of these hosts removes the image.',
        'x-kubernetes-list-type': 'set',
      })
      .optional(),
  })
  .meta({ description: 'Last observed state of the image on its hosts, written by the operator.' });
export type ImageCacheEntryStatus = z.infer<typeof imageCacheEntryStatusSchema>;
export type ImageCacheEntry = ApiObject<ImageCacheEntrySpec, ImageCacheEntryStatus>;

function countColumn(name: string, field: string) {
  return column(name, `.status.${field}`, `Number of hosts: ${field}.`, 'integer');
}

export const IMAGE_CACHE_ENTRY_KIND: KindContent = {
  shortNames: ['ice'],
  description: 'Keeps one image on chosen hosts, so that VMs start there without a pull.',
  spec: imageCacheEntrySpecSchema,
  status: imageCacheEntryStatusSchema,
  rules: [],
  columns: [
    column('Image', '.status.normalizedReference', 'Normalized name of the image.'),
    column('Digest', '.status.digest', 'Digest.'),
    countColumn('Cached', 'cached'),
    countColumn('Wanted', 'desired'),
    AGE_COLUMN,
    wide(conditionColumn('Ready', 'Ready', 'reason')),
    wide(countColumn('Outdated', 'outdated')),
    wide(column('Failing', '.status.failing', 'Hosts where caching failed.')),
    wide(conditionColumn('Message', 'Ready', 'message')),
  ],
};
