/** Determines the outcome of a task from its Job and the Job's Pod. All functions are pure. */
import { parseDocument } from '../../api/v1alpha1/machine.ts';
import { TASK_CONDITION } from '../../api/v1alpha1/names.ts';
import { type Reason, type SaidReason, saidReason } from '../../api/v1alpha1/reasons.ts';
import { type TaskReport, taskReportSchema } from '../../api/v1alpha1/task.ts';
import type { Job, LooseCondition, Pod } from '../../kube/core.ts';
import { conditionIn } from '../objects/conditions.ts';

/** Reason in the status of a Job whose Pods failed more often than the Job allows. */
const FAILED_WITH_ITS_POD: Reason = 'BackoffLimitExceeded';
const ALIVE: ReadonlySet<string> = new Set(['Pending', 'Running']);

export type TaskOutcome =
  | {
      readonly kind: 'waiting';
      /** Set if the API server refuses the Pod of the Job. The message is then the API server's. */
      readonly reason?: 'PodRefused';
      readonly message: string;
    }
  | { readonly kind: 'running'; readonly nodeName: string | undefined; readonly report: TaskReport }
  | { readonly kind: 'succeeded'; readonly report: TaskReport; readonly finishedAt: string | undefined }
  | {
      readonly kind: 'failed';
      readonly reason: SaidReason;
      readonly message: string;
      readonly finishedAt: string | undefined;
      /** Wait in milliseconds before the next attempt that a server asked for. Undefined if no server asked for a wait. */
      readonly retryAfterMilliseconds?: number;
    };

/**
 * Returns the outcome of a task from its Job and the Job's Pod. `pod` is undefined while the Job has no Pod. Only the Pod states the cause
 * of a failure. Jobs and Pods have separate watches, so the cache can show the end of a Job before the end of its Pod. A Job that failed
 * because of its Pod does not count as ended until the cache shows the end of the Pod.
 * @param refusal message with which the API server refuses a Pod for the Job, if it does
 */
export function taskOutcome(job: Job, pod: Pod | undefined, refusal?: string): TaskOutcome {
  const ended = podEnd(pod) ?? jobEnd(job, pod);
  if (ended !== undefined) {
    return ended;
  }
  if (pod === undefined && refusal !== undefined) {
    return { kind: 'waiting', reason: 'PodRefused', message: refusal };
  }
  return pod?.status?.phase === 'Running' ? running(pod) : { kind: 'waiting', message: waitingFor(job, pod) };
}

function podEnd(pod: Pod | undefined): TaskOutcome | undefined {
  const terminated = pod?.status?.containerStatuses?.[0]?.state?.terminated;
  if (terminated === undefined) {
    return undefined;
  }
  const { exitCode, reason = '', message = '', finishedAt } = terminated;
  if (exitCode === 0) {
    return { kind: 'succeeded', report: parseReport(message), finishedAt };
  }
  return { kind: 'failed', reason: saidReason(reason, 'TaskFailed'), message, finishedAt, ...waitIn(pod) };
}

/** Returns the wait that a server asked for, as the host reports it. */
function waitIn(pod: Pod | undefined): { retryAfterMilliseconds?: number } {
  const { retryAfterSeconds } = parseReport(conditionIn(pod?.status, TASK_CONDITION)?.message);
  return retryAfterSeconds === undefined ? {} : { retryAfterMilliseconds: retryAfterSeconds * 1000 };
}

/**
 * Returns the failure that the Job of a task reports. The result is undefined if the Job has not failed, or if its Pod will still report
 * the end of the task. The condition FailureTarget also counts, because a Job never gets the condition Failed while its host does not
 * respond.
 */
function jobEnd(job: Job, pod: Pod | undefined): TaskOutcome | undefined {
  const failed = trueCondition(job, 'Failed', 'FailureTarget');
  if (failed === undefined || (failed.reason === FAILED_WITH_ITS_POD && isSeenAlive(pod))) {
    return undefined;
  }
  const { reason, message = '', lastTransitionTime } = failed;
  return { kind: 'failed', reason: saidReason(reason, 'JobFailed'), message, finishedAt: lastTransitionTime };
}

/** Returns the first condition of a Job that has one of these types and the status True. */
export function trueCondition({ status }: Job, ...types: readonly string[]): LooseCondition | undefined {
  return status?.conditions?.find((one) => types.includes(one.type) && one.status === 'True');
}

/**
 * Returns true if, according to the caches, the Pod exists, has not ended and is not being deleted. Such a Pod will later report the end of
 * the task.
 */
export function isSeenAlive(pod: Pod | undefined): boolean {
  const phase = pod?.status?.phase ?? 'Pending';
  return pod !== undefined && pod.metadata.deletionTimestamp === undefined && ALIVE.has(phase);
}

function running(pod: Pod): TaskOutcome {
  const condition = conditionIn(pod.status, TASK_CONDITION);
  return { kind: 'running', nodeName: pod.spec.nodeName, report: parseReport(condition?.message) };
}

function waitingFor({ metadata: { name } }: Job, pod: Pod | undefined): string {
  if (pod === undefined) {
    return `Job ${name} has no Pod yet. See the Events of this Job`;
  }
  const [container] = pod.status?.containerStatuses ?? [];
  return container?.state?.waiting?.message ?? waitingForHost(pod);
}

function waitingForHost(pod: Pod): string {
  const scheduled = conditionIn(pod.status, 'PodScheduled');
  return scheduled?.status === 'False' ? (scheduled.message ?? '') : 'The task is waiting for a host';
}

function parseReport(text: string | undefined): TaskReport {
  return taskReportSchema.safeParse(parseDocument(text)).data ?? {};
}
