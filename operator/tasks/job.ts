/** Jobs whose Pods do tasks on hosts, whichever controller asks for them. */
import {
  DEDICATED_KEY,
  HOST_KEY,
  HOST_MARK,
  HOST_VALUE,
  NAT_TAINT,
  SLOT_RESOURCE,
  TASK_ANNOTATION,
  TASK_CONTAINER,
  WORKLOAD_LABEL,
} from '../../api/v1alpha1/names.ts';
import { type Task, type TaskReport, taskReportSchema } from '../../api/v1alpha1/task.ts';
import { parseDocument } from '../../api/v1alpha1/machine.ts';
import { TASK_CONDITION } from '../../api/v1alpha1/names.ts';
import { type Reason, type SaidReason, saidReason } from '../../api/v1alpha1/reasons.ts';
import type { Job } from '../../kube/job.ts';
import type { ObjectMeta, Unsaved } from '../../kube/objects.ts';
import type { NodeAffinity, NodeSelectorRequirement, Pod, PodSpec, Toleration } from '../../kube/core.ts';

export interface TaskJobOptions {
  readonly metadata: Partial<ObjectMeta>;
  readonly workload: 'cache' | 'image';
  readonly task: Task;
  /** For people, and for the scheduler's preference of hosts that have it. */
  readonly containerImage: string;
  readonly pullSecrets: readonly string[];
  /** The one host that can do it; any when absent. */
  readonly nodeName: string | undefined;
  /** Of the hosts that may do it, where that matters. */
  readonly architecture?: 'amd64' | 'arm64' | undefined;
  /** Dedicated hosts that may do it: those of this namespace, of every one (`*`). */
  readonly dedicatedTo: string;
  /** Whether the task takes one of the host's places for machines. */
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

function podSpec(options: TaskJobOptions): PodSpec {
  const { containerImage, pullSecrets, takesSlot, priorityClassName } = options;
  const slot = { [SLOT_RESOURCE]: '1' };
  return {
    restartPolicy: 'Never',
    automountServiceAccountToken: false,
    enableServiceLinks: false,
    priorityClassName,
    affinity: { nodeAffinity: nodeAffinity(options) },
    tolerations: tolerations(options.dedicatedTo),
    ...(pullSecrets.length > 0 && { imagePullSecrets: pullSecrets.map((name) => ({ name })) }),
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

/** By affinity, not by `nodeName`, which would pass by the scheduler and the slots. */
function nodeAffinity({ nodeName, architecture, dedicatedTo }: TaskJobOptions): NodeAffinity {
  const required: NodeSelectorRequirement[] = [{ key: HOST_MARK, operator: 'In', values: [HOST_VALUE] }];
  if (architecture !== undefined) {
    required.push({ key: 'kubernetes.io/arch', operator: 'In', values: [architecture] });
  }
  const fields: NodeSelectorRequirement[] =
    nodeName === undefined ? [] : [{ key: 'metadata.name', operator: 'In', values: [nodeName] }];
  const dedicated: NodeSelectorRequirement[][] =
    dedicatedTo === '*'
      ? [[]]
      : [
          [{ key: DEDICATED_KEY, operator: 'DoesNotExist' }],
          [{ key: DEDICATED_KEY, operator: 'In', values: [dedicatedTo] }],
        ];
  return {
    requiredDuringSchedulingIgnoredDuringExecution: {
      nodeSelectorTerms: dedicated.map((requirements) => ({
        matchExpressions: [...required, ...requirements],
        ...(fields.length > 0 && { matchFields: fields }),
      })),
    },
  };
}

/** Images go by the host's own network: one whose NAT is broken gets them, and lets go of them. */
function tolerations(dedicatedTo: string): Toleration[] {
  return [
    { key: HOST_KEY, operator: 'Equal', value: HOST_VALUE, effect: 'NoSchedule' },
    { key: NAT_TAINT, operator: 'Exists', effect: 'NoSchedule' },
    dedicatedTo === '*'
      ? { key: DEDICATED_KEY, operator: 'Exists', effect: 'NoSchedule' }
      : { key: DEDICATED_KEY, operator: 'Equal', value: dedicatedTo, effect: 'NoSchedule' },
  ];
}

/**
 * Of these Pods those that the Job controller made for the Job. A label alone says nothing: a host can make Pods of its own
 * (mirror Pods) with any label, but only its own Node may be their owner.
 */
export function podsOf(job: Job, pods: readonly Pod[]): Pod[] {
  return pods.filter((pod) => ownerOf(pod) === job.metadata.uid);
}

/** The uid of the object whose controller made the Pod; empty when none did. */
export function ownerOf({ metadata }: Pod): string {
  return metadata.ownerReferences?.find(({ controller }) => controller === true)?.uid ?? '';
}

/** The Job controller's reason when the last Pod that the Job may have has failed. */
const FAILED_WITH_ITS_POD: Reason = 'BackoffLimitExceeded';
const ALIVE: ReadonlySet<string> = new Set(['Pending', 'Running']);

export type TaskOutcome =
  | { readonly kind: 'waiting'; readonly message: string }
  | { readonly kind: 'running'; readonly nodeName: string | undefined; readonly report: TaskReport }
  | { readonly kind: 'succeeded'; readonly report: TaskReport; readonly finishedAt: string | undefined }
  | {
      readonly kind: 'failed';
      readonly reason: SaidReason;
      readonly message: string;
      readonly finishedAt: string | undefined;
    };

/**
 * How a task stands, from its Job and the Job's Pod (undefined while there is none). Jobs and Pods are seen by watches of their
 * own: a Job may be seen to have ended because of its Pod before the Pod's end is, and only the Pod knows why.
 */
export function taskOutcome(job: Job, pod: Pod | undefined): TaskOutcome {
  const ended = podEnd(pod) ?? jobEnd(job, pod);
  if (ended !== undefined) {
    return ended;
  }
  return pod?.status?.phase === 'Running' ? running(pod) : { kind: 'waiting', message: waitingFor(pod) };
}

function podEnd(pod: Pod | undefined): TaskOutcome | undefined {
  const terminated = pod?.status?.containerStatuses?.[0]?.state?.terminated;
  if (terminated === undefined) {
    return undefined;
  }
  const { exitCode, reason = '', message = '', finishedAt } = terminated;
  return exitCode === 0
    ? { kind: 'succeeded', report: reportIn(message), finishedAt }
    : { kind: 'failed', reason: saidReason(reason, 'TaskFailed'), message, finishedAt };
}

/** On a host that does not answer a Job stays at FailureTarget, and never gets Failed. */
function jobEnd(job: Job, pod: Pod | undefined): TaskOutcome | undefined {
  const failed = job.status?.conditions?.find(
    ({ type, status }) => (type === 'Failed' || type === 'FailureTarget') && status === 'True',
  );
  if (failed === undefined || (failed.reason === FAILED_WITH_ITS_POD && isSeenAlive(pod))) {
    return undefined;
  }
  const { reason, message = '', lastTransitionTime } = failed;
  return { kind: 'failed', reason: saidReason(reason, 'JobFailed'), message, finishedAt: lastTransitionTime };
}

/** Whether the Pod is there, not ended and not being deleted, as far as is known: a later word of it is sure to come. */
export function isSeenAlive(pod: Pod | undefined): boolean {
  const phase = pod?.status?.phase ?? 'Pending';
  return pod !== undefined && pod.metadata.deletionTimestamp === undefined && ALIVE.has(phase);
}

function running(pod: Pod): TaskOutcome {
  const condition = pod.status?.conditions?.find(({ type }) => type === TASK_CONDITION);
  return { kind: 'running', nodeName: pod.spec.nodeName, report: reportIn(condition?.message) };
}

function waitingFor(pod: Pod | undefined): string {
  const [container] = pod?.status?.containerStatuses ?? [];
  return container?.state?.waiting?.message ?? waitingForHost(pod);
}

function waitingForHost(pod: Pod | undefined): string {
  const scheduled = pod?.status?.conditions?.find(({ type }) => type === 'PodScheduled');
  return scheduled?.status === 'False' ? (scheduled.message ?? '') : 'waiting for a host';
}

function reportIn(text: string | undefined): TaskReport {
  const parsed = taskReportSchema.safeParse(parseDocument(text));
  return parsed.success ? parsed.data : {};
}
