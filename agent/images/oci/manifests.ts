/**
 * Reads manifests from registries, and chooses the image for an architecture among the images of an index. Checks each document, because
 * its content is not trusted.
 */
import { createHash } from 'node:crypto';
import * as z from 'zod';
import { isSha256 } from '../../../api/v1alpha1/reference.ts';
import { type Reason, ReasonedError } from '../../../api/v1alpha1/reasons.ts';
import { JsonError, type JsonLimits, parseJson } from '../../../base/json.ts';

/**
 * Returns the schema of a list of at most `limit` elements. The schema reports only the first wrong element. zod's own lists make an error
 * for each wrong element, and 130,000 errors block the event loop for half a second.
 */
export function listOf<T>(element: z.ZodType<T>, limit: number): z.ZodType<T[]> {
  return z
    .array(z.unknown())
    .max(limit)
    .transform((elements, context) => {
      const read: T[] = [];
      for (const [index, one] of elements.entries()) {
        const { data, error } = element.safeParse(one);
        const [issue] = error?.issues ?? [];
        if (issue !== undefined) {
          context.addIssue({ code: 'custom', message: issue.message, path: [index, ...issue.path] });
          return z.NEVER;
        }
        read.push(data as T);
      }
      return read;
    });
}

/**
 * A text that may be absent. Null, an empty text and a value of another type count as absent, because servers write them in place of a
 * field that they do not use.
 */
export const optionalText = z.string().min(1).optional().catch(undefined);

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

/**
 * Largest number of layers, and of entries of an index. A disk of 2 TiB has 36,000 layers, and indexes have some dozen entries. The number is
 * checked first, because the check of an element that cannot be read takes up to 10 µs.
 */
const LAYERS = 40_000;
const ENTRIES = 1_024;

const INDEXES = new Set([OCI_INDEX, DOCKER_LIST]);
const MANIFESTS = new Set([OCI_MANIFEST, DOCKER_MANIFEST]);

/** Annotations that are texts. Annotations of another type are left out. */
const annotationsSchema = z
  .record(z.string(), z.unknown())
  .transform((all) => Object.fromEntries(Object.entries(all).filter(isText)))
  .optional()
  .catch(undefined);

const contentSchema = z.object({
  /** Digest of the content: `sha256:<hex>`. */
  digest: z.string().refine(isSha256),
  size: z.number().int().nonnegative().max(Number.MAX_SAFE_INTEGER),
});

/**
 * A descriptor. If its digest or size cannot be read, the digest is empty and the size is 0. Only a request for this content then fails, in
 * {@link requireContent}.
 */
const descriptorSchema = z.unknown().transform((document) => {
  const { mediaType = '', annotations } = namedSchema.parse(document);
  const { digest, size } = contentSchema.safeParse(document).data ?? { digest: '', size: 0 };
  return { mediaType, digest, size, ...(annotations && { annotations }) };
});
const namedSchema = z.object({ mediaType: optionalText, annotations: annotationsSchema }).catch({});

/** A piece of content, identified by its digest. */
export interface Descriptor {
  mediaType: string;
  /** Digest of the content: `sha256:<hex>`. It is empty if the descriptor cannot be read. */
  digest: string;
  size: number;
  annotations?: Record<string, string>;
}
/** The part of a descriptor that a request for the content of a blob needs. */
export type BlobReference = Pick<Descriptor, 'digest' | 'size'>;

const versionSchema = z.literal([2, '2']).nullish();
/** A field that a document of this kind must not have. With it, another program could read the document as another kind. */
const forbiddenSchema = z.null().optional();

const manifestSchema = z.object({
  schemaVersion: versionSchema,
  mediaType: optionalText,
  artifactType: optionalText,
  config: descriptorSchema,
  layers: z
    .array(z.unknown())
    .max(LAYERS)
    .pipe(z.array(descriptorSchema))
    .nullish()
    .transform((layers) => layers ?? []),
  annotations: annotationsSchema,
  manifests: forbiddenSchema,
});
/** The manifest of one image, in the format of OCI or Docker schema 2. */
export interface Manifest {
  artifactType?: string | undefined;
  config: Descriptor;
  layers: Descriptor[];
  annotations?: Record<string, string> | undefined;
}

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

const platformSchema = z
  .object({ architecture: optionalText, os: optionalText, variant: optionalText })
  .optional()
  .catch(undefined);

const entrySchema = z.object({ digest: contentSchema.shape.digest, platform: platformSchema });
type IndexEntry = z.infer<typeof entrySchema>;

const indexSchema = z.object({
  schemaVersion: versionSchema,
  // Each entry is checked by itself. An entry that cannot be read is left out, because the others can have the image.
  manifests: z
    .array(z.unknown())
    .max(ENTRIES)
    .transform((entries) => entries.flatMap((entry) => entrySchema.safeParse(entry).data ?? [])),
  layers: forbiddenSchema,
});
type Index = Pick<z.infer<typeof indexSchema>, 'manifests'>;

type Document = { kind: 'manifest'; manifest: Manifest } | { kind: 'index'; index: Index };

/** A manifest or index, with its digest. */
export interface Fetched {
  digest: string;
  document: Document;
}

export function digestOf(bytes: Buffer): string {
  return `sha256:${createHash('sha256').update(bytes).digest('hex')}`;
}

/**
 * Checks a parsed manifest or index. Only the parts that a pull needs are checked. `contentType` is the value of the header `Content-Type`.
 * `what` names the image in messages.
 *
 * @throws ReasonedError `ImageManifestInvalid` when the manifest or index cannot be used. The registry can give another one later.
 */
export function readManifest(content: unknown, contentType: string, what: string): Document {
  const body = `The manifest of ${what}`;
  const document = check(documentSchema, content, body, 'ImageManifestInvalid');
  const mediaType = mediaTypeOf(document, contentType, body);
  if (INDEXES.has(mediaType)) {
    return { kind: 'index', index: check(indexSchema, document, body, 'ImageManifestInvalid') };
  }
  if (!MANIFESTS.has(mediaType)) {
    throw new ReasonedError(
      'ImageSourceUnsupported',
      `${what} has the media type ${printable(mediaType)}, but Berth cannot read images of this type`,
    );
  }
  return { kind: 'manifest', manifest: check(manifestSchema, document, body, 'ImageManifestInvalid') };
}

/**
 * Checks that the descriptor of some content could be read. `what` names the image in messages.
 *
 * @throws ReasonedError `ImageManifestInvalid` when it could not be read.
 */
export function requireContent({ digest }: BlobReference, what: string): void {
  if (digest === '') {
    throw new ReasonedError(
      'ImageManifestInvalid',
      `The manifest of ${what} is invalid: a layer or configuration needs a sha256 digest and a size`,
    );
  }
}

const documentSchema = z.looseObject({
  mediaType: optionalText,
  config: z.unknown().optional(),
  manifests: z.unknown().optional(),
});

/**
 * Returns the media type of a manifest. Both the manifest itself and the header `Content-Type` can state this type. If they state different
 * types of manifests, the function refuses the manifest, because two programs could read it as two different images. If neither states a
 * type, the fields of the document tell it, as for older images of OCI.
 *
 * @throws ReasonedError `ImageManifestInvalid` when the types differ.
 */
function mediaTypeOf(document: z.infer<typeof documentSchema>, contentType: string, what: string): string {
  const header = essenceOf(contentType);
  const mediaType = essenceOf(document.mediaType ?? '');
  const isKnown = INDEXES.has(header) || MANIFESTS.has(header);
  if (mediaType === '' || mediaType === header) {
    return isKnown ? header : typeByFields(document, header);
  }
  if (!isKnown) {
    return mediaType;
  }
  throw new ReasonedError(
    'ImageManifestInvalid',
    `${what} states the media type ${printable(mediaType)}, but its registry states ${printable(header)}`,
  );
}

function typeByFields({ config, manifests }: z.infer<typeof documentSchema>, otherwise: string): string {
  if (Array.isArray(manifests)) {
    return OCI_INDEX;
  }
  return typeof config === 'object' && config !== null ? OCI_MANIFEST : otherwise;
}

/** Returns a media type in lower case and without parameters. */
function essenceOf(mediaType: string): string {
  return mediaType.split(';', 1).join('').trim().toLowerCase();
}

function isText(entry: [string, unknown]): entry is [string, string] {
  return typeof entry[1] === 'string';
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
    throw invalidJson(error, what, 'ImageInvalid');
  }
}

/** Returns a ReasonedError for a JsonError, and any other error as it is. `what` is the beginning of the message. */
export function invalidJson(error: unknown, what: string, reason: Reason): unknown {
  return error instanceof JsonError ? new ReasonedError(reason, `${what} ${error.message}`) : error;
}

function check<T>(schema: z.ZodType<T>, document: unknown, what: string, reason: Reason = 'ImageInvalid'): T {
  const result = schema.safeParse(document);
  if (result.success) {
    return result.data;
  }
  throw new ReasonedError(reason, `${what} ${mistakeIn(result.error)}`);
}

/** Returns the first mistake that a schema found, as one short line. In a message, the line follows the name of the document. */
function mistakeIn({ issues: [issue] }: z.ZodError): string {
  const place = printable(issue?.path.join('.') || 'the top level');
  return `is invalid at ${place}: ${printable(String(issue?.message))}`;
}

/** Makes untrusted text safe for a message. Returns one line of at most `length` printable ASCII characters. */
export function printable(text: string, length = 200): string {
  return text.replaceAll(/[^\x20-\x7e]+/g, ' ').slice(0, length);
}

/** Limits of an image's configuration. Configurations have some KiB. */
const CONFIG_LIMITS: JsonLimits = { bytes: 1024 * 1024, items: 16_384 };
const configSchema = z.object({ architecture: optionalText }).catch({ architecture: undefined });
/** Reasons of failures after which another image of the index can still be the right one. */
const USELESS: ReadonlySet<Reason> = new Set([
  'ImageNotFound',
  'ImageInvalid',
  'ImageManifestInvalid',
  'ImageSourceUnsupported',
  'DigestMismatch',
]);

const SYSTEMS = new Set(['linux', 'darwin']);

/** Images of an index, of which one is for an architecture. */
interface Candidates {
  /** Digests of the images. If there is more than one, their configurations decide. */
  digests: string[];
  /** Error if no configuration states the architecture. If it is undefined, the index gives no reason to doubt the images. */
  otherwise?: ReasonedError;
}

/**
 * Returns the images in an index that can be for `architecture`. Usually this is the one image whose platform fits. Images without a platform
 * are the last resort.
 *
 * @throws ReasonedError `ImageArchitectureMismatch` when the index has no such image.
 */
export function pick({ manifests }: Index, architecture: string, what: string): Candidates {
  const stated = manifests.filter(({ platform }) => isSystem(platform));
  const [found] = stated
    .filter(({ platform }) => normalizeArchitecture(platform?.architecture) === architecture)
    .toSorted((a, b) => Number(isSpecial(a)) - Number(isSpecial(b)));
  if (found !== undefined) {
    return { digests: [found.digest] };
  }
  const unstated = manifests.filter(({ platform: { architecture: any, os } = {} }) => {
    return any === undefined && (os === undefined || SYSTEMS.has(os));
  });
  const digests = unstated.slice(0, CANDIDATES_LIMIT).map(({ digest }) => digest);
  if (digests.length > 0 && stated.length === 0) {
    return { digests };
  }
  const there = stated.map(({ platform }) => `${platform?.os ?? 'linux'}/${platform?.architecture}`);
  const list = there.length === 0 ? 'systems other than linux and darwin' : printable(there.join(', '));
  const otherwise = new ReasonedError(
    'ImageArchitectureMismatch',
    `${what} has no image for ${architecture}; its images are for: ${list}`,
  );
  if (digests.length === 0) {
    throw otherwise;
  }
  return { digests, otherwise };
}

/**
 * Largest number of images without a platform whose configurations are read. Tools write one such image, or a few beside data. The limit
 * exists because each costs two requests.
 */
const CANDIDATES_LIMIT = 8;

/**
 * Returns whether a platform with an architecture is of a system that VMs run. An absent system counts as one. Other entries of an index,
 * such as attestations, are not images.
 */
function isSystem(platform: IndexEntry['platform']): boolean {
  return platform?.architecture !== undefined && (platform.os === undefined || SYSTEMS.has(platform.os));
}

/** Returns whether an image needs a newer processor than the first of its architecture, for example `amd64/v3`. */
function isSpecial({ platform: { architecture, variant } = {} }: IndexEntry): boolean {
  const plain = normalizeArchitecture(architecture) === 'arm64' ? 'v8' : 'v1';
  return variant !== undefined && variant !== plain;
}

/** Other names of architectures, which some tools write. */
const ARCHITECTURE_ALIASES: Readonly<Record<string, string>> = {
  x86_64: 'amd64',
  'x86-64': 'amd64',
  aarch64: 'arm64',
};

/** Returns the usual name of an architecture: `amd64` for `x86_64`, `arm64` for `aarch64`. Other names stay as they are. */
export function normalizeArchitecture<T extends string | undefined>(architecture: T): T | string {
  const name = architecture?.toLowerCase() ?? '';
  return ARCHITECTURE_ALIASES[name] ?? (['amd64', 'arm64'].includes(name) ? name : architecture);
}

interface Reader {
  manifest: (digest: string) => Promise<Fetched>;
  blob: (blob: BlobReference, limitBytes: number) => Promise<Buffer>;
}

/**
 * Returns the manifest whose configuration states the architecture. If none states it and no image of the index has a platform, returns the
 * first that states no architecture, and otherwise the first of all. The plan of its pull then tells what is wrong with it. A single image
 * is returned without a look at its configuration.
 *
 * @throws ReasonedError when the manifest cannot be fetched, or `otherwise` when no image fits.
 */
export async function choose(
  reader: Reader,
  { digests, otherwise }: Candidates,
  architecture: string,
): Promise<Fetched> {
  const [first = ''] = digests;
  if (digests.length === 1 && otherwise === undefined) {
    return await reader.manifest(first);
  }
  const { exact, unsaid } = await search(reader, digests, architecture);
  if (exact !== undefined) {
    return exact;
  }
  if (otherwise !== undefined) {
    throw otherwise;
  }
  return unsaid ?? (await reader.manifest(first));
}

/** Returns the first manifest whose configuration states the architecture, or else the first that states none. */
async function search(
  reader: Reader,
  digests: readonly string[],
  architecture: string,
): Promise<{ exact?: Fetched; unsaid: Fetched | undefined }> {
  let unsaid: Fetched | undefined;
  for (const digest of digests) {
    const fetched = await unlessUseless(() => reader.manifest(digest));
    const stated = fetched && (await unlessUseless(() => readArchitecture(reader, fetched)));
    if (fetched !== undefined && stated === architecture) {
      return { exact: fetched, unsaid };
    }
    unsaid ??= stated === '' ? fetched : undefined;
  }
  return { unsaid };
}

/** Returns the architecture in the configuration of a manifest, or an empty text if it states none. */
async function readArchitecture(reader: Reader, { document }: Fetched): Promise<string> {
  if (document.kind === 'index') {
    return '';
  }
  const bytes = await reader.blob(document.manifest.config, CONFIG_LIMITS.bytes);
  const config = readDocument(configSchema, bytes, CONFIG_LIMITS, 'The configuration of the image');
  return normalizeArchitecture(config.architecture) ?? '';
}

async function unlessUseless<T>(work: () => Promise<T>): Promise<T | undefined> {
  try {
    return await work();
  } catch (error) {
    if (error instanceof ReasonedError && USELESS.has(error.reason)) {
      return undefined;
    }
    throw error;
  }
}
