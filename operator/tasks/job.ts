/** Jobs whose Pods do tasks on hosts, whichever controller asks for them. */
import { parseDocument } from '../../api/v1alpha1/machine.ts';
import {
  NAT_TAINT,
  SLOT_RESOURCE,
  TASK_ANNOTATION,
  TASK_CONTAINER,
  WORKLOAD_LABEL,
} from '../../api/v1alpha1/names.ts';
import { type Task, taskSchema } from '../../api/v1alpha1/task.ts';
import type { PodSpec, Toleration } from '../../kube/core.ts';
import type { Job } from '../../kube/job.ts';
import type { ObjectMeta, Unsaved } from '../../kube/objects.ts';
import { hostPodSpec, type Placement } from './placement.ts';

export interface TaskJobOptions {
  readonly metadata: Partial<ObjectMeta>;
  readonly workload: 'cache' | 'image';
  readonly task: Task;
  /** For people, and for the scheduler's preference of hosts that have it. */
  readonly containerImage: string;
  readonly pullSecrets: readonly string[];
  readonly placement: Placement;
  /** Whether the task takes one of the host's slots for machines. */
  readonly takesSlot: boolean;
  readonly activeDeadlineSeconds: number;
  readonly ttlSecondsAfterFinished: number;
  readonly priorityClassName: string;
}

/** A Job with one Pod that is never tried again by itself: retries are the operator's. */
export function taskJob(options: TaskJobOptions): Unsaved<Job> {
  const { metadata, workload, task, activeDeadlineSeconds, ttlSecondsAfterFinished } = options;
  const labels = { ...metadata.labels, [WORKLOAD_LABEL]: workload };
  return {
    metadata: { ...metadata, labels },
    spec: {
      backoffLimit: 0,
      activeDeadlineSeconds,
      ttlSecondsAfterFinished,
      template: {
        metadata: { labels, annotations: { [TASK_ANNOTATION]: JSON.stringify(task) } },
        spec: podSpec(options),
      },
    },
  };
}

/** Images go by the host's own network: a host with broken NAT fetches them, and lets go of them. */
const BROKEN_NAT: Toleration = { key: NAT_TAINT, operator: 'Exists', effect: 'NoSchedule' };

function podSpec(options: TaskJobOptions): PodSpec {
  const { containerImage, pullSecrets, placement, takesSlot, priorityClassName } = options;
  const slot = { [SLOT_RESOURCE]: '1' };
  return {
    ...hostPodSpec({
      placement,
      tolerations: [BROKEN_NAT],
      pullSecrets: pullSecrets.map((name) => ({ name })),
      priorityClassName,
    }),
    containers: [
      {
        name: TASK_CONTAINER,
        image: containerImage,
        imagePullPolicy: 'IfNotPresent',
        ...(takesSlot && { resources: { requests: slot, limits: slot } }),
      },
    ],
  };
}

/** A task is asked for at each look, and a Job of the cache never changes. */
const tasks = new WeakMap<Job, { readonly task: Task | undefined }>();

/** The task that a Job was made for; undefined when it cannot be read. */
export function taskOf(job: Job): Task | undefined {
  const known = tasks.get(job);
  if (known !== undefined) {
    return known.task;
  }
  const text = job.spec.template.metadata?.annotations?.[TASK_ANNOTATION];
  const task = taskSchema.safeParse(parseDocument(text)).data;
  tasks.set(job, { task });
  return task;
}
