/** What is to be done about one host. */
import type { NodeCacheState } from '../../api/v1alpha1/imagecacheentry.ts';
import type { TaskType } from './names.ts';
import type { CacheJob, Host, Observed } from './observed.ts';
import type { Result } from './attempt.ts';

export interface HostContext {
  readonly observed: Observed;
  readonly host: Host;
  /** As the status has it. */
  readonly row: NodeCacheState | undefined;
  readonly isHeld: boolean;
  readonly jobs: readonly CacheJob[];
  /** Digest that it should have, where that is known. */
  readonly digest: string | undefined;
  /** A newer image is asked for, and this is the first look since. */
  readonly refreshBegins: boolean;
}

export interface Decision {
  /** Its row in the status; undefined when it has the image, or is none of the entry's hosts. */
  readonly row: NodeCacheState | undefined;
  readonly isHeld: boolean;
  readonly deletes: readonly CacheJob[];
  /** May begin as soon as it has its turn; `isParked` without waiting for one. */
  readonly start?: { readonly type: TaskType; readonly isParked: boolean };
  readonly ended?: { readonly type: TaskType; readonly result: Result };
  /** When to look again, in milliseconds since the epoch. */
  readonly wakeAt?: number | undefined;
}

/** Why nothing can begin on the host; undefined when it can. */
export function obstacle({ host, observed }: HostContext): string | undefined {
  if (host.notReadySince !== undefined) {
    return 'the host is not Ready';
  }
  if (host.isCordoned) {
    return 'the host is cordoned';
  }
  return observed.lingering.has(host.name) ? 'the Pod of an earlier job is still ending' : undefined;
}
