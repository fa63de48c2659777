/**
 * Identifies places in the cluster's image storage, and records that content is to be removed there. A place is an artifact in the storage's
 * registry, or a file in the storage's folder.
 *
 * The record of a removal is one suspended Job for each place. The Job is in the operator's own namespace, so that it outlives the image and
 * the image's namespace. Only these Jobs remove content from the image storage.
 */
import { createHash } from 'node:crypto';
import * as z from 'zod';
import type { Image } from '../../api/v1alpha1/image.ts';
import type { ISO } from '../../api/v1alpha1/iso.ts';
import { parseDocument } from '../../api/v1alpha1/machine.ts';
import { type MachineImageSource } from '../../api/v1alpha1/source.ts';
import { readReference, repositoryName } from '../../api/v1alpha1/reference.ts';
import { type StorageTarget, TASK_API_VERSION } from '../../api/v1alpha1/task.ts';
import type { OperatorConfig } from '../config/config.ts';
import { API_VERSION, OPERATION_LABEL, STORAGE_SECRET } from '../../api/v1alpha1/names.ts';
import type { Reason } from '../../api/v1alpha1/reasons.ts';
import type { Job } from '../../kube/core.ts';
import type { KubeObject, Unsaved } from '../../kube/objects.ts';
import { type OperatorEvent, warning } from '../objects/events.ts';
import { taskJob, taskOf, UNREAD_JOB_SECONDS } from '../tasks/job.ts';
import { type HasContent, imageObjectName, storedContent, traitsOf } from './content.ts';
import { contentAt, gatherFacts, type ImageFacts } from './facts.ts';
import type { ImageJob, ObservedImage } from './observe.ts';

/** Number of hash characters in the file names and tags of stored content. The hash distinguishes several contents of one image. */
const HASH_LENGTH = 16;
/**
 * Largest number of characters of an image's name in the place of its content. A name can have 253 characters. Then the repository would be
 * too long for registries, and the file name would be too long for file systems. The hash distinguishes images with the same beginning.
 */
const NAME_LENGTH = 128;

/** Place of an image's content in the storage: an artifact with its digest, or a file. */
export type ContentPlace = StorageTarget;

/** Returns the place of the content in the configured image storage. The result is undefined if the content is stored elsewhere. */
export function placeOf(
  content: MachineImageSource | undefined,
  { imageStorage }: OperatorConfig,
): ContentPlace | undefined {
  const { place } = traitsOf(content);
  if (place === undefined) {
    return undefined;
  }
  const isHere =
    place.type === 'folder'
      ? imageStorage?.folder === true
      : isArtifact(place.reference, imageStorage?.registry?.prefix);
  return isHere ? place : undefined;
}

/** Returns whether a reference names an artifact below `prefix` by its digest. */
function isArtifact(reference: string, prefix: string | undefined): boolean {
  const parts = readReference(reference);
  const isPinned = typeof parts !== 'string' && parts.digest !== undefined;
  return prefix !== undefined && isPinned && repositoryName(parts).startsWith(root(prefix));
}

/** Returns the text with which the names of all repositories below `prefix` begin. */
function root(prefix: string): string {
  const any = 'any';
  return repositoryOf(`${prefix}/${any}`).slice(0, -any.length);
}

/** Returns a text that is different for each place in the image storage. */
export function placeKey(place: ContentPlace): string {
  return place.type === 'registry' ? place.reference : folderKey(place.path);
}

/** Returns the key of a file in the storage folder. */
export function folderKey(path: string): string {
  return `folder:${path}`;
}

/**
 * Returns the reference without tag and digest. An invalid reference is returned unchanged. This is harmless, because no content can be
 * stored under an invalid reference.
 */
export function repositoryOf(reference: string): string {
  const parts = readReference(reference);
  return typeof parts === 'string' ? reference : repositoryName(parts);
}

/**
 * Returns the tag or file in which to store new content of an image. Another `version` gives another tag or file. The result is undefined
 * if there is no image storage.
 */
export function storageTarget(
  object: Image | ISO,
  { imageStorage, namespaces }: OperatorConfig,
  version: string,
): StorageTarget | undefined {
  const { namespace, name, uid } = object.metadata;
  const hash = createHash('sha256').update(`${uid} ${version}`).digest('hex').slice(0, HASH_LENGTH);
  const named = `${namespace}/${shortName(name)}`;
  if (imageStorage?.registry !== undefined) {
    const reference = `${imageStorage.registry.prefix}/${named}:${hash}`;
    return { type: 'registry', reference, secretNamespace: namespaces.system };
  }
  return imageStorage?.folder === true ? { type: 'folder', path: `${named}-${hash}.qcow2` } : undefined;
}

/** Returns the beginning of a name. A repository must not end with a dot or a dash, so the result does not end with one either. */
function shortName(name: string): string {
  return name.slice(0, NAME_LENGTH).replace(/[^a-z0-9]+$/, '');
}

const OPERATION = 'remove';
/** Annotation with the object to which the content belonged. The operator records the Events of the removal for this object. */
const OWNER_ANNOTATION = 'berth.dev/content-of';
/**
 * Number of retries of a removal: the default of Kubernetes. The Job controller waits 10 s before the first retry and doubles each further
 * wait. All waits together take ten minutes.
 */
const RETRIES = 6;
/**
 * Time limit in seconds for a removal. An administrator can repair a broken host within this time. After this time, an Event states that
 * the content remains in the storage.
 */
const REMOVAL_SECONDS = 3_600;

/**
 * Largest number of failed Jobs of an image that stay until its first content exists. Each of them counts in the quota of the namespace,
 * and each needs a removal later. Ten attempts take longer than most outages, so most outages end before a removal is needed.
 */
const KEPT_ATTEMPTS = 10;
/** Reasons of failures that only the Job reports. The host has reported nothing. */
const UNREPORTED: ReadonlySet<string> = new Set<Reason>([
  'DeadlineExceeded',
  'BackoffLimitExceeded',
  'JobFailed',
]);

/** The facts that show whether an image has its first content. */
type FirstContent = Pick<ImageFacts, 'content' | 'contentFailure'>;

const ownerSchema = z.object({ kind: z.string(), namespace: z.string(), name: z.string(), uid: z.string() });

/**
 * Returns the places of the stored content that the image's next status no longer names, and of content that no status ever named. The
 * result is empty if the content stays the same, no commit was superseded, and no Job failed.
 */
export function replacedPlaces(
  observed: ObservedImage,
  next: Pick<ImageFacts, 'content' | 'contentFailure' | 'lastCommit'>,
): ContentPlace[] {
  const { object, config } = observed;
  const kept = placesOf([{ status: next }], config).map(placeKey);
  const known = placesOf([object, ...superseded(observed, next)], config);
  const replaced = [...known, ...filesOfFailedJobs(observed, next)];
  return replaced.filter((place) => !kept.includes(placeKey(place)));
}

/**
 * Returns the files that failed Jobs might have left. A host that ended during its work has removed nothing, and no later Job writes to the
 * same file. The files of the Jobs that stay ({@link keptForFile}) are not returned.
 */
function filesOfFailedJobs({ jobs }: ObservedImage, facts: FirstContent): ContentPlace[] {
  const kept = keptForFile(jobs, facts);
  return jobs
    .filter((job) => (awaitsContent(facts) ? mayHaveLeftFile(job) && !kept.includes(job) : hasFailed(job)))
    .flatMap(({ job }) => targetFile(job) ?? []);
}

/**
 * Returns the failed Jobs that stay, because only they tell that a file might have to be removed. The removal is recorded when the first
 * content exists or has finally failed. Otherwise each attempt to fetch an image that stays unreachable would need a removal. Only the
 * newest Jobs stay. For an older Job, the removal is recorded at once.
 */
export function keptForFile(jobs: readonly ImageJob[], facts: FirstContent): ImageJob[] {
  return awaitsContent(facts)
    ? jobs
        .filter(mayHaveLeftFile)
        .toSorted((one, other) => other.attempt - one.attempt)
        .slice(0, KEPT_ATTEMPTS)
    : [];
}

/** Returns true if the image has no first content yet, and can still get it. */
function awaitsContent({ content, contentFailure }: FirstContent): boolean {
  return content === undefined && contentFailure === undefined;
}

function hasFailed({ outcome }: ImageJob): boolean {
  return outcome.kind === 'failed';
}

/** Returns true if the Job failed without a report. Its host ended during the attempt, or no host began it. */
function mayHaveLeftFile({ job, outcome }: ImageJob): boolean {
  return outcome.kind === 'failed' && UNREPORTED.has(outcome.reason) && targetFile(job) !== undefined;
}

/**
 * Returns the content of succeeded commits that are neither requested in the spec nor recorded in `lastCommit`. Such a commit ended after
 * the spec requested another one. Its content is needed until its Job is deleted.
 */
function superseded(
  { object, jobs }: ObservedImage,
  { lastCommit }: Pick<ImageFacts, 'lastCommit'>,
): HasContent[] {
  const commit = 'commit' in object.spec ? object.spec.commit : undefined;
  const current = [commit?.requestedAt, lastCommit?.requestedAt];
  return jobs.flatMap(({ job, operation, requestedAt, outcome }) =>
    operation === 'commit' && outcome.kind === 'succeeded' && !current.includes(requestedAt)
      ? [{ status: { content: contentAt(job, outcome.report) } }]
      : [],
  );
}

/** Returns the known places where the storage has content of a deleted image, including files that the image's status does not name. */
export function abandonedPlaces(observed: ObservedImage): ContentPlace[] {
  const { object, config, jobs } = observed;
  const facts = gatherFacts(observed);
  const known = placesOf([object, { status: facts }, ...superseded(observed, facts)], config);
  const files = [...jobs.map(({ job }) => targetFile(job)), failedUpload(observed)].filter(
    (place) => place !== undefined,
  );
  return [...new Map([...known, ...files].map((place) => [placeKey(place), place])).values()];
}

function placesOf(objects: readonly HasContent[], config: OperatorConfig): ContentPlace[] {
  return objects
    .map((object) => placeOf(storedContent(object), config))
    .filter((place) => place !== undefined);
}

/**
 * Returns the file that a Job might have created, even if the image's status does not name this file. The result is undefined if the Job
 * stores content in a registry. A place in a registry includes a digest, and the digest of this content is not known.
 */
export function targetFile(job: Job): ContentPlace | undefined {
  const task = taskOf(job);
  const target = task !== undefined && 'target' in task ? task.target : undefined;
  return target?.type === 'folder' ? target : undefined;
}

/**
 * Returns the file that a failed upload might have left in the storage, for example because the agent restarted. The file must be removed,
 * because an upload has only one attempt. The function does not read the failed Job, because this Job might no longer exist.
 */
function failedUpload({ object, config }: ObservedImage): ContentPlace | undefined {
  const target =
    object.status?.uploadFailure === undefined
      ? undefined
      : storageTarget(object, config, object.metadata.uid ?? '');
  return target?.type === 'folder' ? target : undefined;
}

export function removalRecord({ object, kind, config }: ObservedImage, place: ContentPlace): Unsaved<Job> {
  const { name, namespace = '', uid = '' } = object.metadata;
  const hash = createHash('sha256').update(placeKey(place)).digest('hex').slice(0, 32);
  const job = taskJob({
    metadata: {
      name: `image-${OPERATION}-${hash}`,
      namespace: config.namespaces.system,
      labels: { [OPERATION_LABEL]: OPERATION },
      annotations: { [OWNER_ANNOTATION]: JSON.stringify({ kind, namespace, name, uid }) },
    },
    workload: 'image',
    task: { apiVersion: TASK_API_VERSION, type: 'remove', place },
    containerImage: imageObjectName(object),
    // The Secret is in the namespace of this Job, so that its host may read it.
    pullSecrets: place.type === 'registry' ? [STORAGE_SECRET] : [],
    // Any host can remove the content. Perhaps the namespace no longer exists, and all hosts are dedicated to other namespaces.
    placement: { dedicatedTo: '*' },
    takesSlot: false,
    // The storage can be on the disk of the only host.
    tolerates: ['cordon', 'fullDisk'],
    activeDeadlineSeconds: REMOVAL_SECONDS,
    ttlSecondsAfterFinished: UNREAD_JOB_SECONDS,
    priorityClassName: config.priorityClassName,
  });
  return { ...job, spec: { ...job.spec, suspend: true, backoffLimit: RETRIES } };
}

export function isRemoval({ metadata }: Job): boolean {
  return metadata.labels?.[OPERATION_LABEL] === OPERATION;
}

/**
 * Returns the place whose content a Job must remove. The result is undefined if the Job's task is not a removal, even if the Job has the
 * label of a removal.
 */
export function recordedPlace(job: Job): ContentPlace | undefined {
  const task = taskOf(job);
  return task?.type === 'remove' ? task.place : undefined;
}

/** Returns the object for which the Events about the removal are recorded. This is the Job itself if the annotation cannot be read. */
export function contentOwner(job: Job): KubeObject {
  const text = job.metadata.annotations?.[OWNER_ANNOTATION];
  const { data } = ownerSchema.safeParse(parseDocument(text));
  if (data === undefined) {
    return job;
  }
  const { kind, ...metadata } = data;
  return { apiVersion: API_VERSION, kind, metadata };
}

/** Returns the Event about content that remains in the storage. `place` names the content's place, and `why` is the reason. */
export function keptEvent(place: string, why: string): OperatorEvent {
  const message = `No image needs ${place} any more, but the storage keeps it: ${why}`;
  return warning('StorageKeepsContent', 'Remove', message);
}
