/** All that one look at the world says about an ImageCacheEntry. The whole plan is a pure function of this. */
import type { ImageCacheEntry } from '../../api/v1alpha1/imagecacheentry.ts';
import type { TaskImage } from '../../api/v1alpha1/task.ts';
import type { OperatorConfig } from '../config/config.ts';
import type { TaskOutcome } from '../tasks/outcome.ts';

export type TaskType = 'cache' | 'uncache';

export interface Host {
  readonly name: string;
  readonly tags: ReadonlySet<string>;
  /** Since when its Node is not Ready, in milliseconds; undefined when it answers. */
  readonly notReadySince: number | undefined;
  readonly isCordoned: boolean;
  /** Names under which it lists its images, one list for each image. */
  readonly images: readonly (readonly string[])[];
}

export interface CacheJob {
  readonly name: string;
  readonly uid: string;
  readonly host: string;
  readonly type: TaskType;
  /** Milliseconds. */
  readonly createdAt: number;
  /** Which attempt the Job was made for: see `attemptKey`. */
  readonly attempt: string;
  /** Left behind for a host that is lost, to clean it when it comes back. */
  readonly isParked: boolean;
  readonly isScheduled: boolean;
  readonly outcome: TaskOutcome;
}

/** The image as hosts are told of it and list it. */
export interface CachedImage {
  readonly task: TaskImage;
  readonly containerImage: string;
  /** A host has the image when it lists one of these. */
  readonly names: readonly string[];
  /** The digest in the image's name; undefined for a tag. */
  readonly digest: string | undefined;
}

export interface WaitingForImage {
  readonly reason: 'ImageNotFound' | 'ImageNotReady';
  readonly message: string;
}

export interface Observed {
  readonly entry: ImageCacheEntry;
  /** The one spelling of the image's name: entries that have it in common are for the same image. */
  readonly reference: string;
  readonly image: CachedImage | WaitingForImage;
  /** The entry that was there first for this image. */
  readonly duplicateOf: string | undefined;
  readonly hosts: ReadonlyMap<string, Host>;
  /** Slots for machines that are free, as far as is known. */
  readonly freeSlots: (host: string) => number;
  readonly jobs: readonly CacheJob[];
  /** Hosts on which a Pod is still ending whose Job is gone. */
  readonly lingering: ReadonlySet<string>;
  readonly config: OperatorConfig;
  /** Milliseconds since the epoch. */
  readonly now: number;
}

export function isCached(image: Observed['image']): image is CachedImage {
  return 'task' in image;
}

export function iso(milliseconds: number): string {
  return new Date(milliseconds).toISOString();
}
