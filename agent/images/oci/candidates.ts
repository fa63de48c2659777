/** Chooses the image for an architecture among the images of an index. */
import * as z from 'zod';
import { type Reason, ReasonedError } from '../../../api/v1alpha1/reasons.ts';
import type { JsonLimits } from '../../../base/json.ts';
import { optionalText } from './lenient.ts';
import {
  type BlobReference,
  type Fetched,
  type Index,
  type IndexEntry,
  printable,
  readDocument,
} from './manifests.ts';

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
export interface Candidates {
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
    const stated = fetched && (await unlessUseless(() => architectureOf(reader, fetched)));
    if (fetched !== undefined && stated === architecture) {
      return { exact: fetched, unsaid };
    }
    unsaid ??= stated === '' ? fetched : undefined;
  }
  return { unsaid };
}

/** Returns the architecture in the configuration of a manifest, or an empty text if it states none. */
async function architectureOf(reader: Reader, { document }: Fetched): Promise<string> {
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
