/** What to do next for an Image or ISO, and its whole status. Pure. */
import { createHash } from 'node:crypto';
import { waitAfter } from '../../base/backoff.ts';
import type { ImageStatus } from '../../api/v1alpha1/image.ts';
import type { Job } from '../../kube/job.ts';
import type { ObjectMeta, Unsaved } from '../../kube/objects.ts';
import { API_VERSION } from '../../api/v1alpha1/names.ts';
import { classOf } from '../../api/v1alpha1/reasons.ts';
import { taskJob } from '../tasks/job.ts';
import { IMAGE_UID_LABEL } from '../tasks/owner.ts';
import { dueOperation, type Operation } from './operation.ts';
import { gatherFacts, type ImageFacts, latest } from './facts.ts';
import {
  ATTEMPT_LABEL,
  type ImageJob,
  type ObservedImage,
  OPERATION_LABEL,
  REQUESTED_AT_ANNOTATION,
} from './observe.ts';
import { imageStatus, type Progress } from './status.ts';

/** Between tries to fetch an image, doubled up to the cap: a registry that comes back is noticed within minutes. */
const RETRY_FIRST_MILLISECONDS = 10_000;
const RETRY_CAP_MILLISECONDS = 600_000;
/** How long a finished Job stays for `kubectl logs`; longer than the longest wait, since the Job remembers its attempt. */
const JOB_KEPT_SECONDS = 3_600;

export interface ImagePlan {
  readonly createJob: Unsaved<Job> | undefined;
  readonly status: ImageStatus;
  /** When to look again though nothing changes. */
  readonly wakeMilliseconds: number | undefined;
}

/** `refused`: why the API server does not take the Job that is due, in its own words. */
export function planImage(observed: ObservedImage, refused?: string): ImagePlan {
  const facts = blockedAction(observed, gatherFacts(observed));
  const current = withFacts(observed, facts);
  const progress = { ...progressOf(current), refused };
  const status = imageStatus(current, facts, progress);
  const { operation, job, retryAt } = progress;
  // Work that nobody asks for any more ends first, too.
  const isOver = operation === undefined || (job !== undefined && retryAt === undefined);
  if (isOver || observed.jobs.some(isOpen)) {
    return { createJob: undefined, status, wakeMilliseconds: undefined };
  }
  if (retryAt !== undefined && retryAt > observed.now) {
    return { createJob: undefined, status, wakeMilliseconds: retryAt - observed.now };
  }
  const createJob = buildJob(observed, operation, (job?.attempt ?? 0) + 1);
  return { createJob, status, wakeMilliseconds: undefined };
}

function progressOf(observed: ObservedImage): Omit<Progress, 'refused'> {
  const due = dueOperation(observed);
  if (due?.kind !== 'operation') {
    return { operation: undefined, blocked: due, job: undefined, retryAt: undefined };
  }
  const job = latest(observed.jobs, due.type, due.requestedAt);
  return { operation: due, blocked: undefined, job, retryAt: job && retryTime(job, observed.now) };
}

function isOpen({ outcome }: ImageJob): boolean {
  return outcome.kind === 'waiting' || outcome.kind === 'running';
}

/** An action that cannot be done is done with, as failed: a new time asks for it again. */
function blockedAction(observed: ObservedImage, facts: ImageFacts): ImageFacts {
  const due = dueOperation(withFacts(observed, facts));
  if (due?.kind !== 'blocked' || due.operation === undefined || due.requestedAt === undefined) {
    return facts;
  }
  const { requestedAt, reason, message } = due;
  const finishedAt = new Date(observed.now).toISOString();
  const lastCommit = { requestedAt, finishedAt, result: 'Failed', message: `${reason}: ${message}` };
  return { ...facts, lastCommit };
}

function withFacts(observed: ObservedImage, facts: ImageFacts): ObservedImage {
  const { object } = observed;
  return { ...observed, object: { ...object, status: { ...object.status, ...facts } } };
}

/** Counted from the end of the work; from its beginning where the host says an end that is still to come. */
function retryTime({ job, outcome, attempt, operation }: ImageJob, now: number): number | undefined {
  const isAction = operation === 'commit' || operation === 'push';
  if (outcome.kind !== 'failed' || isAction || classOf(outcome.reason, 'Image') === 'final') {
    return undefined;
  }
  const wait = waitAfter(attempt, RETRY_FIRST_MILLISECONDS, RETRY_CAP_MILLISECONDS);
  const finishedAt = Date.parse(outcome.finishedAt ?? '1970-01-01T00:00:00Z');
  return (finishedAt <= now ? finishedAt : Date.parse(job.metadata.creationTimestamp ?? '')) + wait;
}

/** The same name for the same attempt at the same thing: made twice, the second is refused. */
function jobName(uid: string, { type, requestedAt = '' }: Operation, attempt: number): string {
  const hash = createHash('sha256').update(`${uid} ${type} ${requestedAt}`).digest('hex').slice(0, 16);
  return `image-${type}-${hash}-${attempt}`;
}

function buildJob(
  { object, kind, config }: ObservedImage,
  operation: Operation,
  attempt: number,
): Unsaved<Job> {
  const { name, namespace = '', uid = '' } = object.metadata;
  const { type, requestedAt, task, pullSecrets, nodeName } = operation;
  const metadata: Partial<ObjectMeta> = {
    name: jobName(uid, operation, attempt),
    namespace,
    labels: { [IMAGE_UID_LABEL]: uid, [OPERATION_LABEL]: type, [ATTEMPT_LABEL]: String(attempt) },
    ...(requestedAt !== undefined && { annotations: { [REQUESTED_AT_ANNOTATION]: requestedAt } }),
    ownerReferences: [
      { apiVersion: API_VERSION, kind, name, uid, controller: true, blockOwnerDeletion: false },
    ],
  };
  return taskJob({
    metadata,
    workload: 'image',
    task,
    containerImage: `berth.dev/${namespace}/${name}`,
    pullSecrets,
    placement: {
      nodeName,
      architecture: nodeName === undefined ? object.spec.architecture : undefined,
      dedicatedTo: namespace,
    },
    // A host whose places are all taken must still be able to save one of its VMs.
    takesSlot: false,
    activeDeadlineSeconds: config.cache_job_active_deadline_seconds,
    ttlSecondsAfterFinished: JOB_KEPT_SECONDS,
    priorityClassName: config.priorityClassName,
  });
}
