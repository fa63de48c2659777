/** Reads manifests from registries. Checks each manifest, because its content is not trusted. */
import { createHash } from 'node:crypto';
import * as z from 'zod';
import { isSha256 } from '../../../api/v1alpha1/reference.ts';
import { ReasonedError } from '../../../api/v1alpha1/reasons.ts';
import { JsonError, type JsonLimits, parseJson } from '../../../base/json.ts';

const OCI_MANIFEST = 'application/vnd.oci.image.manifest.v1+json';
const OCI_INDEX = 'application/vnd.oci.image.index.v1+json';
const DOCKER_MANIFEST = 'application/vnd.docker.distribution.manifest.v2+json';
const DOCKER_LIST = 'application/vnd.docker.distribution.manifest.list.v2+json';

/**
 * Media types for the header `Accept`. Each request lists all types, because a registry answers 404 if the manifest has a type that is not
 * listed.
 */
export const MANIFEST_ACCEPT = [OCI_MANIFEST, OCI_INDEX, DOCKER_MANIFEST, DOCKER_LIST].join(', ');
/**
 * Limits of a manifest. The bytes are above the 4 MiB that registries accept, because some registries measure the size differently. A layer
 * with two annotations has seven items, so the longest manifest with 4 MiB has 110,000 items.
 */
export const MANIFEST_LIMITS: JsonLimits = { bytes: 4.25 * 1024 ** 2, items: 131_072 };

const INDEXES = new Set([OCI_INDEX, DOCKER_LIST]);
const MANIFESTS = new Set([OCI_MANIFEST, DOCKER_MANIFEST]);
const SYSTEMS = new Set(['linux', 'darwin']);

const descriptorSchema = z.object({
  mediaType: z.string(),
  /** Digest of the content: `sha256:<hex>`. */
  digest: z.string().refine(isSha256, 'must be a sha256 digest'),
  size: z.number().int().nonnegative().max(Number.MAX_SAFE_INTEGER),
  annotations: z.record(z.string(), z.string()).optional(),
});
/** A piece of content, identified by its digest. */
export type Descriptor = z.infer<typeof descriptorSchema>;
/** The part of a descriptor that a request for the content of a blob needs. */
export type BlobReference = Pick<Descriptor, 'digest' | 'size'>;

const manifestSchema = z.object({
  schemaVersion: z.literal(2),
  mediaType: z.string().optional(),
  artifactType: z.string().optional(),
  config: descriptorSchema,
  layers: z.array(descriptorSchema),
  annotations: z.record(z.string(), z.string()).optional(),
  manifests: z.never().optional(),
});
/** The manifest of one image, in the format of OCI or Docker schema 2. */
export type Manifest = Pick<
  z.infer<typeof manifestSchema>,
  'artifactType' | 'config' | 'layers' | 'annotations'
>;

export interface ResolvedManifest {
  /** Digest of the manifest for one platform. If the tag names an index, this is the digest of a manifest that the index lists. */
  digest: string;
  /** Digest of the manifest or index that the tag itself names. If the tag names no index, the value is the same as `digest`. */
  tagDigest: string;
  /**
   * Architecture that the requester needs. The plan of the pull compares the image's own architecture with this value. If undefined, the
   * plan compares nothing.
   */
  architecture: 'amd64' | 'arm64' | undefined;
  manifest: Manifest;
}

const platformSchema = z.object({ architecture: z.string(), os: z.string() });

const indexSchema = z.object({
  schemaVersion: z.literal(2),
  mediaType: z.string().optional(),
  manifests: z.array(z.object({ ...descriptorSchema.shape, platform: platformSchema.optional() })),
  layers: z.never().optional(),
});
type Index = z.infer<typeof indexSchema>;

export type Document = { kind: 'manifest'; manifest: Manifest } | { kind: 'index'; index: Index };

export function digestOf(bytes: Buffer): string {
  return `sha256:${createHash('sha256').update(bytes).digest('hex')}`;
}

/**
 * Checks a parsed manifest or index. `contentType` is the value of the header `Content-Type`. `what` names the image in messages.
 *
 * @throws ReasonedError when the manifest or index cannot be used.
 */
export function readManifest(content: unknown, contentType: string, what: string): Document {
  const body = `The manifest of ${what}`;
  const document = check(mediaTypeSchema, content, body);
  const mediaType = mediaTypeOf(document.mediaType, contentType, body);
  if (INDEXES.has(mediaType)) {
    return { kind: 'index', index: check(indexSchema, document, body) };
  }
  if (!MANIFESTS.has(mediaType)) {
    throw new ReasonedError(
      'ImageSourceUnsupported',
      `${what} has the media type ${printable(mediaType)}, but Berth cannot read images of this type`,
    );
  }
  return { kind: 'manifest', manifest: check(manifestSchema, document, body) };
}

/**
 * Returns the digest of the image for `architecture` from an index.
 *
 * @throws ReasonedError `ImageArchitectureMismatch` when the index has no such image.
 */
export function pick({ manifests }: Index, architecture: string, what: string): string {
  // The function considers only entries for linux or darwin. Other entries of an index, such as attestations, are not images.
  const images = manifests.filter(({ platform }) => platform !== undefined && SYSTEMS.has(platform.os));
  const found = images.find(({ platform }) => platform?.architecture === architecture);
  if (found !== undefined) {
    return found.digest;
  }
  const there = images.map(({ platform }) => `${platform?.os}/${platform?.architecture}`);
  const list = there.length === 0 ? 'systems other than linux and darwin' : printable(there.join(', '));
  throw new ReasonedError(
    'ImageArchitectureMismatch',
    `${what} has no image for ${architecture}; its images are for: ${list}`,
  );
}

const mediaTypeSchema = z.looseObject({ mediaType: z.string().default('') });

/**
 * Returns the media type of a manifest. Both the manifest itself and the header `Content-Type` can state this type. If they state different
 * types of manifests, the function refuses the manifest, because two programs could read it as two different images.
 *
 * @throws ReasonedError `ImageInvalid` when the types differ.
 */
function mediaTypeOf(mediaType: string, contentType: string, what: string): string {
  const header = contentType.split(';', 1).join('').trim().toLowerCase();
  if (mediaType === '' || mediaType === header) {
    return header;
  }
  if (!INDEXES.has(header) && !MANIFESTS.has(header)) {
    return mediaType;
  }
  throw new ReasonedError(
    'ImageInvalid',
    `${what} states the media type ${printable(mediaType)}, but its registry states ${printable(header)}`,
  );
}

/**
 * Parses untrusted JSON, and checks the result with `schema`. `what` is the beginning of error messages.
 *
 * @throws ReasonedError `ImageInvalid` with the first mistake when the text exceeds a limit or is not JSON, or when the schema does not
 * allow the content.
 */
export function readDocument<T>(schema: z.ZodType<T>, bytes: Buffer, limits: JsonLimits, what: string): T {
  try {
    return check(schema, parseJson(bytes, limits), what);
  } catch (error) {
    throw invalidJson(error, what);
  }
}

/** Returns a ReasonedError `ImageInvalid` for a JsonError, and any other error as it is. `what` is the beginning of the message. */
export function invalidJson(error: unknown, what: string): unknown {
  return error instanceof JsonError ? new ReasonedError('ImageInvalid', `${what} ${error.message}`) : error;
}

function check<T>(schema: z.ZodType<T>, document: unknown, what: string): T {
  const result = schema.safeParse(document);
  if (result.success) {
    return result.data;
  }
  throw new ReasonedError('ImageInvalid', `${what} ${mistakeIn(result.error)}`);
}

/** Returns the first mistake that a schema found, as one short line. In a message, the line follows the name of the document. */
export function mistakeIn({ issues: [issue] }: z.ZodError): string {
  const place = printable(issue?.path.join('.') || 'the top level');
  return `is invalid at ${place}: ${printable(String(issue?.message))}`;
}

/** Makes untrusted text safe for a message. Returns one line of at most `length` printable ASCII characters. */
export function printable(text: string, length = 200): string {
  return text.replaceAll(/[^\x20-\x7e]+/g, ' ').slice(0, length);
}
