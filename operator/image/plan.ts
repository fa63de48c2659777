/** Plans the next work for an Image or ISO, and computes its whole status. All functions are pure. */

import { timestamp } from '../../base/time.ts';
import { createHash } from 'node:crypto';
import { waitAfter } from '../../base/backoff.ts';
import type { ImageStatus } from '../../api/v1alpha1/image.ts';
import type { Job } from '../../kube/core.ts';
import type { ObjectMeta, Unsaved } from '../../kube/objects.ts';
import { API_VERSION, IMAGE_UID_LABEL, OPERATION_LABEL } from '../../api/v1alpha1/names.ts';
import { waitAsked } from '../../api/v1alpha1/reasons.ts';
import { referencesOf, taskJob, taskOf, UNREAD_JOB_SECONDS } from '../tasks/job.ts';
import { credentialsFor, insecureAnnotation, pullSecretNames } from '../objects/registries.ts';
import { imageObjectName } from './content.ts';
import { dueOperation, type ImageOperation, type ImageProgress } from './operation.ts';
import { failureText, gatherFacts, type ImageFacts, latest } from './facts.ts';
import {
  ATTEMPT_LABEL,
  type ImageJob,
  isOpen,
  type ObservedImage,
  REQUESTED_AT_ANNOTATION,
} from './observe.ts';
import { imageStatus } from './status.ts';

/**
 * First wait in milliseconds between attempts to fetch an image. The wait doubles with each failure, up to {@link RETRY_CAP_MILLISECONDS}.
 * This limit is only ten minutes, so that the operator soon tries a registry again after its outage.
 */
const RETRY_FIRST_MILLISECONDS = 10_000;
const RETRY_CAP_MILLISECONDS = 600_000;

/**
 * Operations that users request with a time (`requestedAt`) in the spec. If such an operation fails, the operator does not try it again.
 */
const ACTIONS: ReadonlySet<string> = new Set(['commit', 'push', 'download']);

export interface ImagePlan {
  readonly createJob: Unsaved<Job> | undefined;
  readonly status: ImageStatus;
  /** Time in milliseconds after which the object must be reconciled again, even if nothing has changed. */
  readonly wakeMilliseconds: number | undefined;
}

/**
 * Returns the Job to create (undefined if no Job is due) and the whole status. `refused` is the API server's message when it
 * refused this Job.
 */
export function planImage(observed: ObservedImage, refused?: string): ImagePlan {
  const facts = blockedAction(observed, gatherFacts(observed));
  const current = withFacts(observed, facts);
  const progress = { ...progressOf(current), refused };
  const status = imageStatus(current, facts, progress);
  const { operation, job, retryAt } = progress;
  // Before the next Job is created, every open Job must end, including a Job whose work is no longer requested.
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

function progressOf(observed: ObservedImage): Omit<ImageProgress, 'refused'> {
  const due = nextOperation(observed);
  if (due?.kind !== 'operation') {
    return { operation: undefined, blocked: due, job: undefined, retryAt: undefined };
  }
  const job = latest(observed.jobs, due.type, due.requestedAt);
  return { operation: due, blocked: undefined, job, retryAt: job && retryTime(job, observed.now) };
}

/**
 * Does the same as {@link dueOperation}, but an action with an open Job is never blocked, because the Job reports its own result. For
 * example, a commit continues after the deletion of its VM if a host has already copied the disk.
 */
function nextOperation(observed: ObservedImage): ReturnType<typeof dueOperation> {
  const due = dueOperation(observed);
  if (due?.kind !== 'blocked' || due.operation === undefined) {
    return due;
  }
  const { operation: type, requestedAt } = due;
  const job = latest(observed.jobs, type, requestedAt);
  const task = job !== undefined && isOpen(job) ? taskOf(job.job) : undefined;
  return task === undefined ? due : { kind: 'operation', type, requestedAt, task };
}

/**
 * Returns the facts of the image. If the next action (a commit or download) is blocked, the result records this action as failed. Users can
 * request the action again with a new time in the spec.
 */
function blockedAction(observed: ObservedImage, facts: ImageFacts): ImageFacts {
  const due = nextOperation(withFacts(observed, facts));
  if (due?.kind !== 'blocked' || due.operation === undefined || due.requestedAt === undefined) {
    return facts;
  }
  const { requestedAt } = due;
  const finishedAt = timestamp(observed.now);
  const last = { requestedAt, finishedAt, result: 'Failed', message: failureText(due) };
  return { ...facts, ...(due.operation === 'commit' ? { lastCommit: last } : { lastDownload: last }) };
}

/**
 * If the VM of the next commit has no disk to copy according to the cache, returns the VM's name. The commit then fails permanently, so the
 * caller must make sure that the VM is current.
 */
export function vmWithoutDisk(observed: ObservedImage): string | undefined {
  const { spec } = observed.object;
  if (!('commit' in spec) || spec.commit === undefined) {
    return undefined;
  }
  const due = nextOperation(withFacts(observed, gatherFacts(observed)));
  return due?.kind === 'blocked' && due.operation === 'commit' ? spec.commit.vmName : undefined;
}

function withFacts(observed: ObservedImage, facts: ImageFacts): ObservedImage {
  const { object } = observed;
  return { ...observed, object: { ...object, status: { ...object.status, ...facts } } };
}

/**
 * Returns the time of the next attempt after a failure, in milliseconds since the epoch. The result is undefined if there will be no
 * further attempt. The function is not called after a final failure, because such a failure blocks the operation. The wait starts at the
 * end of the work. The clock of a host can be wrong. If the reported end is in the future or before the creation of the Job, the wait
 * starts at the creation of the Job.
 */
function retryTime({ job, outcome, attempt, operation }: ImageJob, now: number): number | undefined {
  const isAction = ACTIONS.has(operation);
  if (outcome.kind !== 'failed' || isAction) {
    return undefined;
  }
  const own = waitAfter(attempt, RETRY_FIRST_MILLISECONDS, RETRY_CAP_MILLISECONDS);
  const wait = waitAsked(own, outcome.retryAfterMilliseconds);
  const createdAt = Date.parse(job.metadata.creationTimestamp ?? '');
  const finishedAt = Date.parse(outcome.finishedAt ?? '');
  return (finishedAt < createdAt || !(finishedAt <= now) ? createdAt : finishedAt) + wait;
}

/**
 * Returns the name of a Job. Each attempt at an operation has its own fixed name. The API server therefore refuses a second Job for the
 * same attempt.
 */
function jobName(uid: string, { type, requestedAt = '' }: ImageOperation, attempt: number): string {
  const hash = createHash('sha256').update(`${uid} ${type} ${requestedAt}`).digest('hex').slice(0, 16);
  return `image-${type}-${hash}-${attempt}`;
}

function buildJob(
  { object, kind, config, credentials, isDedicated, jobs }: ObservedImage,
  operation: ImageOperation,
  attempt: number,
): Unsaved<Job> {
  const { name, namespace = '', uid = '' } = object.metadata;
  const { type, requestedAt, task, pullSecrets = [], nodeName, machineBytes } = operation;
  const found = credentialsFor(referencesOf(task), credentials);
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
    containerImage: imageObjectName(object),
    pullSecrets: pullSecretNames(pullSecrets, found),
    annotations: insecureAnnotation(found),
    placement: {
      nodeName,
      architecture: nodeName === undefined ? object.spec.architecture : undefined,
      dedicatedTo: namespace,
      // Only one host has the disk of a VM, also if the namespace got hosts of its own after the VM's start.
      isStrict: nodeName === undefined && isDedicated(),
      failedNodes: nodeName === undefined ? failedHosts(jobs, operation) : [],
    },
    // Only one host has the disk of a VM. Administrators cordon this host before they save the disk and shut the host down.
    tolerates: nodeName === undefined ? [] : ['cordon'],
    // The Job uses no slot, so that a host without a free slot can save the disk of one of its VMs.
    takesSlot: false,
    machineBytes,
    activeDeadlineSeconds: config.cache_job_active_deadline_seconds,
    ttlSecondsAfterFinished: UNREAD_JOB_SECONDS,
    priorityClassName: config.priorityClassName,
  });
}

/**
 * Returns the hosts on which earlier attempts failed, the last attempt first. Another host might have what this host lacks, for example a way
 * to the registry. A source that was too slow does not count, because the same host continues the fetch. The list ends with the oldest Job:
 * a failed Job stays for an hour.
 */
function failedHosts(jobs: readonly ImageJob[], { type, requestedAt }: ImageOperation): string[] {
  const hosts = jobs
    .filter((job) => job.operation === type && job.requestedAt === requestedAt)
    .filter(({ outcome }) => outcome.kind === 'failed' && outcome.reason !== 'TooSlow')
    .toSorted((one, other) => other.attempt - one.attempt)
    .flatMap(({ host }) => host ?? []);
  return [...new Set(hosts)];
}
