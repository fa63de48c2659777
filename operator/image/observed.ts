/** What one look at an Image or ISO sees. */
import type { Image } from '../../api/v1alpha1/image.ts';
import type { ISO } from '../../api/v1alpha1/iso.ts';
import type { VM } from '../../api/v1alpha1/vm.ts';
import type { Job } from '../../kube/job.ts';
import type { OperatorConfig } from '../config/config.ts';
import type { TaskOutcome } from '../tasks/job.ts';

/** A Job of the image, as its labels and annotations tell it, and how it stands. */
export interface ImageJob {
  readonly job: Job;
  readonly operation: string;
  readonly requestedAt: string | undefined;
  readonly attempt: number;
  readonly outcome: TaskOutcome;
}

export interface ObservedImage {
  readonly object: Image | ISO;
  readonly kind: 'Image' | 'ISO';
  readonly jobs: readonly ImageJob[];
  /** The object of the same kind that this one is a copy of. */
  readonly origin: Image | ISO | undefined;
  readonly vm: (name: string) => VM | undefined;
  /** VMs that a host is just being prepared for with this image: names. */
  readonly deploying: readonly string[];
  readonly config: OperatorConfig;
  /** Milliseconds since the epoch. */
  readonly now: number;
}
