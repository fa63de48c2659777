/**
 * Sources of images: the fields of the spec that Images and ISOs share, the source from which a host gets the content, and their reported
 * state.
 */
import * as z from 'zod';
import { AGE_COLUMN, column, conditionColumn, PHASE_COLUMN, type PrinterColumn, wide } from './kind.ts';
import { count, diskQuantity, documented, report, sha256, text, timestamp } from './schema.ts';
import { imageName, objectReferenceSchema } from './template.ts';

/** Largest number of characters of a failure's text in the status of an Image or ISO. */
export const FAILURE_TEXT_LENGTH = 1024;

export const descriptionSchema = z
  .string()
  .max(4096)
  .meta({ description: 'Description for people, at most 4096 characters.' });

export const registrySchema = z
  .object({ reference: imageName('Reference in an OCI registry.') })
  .meta({ description: 'An image in an OCI registry.' });

export const NO_CREDENTIALS =
  'must not contain a user name or password, because every reader of this object would see them. Use a registry with imagePullSecrets, or a URL without credentials';

/** Pattern of the addresses of files. */
export const FILE_URL = /^https?:\/\/[^\s/]+(\/\S*)?$/;

/** Returns the schema of a file that hosts fetch over http or https. Hosts check the file with its SHA-256 digest. */
export function downloadSchema(description: string) {
  return z
    .object({
      url: text('Address of the file, http or https.', 2048, FILE_URL).meta(
        documented('Address of the file, http or https, without a user name or password.', {
          rule: "!self.matches('^https?://[^/?#]*@')",
          message: `url ${NO_CREDENTIALS}`,
        }),
      ),
      sha256: sha256('SHA-256 of the file, 64 lower-case hexadecimal digits.'),
    })
    .meta({ description });
}

export const RELATIVE_PATH = 'must be relative and must not contain ..';

export const sharedFileSchema = z
  .object({
    path: text(
      'Path of the file below a folder in `images.sharedRoots` of the agent, without a leading slash.',
      1024,
    ).meta(
      documented(
        'Path of the file below a folder in `images.sharedRoots` of the agent, without a leading slash or `..`.',
        {
          rule: "!self.startsWith('/') && !self.split('/').exists(part, part == '..')",
          message: `path ${RELATIVE_PATH}`,
        },
      ),
    ),
  })
  .meta({ description: 'A file in a folder that all hosts mount.' });

export const uploadSchema = z
  .object({ maxSize: diskQuantity('maxSize', 'Largest size of the file. The host reserves this space.') })
  .meta({ description: 'A raw or qcow2 file that the creator uploads through the HTTP API.' });

export const fileRequestSchema = z
  .object({ requestedAt: timestamp('Set a new time to start a download.') })
  .meta({ description: 'Asks a host to send the content to clients. The HTTP API sets this field.' });

/** Returns the first sources of an Image or ISO. The kinds add more sources. */
export function storedSources(kind: 'Image' | 'ISO') {
  return {
    registry: registrySchema.optional(),
    http: downloadSchema('A file on a web server.').optional(),
    sharedFile: sharedFileSchema.optional(),
    copyOf: objectReferenceSchema.meta({ description: `Another ${kind} to copy.` }).optional(),
  };
}

export const SOURCE_IMMUTABLE = {
  rule: 'self.source == oldSelf.source',
  message: 'source is immutable: it cannot be changed after creation',
  reason: 'FieldValueForbidden',
  fieldPath: '.source',
} as const;

/**
 * Size in bytes of a disk on which a host installs macOS from an IPSW, if the VM asks for no other. macOS, its updates and a development
 * environment fit into it.
 */
export const INSTALLED_DISK_BYTES = 64 * 1024 ** 3;

/**
 * Source from which the agent gets a disk or an ISO: a part of the contract between the operator and the agent. The function `directSource`
 * in operator/image derives this source from the source of an Image.
 */
export const machineImageSourceSchema = z.discriminatedUnion('type', [
  z.object({ type: z.literal('registry'), reference: z.string() }),
  z.object({ type: z.literal('http'), url: z.string(), sha256: z.string() }),
  z.object({ type: z.literal('sharedFile'), path: z.string() }),
  z.object({ type: z.literal('empty'), sizeBytes: z.number().int() }),
  /**
   * An artifact in the cluster's image storage. It contains the content of an Image. The host reads the artifact with the host's own
   * credentials, not with those of the VM.
   */
  z.object({ type: z.literal('storedArtifact'), reference: z.string() }),
  /**
   * A file below the host's storage folder. It contains the content of an Image. `memoryDigest` is the sha256 of the file that describes the
   * memory beside it. Absent if the Image has only a disk.
   */
  z.object({
    type: z.literal('storedFile'),
    path: z.string(),
    sha256: z.string(),
    memoryDigest: z.string().optional(),
  }),
  /** A file with which a host that runs macOS installs macOS on the disk of each machine. */
  z.object({ type: z.literal('ipsw'), url: z.string(), sha256: z.string() }),
]);
export type MachineImageSource = z.infer<typeof machineImageSourceSchema>;
export type SourceType = MachineImageSource['type'];
export type SourceOf<T extends SourceType> = Extract<MachineImageSource, { type: T }>;

/**
 * Returns the reference by which users name the image in a registry. A host needs their credentials for this registry. The result is
 * undefined for all other sources, also for an artifact in the image storage.
 */
export function registryReference(source: MachineImageSource | undefined): string | undefined {
  return source?.type === 'registry' ? source.reference : undefined;
}

/**
 * Source from which hosts get the content (`MachineImageSource`). All its fields are on one level, and `type` determines which of them are
 * set.
 */
export const contentSchema = z
  .object({
    type: report(
      'Type of the source: registry, http, sharedFile, empty, storedArtifact, storedFile or ipsw.',
      32,
    ),
    reference: report('Reference in a registry, pinned by digest.', 1024).optional(),
    url: report('Address on a web server.', 2048).optional(),
    sha256: report('Digest of the file.', 64).optional(),
    path: report('Path below a shared folder.', 1024).optional(),
    memoryDigest: report('Digest of the file that describes the memory of the image.', 64).optional(),
    sizeBytes: count('Size of an empty disk.', Number.MAX_SAFE_INTEGER).optional(),
  })
  .meta({ description: 'Source from which hosts get the content.' });

const STORAGE_COLUMN = wide({
  name: 'Storage',
  type: 'string',
  description: 'Disk space that the content needs in storage.',
  jsonPath: '.status.storageSize',
});

/** Returns the columns of a list of Images or ISOs. `size` describes the column of the size. */
export function storedColumns(size: string): PrinterColumn[] {
  return [
    PHASE_COLUMN,
    column('Size', '.status.size', size),
    column('Progress', '.status.progressPercent', 'Progress in percent.', 'integer'),
    AGE_COLUMN,
    STORAGE_COLUMN,
    wide(column('Digest', '.status.digest', 'Digest.')),
    wide(column('Description', '.spec.description', 'Description.')),
    wide(conditionColumn('Message', 'Ready', 'message')),
  ];
}

/** Returns the fields that the operator reports for a stored Image or ISO. */
export function storedStatus() {
  return {
    phase: report(
      'Phase of the object: Pending, Pulling, Ready, Updating or Failed. It is for people. Programs read the conditions instead.',
      64,
    ).optional(),
    size: report('Size of the disk of an Image, or of the disc of an ISO, as a quantity.', 32).optional(),
    storageSize: report('Disk space that the content needs in storage, as a quantity.', 32).optional(),
    digest: report('Digest of the content.', 256).optional(),
    content: contentSchema.optional(),
    consistency: report(
      'Consistency of the copied disk. FileSystem: the guest agent froze the file systems. Crash: the file systems were not frozen, so the disk looks as if the VM had lost power. Stopped: the VM was off.',
      32,
    ).optional(),
    origin: report('Source from which the content came.', 2048).optional(),
    progressPercent: count('Progress of the current transfer in percent.', 100).optional(),
    lastUpdateTime: timestamp('Time of the last change of the content.').optional(),
    contentFailure: report(
      'Reason and message of the failure if the content can never be fetched or saved. The work is not tried again.',
      FAILURE_TEXT_LENGTH,
    ).optional(),
    uploadFailure: report(
      'Reason and message of the failure if the upload failed. An upload is not tried again.',
      FAILURE_TEXT_LENGTH,
    ).optional(),
    lastDownload: z
      .object({
        requestedAt: timestamp('Value of requestedAt to which this result belongs.'),
        finishedAt: timestamp('Time when the work ended.').optional(),
        result: report('Succeeded or Failed.', 64).optional(),
        message: report('Description of the result, as text for people.', FAILURE_TEXT_LENGTH).optional(),
      })
      .meta({ description: 'The last download.' })
      .optional(),
  };
}

/**
 * Returns a web address without the parts that can contain credentials. These parts are the user and the password before the host, and the
 * query, because the query of a signed address contains the signature.
 */
export function describeUrl(text: string | URL): string {
  const url = URL.parse(String(text));
  if (url === null) {
    return 'a URL that cannot be read';
  }
  const query = url.search === '' ? '' : '?…';
  return `${url.protocol}//${url.host}${url.pathname}${query}`;
}

/** Reports whether a web address has parts that can contain credentials. {@link describeUrl} leaves out these parts. */
export function mayHoldCredentials(text: string): boolean {
  const url = URL.parse(text);
  return url === null || url.search !== '' || url.username !== '' || url.password !== '';
}

export function describeSource(source: MachineImageSource): string {
  switch (source.type) {
    case 'registry':
    case 'storedArtifact':
      return source.reference;
    case 'http':
    case 'ipsw':
      return describeUrl(source.url);
    case 'sharedFile':
    case 'storedFile':
      return source.path;
    default:
      return 'an empty disk';
  }
}
