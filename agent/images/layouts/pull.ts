/**
 * Types and functions that all published layouts share to pull the disk of an image from a registry. Each layout has a file of
 * its own.
 */
import { machineSchema } from '../../../api/v1alpha1/machine.ts';
import { ReasonedError } from '../../../api/v1alpha1/reasons.ts';
import { codeOf, isDiskFull } from '../../../base/errors.ts';
import { DiskError } from '../../disks/disk.ts';
import { printable } from '../oci/manifests.ts';
import type { Repository, ResolvedManifest } from '../oci/types.ts';

/**
 * The folder in which an image is fetched. The same image gets the same folder after a kill, so that its fetch can continue.
 * The folder is emptied when its content belongs to another manifest. Its file `journal` records the progress, and may be
 * removed after the disk was moved out of the folder. Beside the disk, a layout may leave other files (`chunks.json`,
 * `nvram.bin`).
 */
export interface PullTarget {
  folder: string;
  /** Path of the finished disk below `folder`, raw (sparse) or qcow2. The file exists only when it is complete and verified. */
  disk: string;
}

export interface PullPlan {
  /** Bytes to download, of all layers. */
  downloadBytes: number;
  /**
   * Most bytes that the disk and the temporary files beside it need. If the layout does not state the size of the disk, this
   * is the smallest number that can be expected. The host's disk may then become full during the pull.
   */
  roomBytes: number;
  /**
   * Fetches and verifies `target.disk`. Continues the work of an interrupted call, and does nothing when an earlier call has
   * finished.
   *
   * @throws ReasonedError, or an error of the host's disk or of the fetched disk, which {@link asReasonedError} translates.
   */
  run(target: PullTarget, options: PullOptions): Promise<void>;
}

export interface PullOptions {
  signal: AbortSignal;
  /** Called with the number of bytes downloaded since the last call. */
  onBytes: (count: number) => void;
  /**
   * Called with a number of bytes of `downloadBytes` that need not be downloaded: an earlier call downloaded them, or this
   * host has their content.
   */
  onSpared?: (count: number) => void;
  lookup?: ContentLookup | undefined;
}

/** Finds the same content on this host. The content found is used instead of a download, and verified like a download. */
export type ContentLookup = (
  /** Digest of the content as it is on the disk: `sha256:<hex>`. */
  rawDigest: string,
  /** Position of the content on the disk, in bytes. */
  offset: number,
  length: number,
) => { path: string; offset: number } | undefined;

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
) => Promise<PullPlan | undefined>;

/** Architectures that a VM can have. */
const ARCHITECTURES: ReadonlySet<string> = new Set(machineSchema.shape.architecture.unwrap().options);
/** Values that tools for images write when no architecture was specified. */
const UNSAID: ReadonlySet<string> = new Set(['', 'unknown']);

/**
 * Refuses an image for another architecture than the machine's before its disk is fetched, because the machine would never
 * boot. `said` is the architecture that the image names, as in an OCI configuration. An image that names none (undefined) fits
 * every machine.
 *
 * @throws ReasonedError `ImageArchitectureMismatch` with both architectures when they differ.
 */
export function checkArchitecture(
  name: string,
  said: string | undefined,
  wanted: ResolvedManifest['architecture'],
): void {
  if (wanted === undefined || said === undefined || UNSAID.has(said) || said === wanted) {
    return;
  }
  const found = printable(said);
  const advice = ARCHITECTURES.has(said) ? `, or set the architecture ${found}` : '';
  throw new ReasonedError(
    'ImageArchitectureMismatch',
    `${name} is an image for ${found}, and the machine is ${wanted}: use an image for ${wanted}${advice}`,
  );
}

/**
 * Returns a failure of this host's disk or of the fetched disk as ReasonedError, and any other failure unchanged. `what` names
 * the image in messages.
 */
export function asReasonedError(error: unknown, what: string): unknown {
  if (error instanceof DiskError) {
    const reason = error.kind === 'invalid' ? 'ImageInvalid' : 'ImageSourceUnsupported';
    return new ReasonedError(reason, error.message, { cause: error });
  }
  // EFBIG means that the file is larger than the file system allows.
  return isDiskFull(error) || codeOf(error) === 'EFBIG'
    ? new ReasonedError('DiskFull', `This host has no room for ${what}`, { cause: error })
    : error;
}
