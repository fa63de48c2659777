/** Types of the state that one reconcile of an ImageCacheEntry observes. The whole plan is a pure function of this state. */
import type { ImageCacheEntry } from '../../api/v1alpha1/imagecacheentry.ts';
import type { RegistryCredential } from '../../api/v1alpha1/registrycredentials.ts';
import type { TaskImage } from '../../api/v1alpha1/task.ts';
import type { OperatorConfig } from '../config/config.ts';
import type { TaskOutcome } from '../tasks/outcome.ts';

export type TaskType = 'cache' | 'uncache';

export interface ObservedHost {
  readonly name: string;
  readonly tags: ReadonlySet<string>;
  /** Time when the host's Node stopped being Ready, in milliseconds since the epoch. It is undefined while the Node is Ready. */
  readonly notReadySince: number | undefined;
  readonly isCordoned: boolean;
  /** Whether VMs of the entry's namespace can run on the host. */
  readonly isUsable: boolean;
  /** Namespace that the host is dedicated to. */
  readonly dedicatedTo: string | undefined;
  /** Digests under which the host lists its images: one list for each image. */
  readonly images: readonly (readonly string[])[];
}

export interface CacheJob {
  readonly name: string;
  readonly namespace: string;
  readonly uid: string;
  readonly host: string;
  readonly type: TaskType;
  /** Time of creation in milliseconds since the epoch. */
  readonly createdAt: number;
  /** Key of the attempt for which the Job was created: see `attemptKey`. */
  readonly attempt: string;
  /** Whether the Job waits for a lost host. The Job removes the image when the host returns. */
  readonly isParked: boolean;
  readonly isScheduled: boolean;
  /** Reason why the Job cannot run on the host yet: the scheduler's explanation, translated for people. */
  readonly obstacle: string | undefined;
  readonly outcome: TaskOutcome;
}

/** Image of an entry. */
export interface CachedImage {
  readonly task: TaskImage;
  readonly containerImage: string;
  /** Digest in the image's name, or of an Image object's content. It is undefined if the name contains no digest. */
  readonly digest: string | undefined;
}

export interface WaitingForImage {
  readonly reason: 'ImageNotFound' | 'ImageNotReady' | 'ImageSourceUnsupported';
  readonly message: string;
}

export interface ObservedEntry {
  readonly entry: ImageCacheEntry;
  /** Namespace of the entry's Jobs: that of the entry, or the system namespace while the entry's namespace is being deleted. */
  readonly jobNamespace: string;
  /** Normalized name of the image. Entries with the same normalized name are for the same image. */
  readonly reference: string;
  readonly image: CachedImage | WaitingForImage;
  /** If this entry is a duplicate: name of the other entry for which hosts keep the same image. Otherwise undefined. */
  readonly duplicateOf: string | undefined;
  readonly hosts: ReadonlyMap<string, ObservedHost>;
  /** Returns the number of free slots for machines on a host, according to the caches. */
  readonly freeSlots: (host: string) => number;
  readonly jobs: readonly CacheJob[];
  /** Credentials of the entry's namespace for registries. They are not in a cache. The operator reads them when it must create a Job. */
  readonly credentials: readonly RegistryCredential[];
  /** Names of hosts on which a Pod is still ending after its Job was deleted. */
  readonly lingering: ReadonlySet<string>;
  readonly config: OperatorConfig;
  /** Current time in milliseconds since the epoch. */
  readonly now: number;
}

export function isCached(image: ObservedEntry['image']): image is CachedImage {
  return 'task' in image;
}
