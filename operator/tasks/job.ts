/** Builds Jobs for tasks, and reads the task of a Job. A task is work on an image. The Pod of the Job does this work on a host. */
import {
  NAT_TAINT,
  SLOT_RESOURCE,
  TASK_ANNOTATION,
  TASK_CONTAINER,
  WORKLOAD_LABEL,
} from '../../api/v1alpha1/names.ts';
import { formatMillis, formatQuantity } from '../../api/v1alpha1/quantity.ts';
import { registryReference } from '../../api/v1alpha1/source.ts';
import { type Task, TASK_CPU_MILLIS, TASK_MEMORY_BYTES, taskSchema } from '../../api/v1alpha1/task.ts';
import type { Job, PodSpec, Toleration } from '../../kube/core.ts';
import type { ObjectMeta, Unsaved } from '../../kube/objects.ts';
import { Documents } from '../objects/documents.ts';
import { hostPodSpec, type Placement } from './placement.ts';

/**
 * Time in seconds for which an ended Job stays if only the Job contains the result and no operator runs. A running operator deletes the Job
 * itself. A week is longer than an outage that nobody notices, for example over holidays.
 */
export const UNREAD_JOB_SECONDS = 7 * 24 * 3_600;

export interface TaskJobOptions {
  readonly metadata: Partial<ObjectMeta>;
  readonly workload: 'cache' | 'image';
  readonly task: Task;
  /**
   * Name of an image that the Pod states as the image of its container. People see this name, and the scheduler prefers hosts that have the
   * image.
   */
  readonly containerImage: string;
  readonly pullSecrets: readonly string[];
  /** Annotations of the Pod in addition to the annotation with the task. */
  readonly annotations?: Readonly<Record<string, string>>;
  readonly placement: Placement;
  /** Whether the task uses one of the host's slots for machines. */
  readonly takesSlot: boolean;
  /** Memory in bytes of a machine that runs during the task. The Pod waits until its host has this memory. */
  readonly machineBytes?: bigint | undefined;
  /** States of a host in which the task can begin nevertheless. */
  readonly tolerates?: readonly (keyof typeof TAINTS)[];
  readonly activeDeadlineSeconds: number;
  readonly ttlSecondsAfterFinished: number;
  readonly priorityClassName: string;
}

/**
 * Returns a Job with one Pod. By default, Kubernetes does not retry the Job, because the operator decides about retries. The caller can set
 * another `backoffLimit`.
 */
export function taskJob(options: TaskJobOptions): Unsaved<Job> {
  const { metadata, workload, task, annotations, activeDeadlineSeconds, ttlSecondsAfterFinished } = options;
  const labels = { ...metadata.labels, [WORKLOAD_LABEL]: workload };
  return {
    metadata: { ...metadata, labels },
    spec: {
      backoffLimit: 0,
      activeDeadlineSeconds,
      ttlSecondsAfterFinished,
      template: {
        metadata: { labels, annotations: { ...annotations, [TASK_ANNOTATION]: JSON.stringify(task) } },
        spec: podSpec(options),
      },
    },
  };
}

/** Toleration for hosts whose NAT for guests is broken. Such a host can fetch and remove images, because it needs no NAT for this work. */
const BROKEN_NAT: Toleration = { key: NAT_TAINT, operator: 'Exists', effect: 'NoSchedule' };

/** Keys of the taints that Kubernetes sets on a Node that is cordoned, or that has the condition DiskPressure. */
const TAINTS = {
  cordon: 'node.kubernetes.io/unschedulable',
  fullDisk: 'node.kubernetes.io/disk-pressure',
} as const;

function podSpec(options: TaskJobOptions): PodSpec {
  const { containerImage, pullSecrets, placement, tolerates = [], takesSlot, priorityClassName } = options;
  const { machineBytes = 0n } = options;
  const resources = {
    cpu: formatMillis(TASK_CPU_MILLIS),
    memory: formatQuantity(BigInt(TASK_MEMORY_BYTES) + machineBytes),
    ...(takesSlot && { [SLOT_RESOURCE]: '1' }),
  };
  return {
    ...hostPodSpec({
      placement,
      tolerations: [
        BROKEN_NAT,
        ...tolerates.map(
          (state) => ({ key: TAINTS[state], operator: 'Exists', effect: 'NoSchedule' }) as const,
        ),
      ],
      pullSecrets: pullSecrets.map((name) => ({ name })),
      priorityClassName,
    }),
    containers: [
      {
        name: TASK_CONTAINER,
        image: containerImage,
        imagePullPolicy: 'IfNotPresent',
        resources: { requests: resources, limits: resources },
      },
    ],
  };
}

const tasks = new Documents(taskSchema);

/** Returns the task that a Job was created for. The result is undefined if the task cannot be read. */
export function taskOf(job: Job): Task | undefined {
  return tasks.in(job.spec.template.metadata?.annotations?.[TASK_ANNOTATION]);
}

/** Returns the image references in a task. A host might need credentials for the registries of these references. */
export function referencesOf(task: Task): string[] {
  const source = 'image' in task ? registryReference(task.image.source) : undefined;
  const target = task.type === 'push' ? task.reference : undefined;
  return [source, target].filter((reference) => reference !== undefined);
}
