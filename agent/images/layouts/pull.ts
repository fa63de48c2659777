/** How the disk of an image is pulled from a registry: the terms that all published layouts share, one file for each. */
import { machineSchema } from '../../../api/v1alpha1/machine.ts';
import { ReasonedError } from '../../../api/v1alpha1/reasons.ts';
import { codeOf, isDiskFull } from '../../../base/errors.ts';
import { DiskError } from '../../disks/disk.ts';
import { printable } from '../oci/manifests.ts';
import type { Repository, ResolvedManifest } from '../oci/types.ts';

/**
 * A folder of its own for what is being fetched; the same again after a kill, so that work can be taken up. It is emptied
 * when what lies in it was begun for another manifest. What the work is at is in its file `journal`, which may be
 * removed once the disk has been taken out of the folder; beside the disk a layout may leave more (`chunks.json`, `nvram.bin`).
 */
export interface PullTarget {
  folder: string;
  /** Where the finished disk goes: raw (sparse) or qcow2, below `folder`. It is there only when it is whole and verified. */
  disk: string;
}

export interface PullPlan {
  /** Bytes to move over the network, of all layers. */
  downloadBytes: number;
  /**
   * Room that the disk will need at most, in bytes, together with what lies beside it on the way. Where a layout does not say
   * how large its disk is, the least that can be expected; the disk may then be full on the way.
   */
  roomBytes: number;
  /**
   * Makes `target.disk`, verified. Taken up again where an earlier call was cut; returns at once when that came to its end.
   *
   * @throws ReasonedError; a disk that is full is `DiskFull`.
   */
  run(target: PullTarget, options: PullOptions): Promise<void>;
}

export interface PullOptions {
  signal: AbortSignal;
  /** Downloaded since the last call. */
  onBytes: (count: number) => void;
  /** Called with the part of `downloadBytes` that need not be downloaded: an earlier call did it, or this host has it, or it is all zeros. */
  onSpared?: (count: number) => void;
  lookup?: ContentLookup | undefined;
}

/** Where on this host the same content lies: tried instead of fetching it, and verified like what is fetched. */
export type ContentLookup = (
  /** `sha256:<hex>` of the content as it is on the disk. */
  rawDigest: string,
  /** Where it goes on the disk, in bytes. */
  offset: number,
  length: number,
) => { path: string; offset: number } | undefined;

/**
 * Undefined when the manifest is not of this layout.
 *
 * @throws ReasonedError when it is and breaks its rules, or when the image is for another architecture than was asked for.
 */
export type PlanPull = (
  repository: Repository,
  resolved: ResolvedManifest,
  signal: AbortSignal,
) => Promise<PullPlan | undefined>;

/** Architectures that a VM can have. */
const ARCHITECTURES: ReadonlySet<string> = new Set(machineSchema.shape.architecture.unwrap().options);
/** Architectures that tools for images write when nobody told them one. */
const UNSAID: ReadonlySet<string> = new Set(['', 'unknown']);

/**
 * Refuses an image for another architecture than the machine's before its disk is fetched: it would never boot.
 *
 * `said`: the architecture that the image names, as in an OCI configuration; undefined when it names none, which fits every machine.
 * @throws ReasonedError `ImageArchitectureMismatch` with both architectures.
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

/** A failure of this host's disk, or of the disk that was fetched, as a ReasonedError; any other failure as it is. `what` is for people. */
export function asReasonedError(error: unknown, what: string): unknown {
  if (error instanceof DiskError) {
    const reason = error.kind === 'invalid' ? 'ImageInvalid' : 'ImageSourceUnsupported';
    return new ReasonedError(reason, error.message, { cause: error });
  }
  // EFBIG: larger than the file system takes a file to be.
  return isDiskFull(error) || codeOf(error) === 'EFBIG'
    ? new ReasonedError('DiskFull', `no room for ${what}`, { cause: error })
    : error;
}
