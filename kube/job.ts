/** Jobs, with only the fields that Berth uses. */
import { type KubeObject, namespaced, type ObjectMeta } from './objects.ts';
import type { LooseCondition, PodSpec } from './pod.ts';

export interface JobSpec {
  template: { metadata?: Partial<ObjectMeta>; spec: PodSpec };
  backoffLimit?: number;
  activeDeadlineSeconds?: number;
  ttlSecondsAfterFinished?: number;
  /** The Job controller creates no Pod while this is true. */
  suspend?: boolean;
}

export interface Job extends KubeObject {
  spec: JobSpec;
  status?: {
    startTime?: string;
    active?: number;
    succeeded?: number;
    failed?: number;
    conditions?: LooseCondition[];
  };
}

export const JOBS = namespaced<Job>('batch/v1', 'Job', 'jobs');
