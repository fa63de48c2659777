/**
 * Gathers the facts of an Image or ISO from finished Jobs and other objects. Facts are status fields that cannot be computed again. The text
 * of a failure is one of them: `REASON: MESSAGE`. All functions are pure.
 */
import { timestamp } from '../../base/time.ts';
import {
  describeSource,
  FAILURE_TEXT_LENGTH,
  type MachineImageSource,
  registryReference,
} from '../../api/v1alpha1/source.ts';
import type { Image, ImageSpec, ImageStatus } from '../../api/v1alpha1/image.ts';
import type { ISO } from '../../api/v1alpha1/iso.ts';
import { formatQuantity } from '../../api/v1alpha1/quantity.ts';
import { classOf, isReason, type Reason } from '../../api/v1alpha1/reasons.ts';
import { pushMistake } from '../../api/v1alpha1/reference.ts';
import type { StorageTarget, TaskReport } from '../../api/v1alpha1/task.ts';
import type { Job } from '../../kube/core.ts';
import { taskOf } from '../tasks/job.ts';
import { contentOf, isKeptFromCopies, NO_DISK, traitsOf } from './content.ts';
import type { ImageJob, ObservedImage } from './observe.ts';
import { keepEnd } from '../../api/v1alpha1/status.ts';

interface Failure<Word extends string = string> {
  readonly reason: Word;
  readonly message: string;
}

/**
 * Returns the text of a failure. If the message is too long for the status, its end is kept. The reason is never cut, because the operator
 * and the HTTP API read it from the text later.
 */
export function failureText({ reason, message }: Failure): string {
  const start = `${reason}: `;
  return `${start}${keepEnd(message, FAILURE_TEXT_LENGTH - start.length)}`;
}

/** Returns the reason and the message in the text of a failure. Both are empty if there is no text. */
export function readFailure(text = ''): Failure {
  const [reason = '', ...rest] = text.split(': ');
  return { reason, message: rest.join(': ') };
}

/**
 * Returns the reason and the message in the text of a final failure, after which there is no further attempt. The result is undefined if
 * there is no text. It is also undefined if this release does not know the reason, or does not treat the reason as final.
 */
export function finalFailure(text: string | undefined): Failure<Reason> | undefined {
  const { reason, message } = readFailure(text);
  return isReason(reason) && classOf(reason, 'Image') === 'final' ? { reason, message } : undefined;
}

/** Facts of an Image or ISO: the part of the status that cannot be computed again. */
export type ImageFacts = Pick<
  ImageStatus,
  | 'content'
  | 'consistency'
  | 'memory'
  | 'size'
  | 'storageSize'
  | 'digest'
  | 'origin'
  | 'lastUpdateTime'
  | 'contentFailure'
  | 'uploadFailure'
  | 'lastCommit'
  | 'lastPush'
  | 'lastDownload'
>;

function factsOf({ status = {} }: Image | ISO): ImageFacts {
  const { content, consistency, size, storageSize, digest, origin, lastUpdateTime } = status;
  const { memory, contentFailure, uploadFailure, lastCommit, lastPush, lastDownload } = status as ImageStatus;
  const results = { contentFailure, uploadFailure, lastCommit, lastPush, lastDownload };
  return { content, consistency, memory, size, storageSize, digest, origin, lastUpdateTime, ...results };
}

/** Returns the current facts. If nothing new happened, the result equals the facts in the status. */
export function gatherFacts(observed: ObservedImage): ImageFacts {
  const known = factsOf(observed.object);
  const made = known.content === undefined ? { ...known, ...firstContent(observed) } : known;
  return { ...made, ...committed(observed, made), ...pushed(observed, made), ...downloaded(observed, made) };
}

function firstContent(observed: ObservedImage): Partial<ImageFacts> {
  const { object, origin, now } = observed;
  const { source } = object.spec;
  if ('empty' in source && source.empty !== undefined) {
    const content = contentOf(object)?.source;
    return { content, size: String(source.empty.size), storageSize: '0', lastUpdateTime: timestamp(now) };
  }
  if ('ipsw' in source && source.ipsw !== undefined) {
    const content = contentOf(object)?.source;
    const { digest, sizeBytes } = traitsOf(content);
    const size = quantity(sizeBytes);
    return { content, digest, size, storageSize: '0', lastUpdateTime: timestamp(now) };
  }
  if (source.copyOf !== undefined) {
    return origin === undefined || isKeptFromCopies(origin, object) ? {} : copied(origin, now);
  }
  return madeByJob(observed);
}

function madeByJob({ object, jobs, now }: ObservedImage): Partial<ImageFacts> {
  const [job] = (['pull', 'save', 'upload'] as const).flatMap((type) => latest(jobs, type) ?? []);
  if (job?.outcome.kind === 'succeeded') {
    return contentMade(job, object, now);
  }
  if (job?.outcome.kind !== 'failed') {
    return {};
  }
  // The status stores a final failure, because the Job that reports the failure is deleted later. After a final failure there is no further
  // attempt.
  const failure = failureText(job.outcome);
  if (job.operation === 'upload') {
    return { uploadFailure: failure };
  }
  return classOf(job.outcome.reason, 'Image') === 'final' ? { contentFailure: failure } : {};
}

/**
 * Returns the facts that a copy takes over from its origin. Stored content never changes, so the copy refers to the same stored content.
 */
function copied(origin: Image | ISO, now: number): Partial<ImageFacts> {
  const { content, size, storageSize, digest, consistency, memory } = factsOf(origin);
  const { name, namespace } = origin.metadata;
  return content === undefined
    ? {}
    : {
        content,
        size,
        storageSize,
        digest,
        consistency,
        memory,
        origin: `copy of ${namespace}/${name}`,
        lastUpdateTime: timestamp(now),
      };
}

function committed({ object, jobs, now }: ObservedImage, facts: ImageFacts): Partial<ImageFacts> {
  const commit = 'commit' in object.spec ? object.spec.commit : undefined;
  const job = unrecorded(latest(jobs, 'commit', commit?.requestedAt), facts.lastCommit);
  if (job === undefined) {
    return {};
  }
  const made = job.outcome.kind === 'succeeded' ? contentMade(job, object, now) : {};
  return { ...made, lastCommit: actionResult(job, now) };
}

function pushed({ object, jobs, now }: ObservedImage, facts: ImageFacts): Partial<ImageFacts> {
  const push = 'push' in object.spec ? object.spec.push : undefined;
  if (push === undefined) {
    return {};
  }
  const result = unrecorded<ActionOutcome>(
    refusedPush(push, facts) ?? latest(jobs, 'push', push.requestedAt),
    facts.lastPush,
  );
  return result === undefined ? {} : { lastPush: actionResult(result, now) };
}

/**
 * Returns the result of a push of no disk, or to a reference that no registry can take. It is known before a host saves the disk of a VM for
 * the push.
 */
function refusedPush(
  { reference, requestedAt }: NonNullable<ImageSpec['push']>,
  { content }: Pick<ImageFacts, 'content'>,
): ActionOutcome | undefined {
  const mistake = content?.type === 'ipsw' ? NO_DISK : pushMistake(reference);
  if (mistake === undefined) {
    return undefined;
  }
  const message = `Nothing can be pushed as ${reference}: ${mistake}`;
  return { requestedAt, outcome: { kind: 'failed', reason: 'PushFailed', message, finishedAt: undefined } };
}

function downloaded({ object, jobs, now }: ObservedImage, facts: ImageFacts): Partial<ImageFacts> {
  const job = unrecorded(latest(jobs, 'download', object.spec.download?.requestedAt), facts.lastDownload);
  if (job === undefined) {
    return {};
  }
  const { requestedAt, finishedAt, result, message } = actionResult(job, now);
  return { lastDownload: { requestedAt, finishedAt, result, message } };
}

type ActionOutcome = Pick<ImageJob, 'requestedAt' | 'outcome'>;

function unrecorded<Action extends ActionOutcome>(
  job: Action | undefined,
  recorded: { requestedAt: string } | undefined,
): Action | undefined {
  const finished = job?.outcome.kind === 'succeeded' || job?.outcome.kind === 'failed';
  return finished && job.requestedAt !== recorded?.requestedAt ? job : undefined;
}

function actionResult({ requestedAt = '', outcome }: ActionOutcome, now: number) {
  const finishedAt = timestamp(now);
  if (outcome.kind === 'succeeded') {
    const { digest, reference, message } = outcome.report;
    return { requestedAt, finishedAt, result: 'Succeeded', reference: reference ?? digest, message };
  }
  const failed = outcome.kind === 'failed' ? outcome : { reason: '', message: '' };
  return { requestedAt, finishedAt, result: 'Failed', message: failureText(failed) };
}

function contentMade({ job, outcome }: ImageJob, object: Image | ISO, now: number): Partial<ImageFacts> {
  const report: TaskReport = outcome.kind === 'succeeded' ? outcome.report : {};
  return {
    content: contentAt(job, report) ?? contentOf(object)?.source,
    digest: report.digest,
    size: quantity(report.sizeBytes),
    storageSize: quantity(report.storageBytes),
    consistency: taskOf(job)?.type === 'save' ? report.consistency : undefined,
    memory: memoryIn(report),
    origin: originOf(job),
    lastUpdateTime: timestamp(now),
  };
}

/** Returns the memory in a report, as the status of an Image shows it. */
function memoryIn({ memory }: TaskReport): ImageFacts['memory'] {
  if (memory === undefined) {
    return undefined;
  }
  const { memoryBytes, cpu, key, savedAt } = memory;
  return { size: formatQuantity(BigInt(memoryBytes)), cpu, key, savedAt: timestamp(Date.parse(savedAt)) };
}

/**
 * Returns the source from which hosts get the content after the Job. The result is undefined if hosts still get it from the source in the
 * spec.
 */
export function contentAt(job: Job, report: TaskReport): MachineImageSource | undefined {
  const task = taskOf(job);
  switch (task?.type) {
    case 'save':
    case 'receive':
      return storedAt(task.target, report);
    case 'import':
      return task.target === undefined
        ? pinnedAt(task.image.source, report.reference)
        : storedAt(task.target, report);
    default:
      return undefined;
  }
}

function pinnedAt(source: MachineImageSource, reference: string | undefined): MachineImageSource | undefined {
  const isNamed = registryReference(source) !== undefined && reference !== undefined;
  return isNamed ? { type: 'registry', reference } : undefined;
}

function storedAt(target: StorageTarget, report: TaskReport): MachineImageSource {
  const { reference, digest = '', memory, memoryDigest } = report;
  if (target.type === 'registry') {
    return { type: 'storedArtifact', reference: reference ?? target.reference };
  }
  const file = { type: 'storedFile', path: target.path, sha256: digest.replace('sha256:', '') } as const;
  return memory === undefined || memoryDigest === undefined ? file : { ...file, memoryDigest };
}

function originOf(job: Job): string | undefined {
  const task = taskOf(job);
  if (task?.type === 'save') {
    return `disk of VM ${task.vm.namespace}/${task.vm.name}`;
  }
  if (task?.type === 'receive') {
    return 'upload';
  }
  return task?.type === 'import' ? describeSource(task.image.source) : undefined;
}

/** Returns the Job of the last attempt at an operation. The result is undefined if there was no attempt. */
export function latest(
  jobs: readonly ImageJob[],
  operation: string,
  requestedAt?: string,
): ImageJob | undefined {
  return jobs
    .filter((job) => job.operation === operation && job.requestedAt === requestedAt)
    .reduce<ImageJob | undefined>(
      (last, job) => (last === undefined || job.attempt > last.attempt ? job : last),
      undefined,
    );
}

function quantity(bytes: number | undefined): string | undefined {
  return bytes === undefined ? undefined : formatQuantity(BigInt(bytes));
}
