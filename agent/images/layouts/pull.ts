/**
 * Types and functions for the pull of an image's disk from a registry. All layouts of published disks use them. The code of each layout is
 * in a file of its own.
 */
import type { Hash } from 'node:crypto';
import { join } from 'node:path';
import { VM_FIELDS } from '../../../api/v1alpha1/fields.ts';
import { ReasonedError } from '../../../api/v1alpha1/reasons.ts';
import type { ImageMemory } from '../../../api/v1alpha1/task.ts';
import { codeOf, isDiskFull } from '../../../base/errors.ts';
import { DiskError, type MemoryFiles } from '../../disks/disk.ts';
import {
  type BlobReference,
  normalizeArchitecture,
  printable,
  type ResolvedManifest,
} from '../oci/manifests.ts';
import type { Repository } from '../oci/repository.ts';

/** Names of the files with the memory of an image, in the folder of its disk. */
export const MEMORY_FILES = { ram: 'ram', state: 'state' } as const;

/** Returns the paths of the files with the memory of an image. `folder` is the folder of its disk. */
export function memoryIn(folder: string): Pick<MemoryFiles, 'ram' | 'state'> {
  return { ram: join(folder, MEMORY_FILES.ram), state: join(folder, MEMORY_FILES.state) };
}

/**
 * The folder into which an image is fetched. If the agent is killed, the next fetch of the same image uses the same folder and continues
 * the work there. If the content of the folder belongs to another manifest, the folder is emptied. The file `journal` in the folder records
 * the progress. This file may be removed after the disk was moved out of the folder. A layout can leave other files beside the disk
 * (`chunks.json`, those of `TART_FILES`, and the files of {@link memoryIn}).
 */
export interface PullTarget {
  folder: string;
  /** Path of the finished disk below `folder`, raw (sparse) or qcow2. The file exists only when it is complete and verified. */
  disk: string;
}

export interface PullPlan {
  /** Memory of the image. Absent if the image has only a disk. `run` fetches it only if the plan was made with {@link PullParts}. */
  memory?: ImageMemory;
  /** Total size in bytes of the layers to download. */
  downloadBytes: number;
  /**
   * Number of bytes that the disk and its temporary files need on the host. If the layout states the size of the disk, the number is an
   * upper limit. Otherwise the pull can need more bytes than this, and the host's file system can become full during the pull.
   */
  roomBytes: number;
  /**
   * Fetches and verifies `target.disk`. Continues the work of an interrupted call. Does nothing when an earlier call has finished.
   *
   * @throws ReasonedError, or an error about the host's disk or the fetched disk. {@link asReasonedError} converts an error about a disk to
   * a ReasonedError.
   */
  run(target: PullTarget, options: PullOptions): Promise<void>;
}

export interface PullOptions {
  signal: AbortSignal;
  /** Called with the number of bytes downloaded since the last call. */
  onBytes: (count: number) => void;
  /**
   * Called with a number of bytes that need not be downloaded, because an earlier call of `run` downloaded them, or because this host
   * already has their content. These bytes are included in `downloadBytes`.
   */
  onSpared?: (count: number) => void;
  lookup?: ContentLookup | undefined;
}

/**
 * Searches this host for content that a pull needs. The pull copies this content instead of downloading it, and verifies it like a
 * download. Returns the file and the content's offset in bytes, or undefined if the host does not have the content.
 */
export type ContentLookup = (content: {
  /** Digest of the needed content without compression: `sha256:<hex>`. */
  rawDigest: string;
  length: number;
}) => { path: string; offset: number } | undefined;

/** Parts of an image that a pull fetches besides its disk. */
export interface PullParts {
  /** Whether to fetch the memory of the image, if it has memory, into the files of {@link memoryIn}. */
  withMemory: boolean;
}

/**
 * Plans the pull of a manifest. Returns undefined when the manifest does not have this layout.
 *
 * @throws ReasonedError when the manifest breaks a rule of this layout, or the image is for another architecture than
 * requested.
 */
export type PlanPull = (
  repository: Repository,
  resolved: ResolvedManifest,
  signal: AbortSignal,
  parts?: PullParts,
) => Promise<PullPlan | undefined>;

/** Architectures that a VM can have. */
const ARCHITECTURES: ReadonlySet<string> = new Set(VM_FIELDS.architecture.values);
/** Values that tools for images write when no architecture was specified. */
const UNSAID: ReadonlySet<string> = new Set(['', 'unknown']);

/**
 * Refuses an image whose architecture differs from the machine's, because the machine would never boot. Callers use this function before
 * they fetch the disk. `name` is the name of the image in messages. `stated` is the architecture that the image states, as in an OCI
 * configuration. If `stated` is undefined, the image fits every machine. If `wanted` is undefined, the function checks nothing.
 *
 * @throws ReasonedError `ImageArchitectureMismatch` with both architectures when the two differ.
 */
export function checkArchitecture(
  name: string,
  stated: string | undefined,
  wanted: ResolvedManifest['architecture'],
): void {
  const said = normalizeArchitecture(stated);
  if (wanted === undefined || said === undefined || UNSAID.has(said) || said === wanted) {
    return;
  }
  const found = printable(said);
  const advice = ARCHITECTURES.has(said) ? `, or set the architecture to ${found}` : '';
  throw new ReasonedError(
    'ImageArchitectureMismatch',
    `${name} is an image for ${found}, and the machine is ${wanted}: use an image for ${wanted}${advice}`,
  );
}

/**
 * Converts an error about this host's disk or the fetched disk to a ReasonedError. Returns any other error unchanged. `what` is the name of
 * the image in messages.
 */
export function asReasonedError(error: unknown, what: string): unknown {
  if (error instanceof DiskError) {
    const reason = error.kind === 'invalid' ? 'ImageInvalid' : 'ImageSourceUnsupported';
    return new ReasonedError(reason, error.message, { cause: error });
  }
  // EFBIG means that the file is larger than the file system allows.
  return isDiskFull(error) || codeOf(error) === 'EFBIG'
    ? new ReasonedError('DiskFull', `This host has too little disk space for ${what}`, { cause: error })
    : error;
}

/** A blob of a repository. */
export interface BlobSource {
  repository: Repository;
  blob: BlobReference;
}

/** Checks the hash of a fetched blob. @throws ReasonedError `DigestMismatch` when the content is not that of the blob's digest. */
export function checkDigest({ repository, blob }: BlobSource, hash: Hash): void {
  const found = `sha256:${hash.digest('hex')}`;
  if (found === blob.digest) {
    return;
  }
  throw new ReasonedError(
    'DigestMismatch',
    `${repository.name} sent wrong content for ${blob.digest}: the digest of the content is ${found}`,
  );
}
