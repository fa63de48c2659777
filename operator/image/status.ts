/** Computes the whole status of an Image or ISO, and when its TTL is over. All functions are pure. */
import { timestamp } from '../../base/time.ts';
import type { Image, ImageStatus } from '../../api/v1alpha1/image.ts';
import { classOf, type Reason, type SaidReason, saidReason } from '../../api/v1alpha1/reasons.ts';
import { type ConditionDraft, stampConditions } from '../objects/conditions.ts';
import { type ImageFacts, readFailure } from './facts.ts';
import { type ImageJob, type ImageOperationType, isOpen, type ObservedImage } from './observe.ts';
import type { ImageProgress } from './operation.ts';
import type { ISO } from '../../api/v1alpha1/iso.ts';

export function imageStatus(
  observed: ObservedImage,
  facts: ImageFacts,
  progress: ImageProgress,
): ImageStatus {
  const { object, now } = observed;
  const generation = object.metadata.generation ?? 0;
  const { phase, reason, message } = summary(observed, facts, progress);
  const drafts = [
    ready(facts, { reason, message }),
    reconciling(phase, progress, facts.content === undefined ? message : underWay(progress, now).message),
    stalled(phase, progress, { reason, message }),
    action('Committed', facts.lastCommit),
    action('Pushed', facts.lastPush),
    inUse(observed),
  ].filter((draft) => draft !== undefined);
  return {
    ...facts,
    observedGeneration: generation,
    phase,
    finishedTime: finishedTime(observed, facts, progress),
    progressPercent: runningReport(progress.job)?.progressPercent,
    conditions: stampConditions(drafts, object.status?.conditions, { now: timestamp(now), generation }),
  };
}

interface Summary {
  phase: Reason;
  reason: SaidReason;
  message: string;
}

function summary(observed: ObservedImage, facts: ImageFacts, progress: ImageProgress): Summary {
  const { operation, blocked } = progress;
  if (facts.content !== undefined) {
    const phase = operation?.type === 'commit' ? 'Updating' : 'Ready';
    return { phase, reason: 'Available', message: withoutMemory(observed.object, facts) };
  }
  if (blocked !== undefined) {
    const { reason, message } = blocked;
    return { phase: classOf(reason, 'Image') === 'final' ? 'Failed' : 'Pending', reason, message };
  }
  return underWay(progress, observed.now);
}

/** Returns a text for people about an image that was to get memory, but has none. The text is empty for all other images. */
export function withoutMemory(
  { spec: { source } }: Image | ISO,
  { memory }: Pick<ImageStatus, 'memory'>,
): string {
  const isWanted = 'fromVM' in source && source.fromVM?.memory === true;
  return isWanted && memory === undefined ? 'The image has no memory. Its VMs boot from its disk' : '';
}

/** Texts for people about the work of a host on an image. In a message, each text follows the host's name. */
const WORK: Readonly<Record<ImageOperationType, string>> = {
  pull: 'is fetching the image',
  save: 'is saving the disk of the VM',
  upload: 'is receiving the file',
  commit: 'is saving the disk of the VM',
  push: 'is pushing the image',
  download: 'is sending the image',
};

function underWay({ operation, job, retryAt, refused }: ImageProgress, now: number): Summary {
  if (refused !== undefined) {
    return { phase: 'Pending', reason: 'JobRefused', message: refused };
  }
  const outcome = job?.outcome ?? { kind: 'waiting', message: '' };
  switch (outcome.kind) {
    case 'failed': {
      const { reason, message } = outcome;
      return { phase: 'Failed', reason, message: `${message}${retryNote(retryAt, now)}` };
    }
    case 'running':
      return {
        phase: 'Pulling',
        reason: 'Pulling',
        message: `Host ${outcome.nodeName} ${WORK[operation?.type ?? 'pull']}`,
      };
    case 'waiting':
      return { phase: 'Pending', reason: outcome.reason ?? 'Pending', message: outcome.message };
    default:
      return { phase: 'Pending', reason: 'Pending', message: '' };
  }
}

/**
 * Returns a text with the time of the next attempt. The text does not contain the remaining seconds, because they would change the status
 * at every reconcile.
 */
function retryNote(retryAt: number | undefined, now: number): string {
  return retryAt === undefined || retryAt <= now ? '' : `; the next attempt is at ${timestamp(retryAt)}`;
}

function ready({ content }: ImageFacts, { reason, message }: Omit<Summary, 'phase'>): ConditionDraft {
  return { type: 'Ready', status: content === undefined ? 'False' : 'True', reason, message };
}

/**
 * Returns the condition Reconciling while there is work. Its message tells the state of the work. Clients of a download wait for the change
 * of this message when the host accepts them.
 */
function reconciling(
  phase: Reason,
  { operation }: ImageProgress,
  message: string,
): ConditionDraft | undefined {
  return operation === undefined
    ? undefined
    : {
        type: 'Reconciling',
        status: 'True',
        reason: phase,
        message: message || `No host has begun this work yet: ${operation.type}`,
      };
}

function stalled(
  phase: string,
  { retryAt }: ImageProgress,
  { reason, message }: Omit<Summary, 'phase'>,
): ConditionDraft | undefined {
  return phase === 'Failed' && retryAt === undefined
    ? { type: 'Stalled', status: 'True', reason, message }
    : undefined;
}

function action(type: string, last: ImageFacts['lastPush']): ConditionDraft | undefined {
  if (last?.result === undefined) {
    return undefined;
  }
  const { reason, message } = readFailure(last.message);
  return last.result === 'Succeeded'
    ? { type, status: 'True', reason: 'Succeeded', message: last.reference ?? '' }
    : { type, status: 'False', reason: saidReason(reason, 'TaskFailed'), message };
}

/** Returns the condition that names the VMs for which a deletion waits. */
function inUse({ object, deploying }: ObservedImage): ConditionDraft | undefined {
  if (object.metadata.deletionTimestamp === undefined || deploying.length === 0) {
    return undefined;
  }
  const message = `The deletion of the image waits until these VMs are deployed: ${deploying.join(', ')}`;
  return { type: 'InUse', status: 'True', reason: 'Deploying', message };
}

function runningReport(job: ImageJob | undefined) {
  return job?.outcome.kind === 'running' ? job.outcome.report : undefined;
}

/**
 * Reasons why an Image cannot get the disk of a VM: the VM does not exist, or the VM failed and left no disk. Only a user can create the VM
 * again, so the Image might wait forever. Therefore the Image counts as finished.
 */
const NO_DISK: ReadonlySet<string> = new Set<Reason>(['VMNotFound', 'NoMachine']);

/**
 * Returns the RFC 3339 time when the last work on an Image ended. The result is undefined while work is under way, and for an ISO. The time
 * changes only when a later commit or push ends.
 */
function finishedTime(
  { object, kind, jobs, now }: ObservedImage,
  { lastCommit, lastPush }: ImageFacts,
  progress: ImageProgress,
): string | undefined {
  // While a Job copies the disk of a VM, the Image is not finished, even if somebody has deleted the VM.
  const isCopying = object.status?.content === undefined && jobs.some(isOpen);
  if (kind !== 'Image' || isCopying || !isFinished(progress)) {
    return undefined;
  }
  const { finishedTime: known = timestamp(now) } = (object.status ?? {}) as ImageStatus;
  const ends = [known, lastCommit?.finishedAt, lastPush?.finishedAt].filter((time) => time !== undefined);
  // All these times have the same format, so a comparison of their texts gives their order.
  return ends.toSorted().at(-1);
}

function isFinished({ operation, blocked }: ImageProgress): boolean {
  return blocked === undefined
    ? operation === undefined
    : NO_DISK.has(blocked.reason) || classOf(blocked.reason, 'Image') === 'final';
}

/**
 * Returns the time when the TTL of a finished Image is over, in milliseconds since the epoch. The TTL starts at `finishedTime` in the
 * stored status. `next` is the newly computed status. The result is undefined if there is no TTL. It is also undefined if the
 * `finishedTime` in `next` differs from the stored one, for example because work is under way again.
 */
export function expiresAt({ spec, status }: Image | ISO, next: ImageStatus): number | undefined {
  const ttlSeconds = 'ttlSecondsAfterFinished' in spec ? spec.ttlSecondsAfterFinished : undefined;
  const { finishedTime: stored } = (status ?? {}) as ImageStatus;
  return ttlSeconds === undefined || stored === undefined || stored !== next.finishedTime
    ? undefined
    : Date.parse(stored) + ttlSeconds * 1000;
}
