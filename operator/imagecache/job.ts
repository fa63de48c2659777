/** Builds the Job that does the work of one entry on one host. */
import { createHash } from 'node:crypto';
import { API_VERSION } from '../../api/v1alpha1/names.ts';
import { TASK_API_VERSION, type Task } from '../../api/v1alpha1/task.ts';
import type { Job } from '../../kube/core.ts';
import type { Unsaved } from '../../kube/objects.ts';
import { credentialsFor, insecureAnnotation, pullSecretNames } from '../objects/registries.ts';
import { referencesOf, taskJob } from '../tasks/job.ts';
import { ENTRY_NAME_LABEL, ENTRY_UID_LABEL } from '../tasks/owner.ts';
import { attemptKey } from './attempt.ts';
import { isCached, type ObservedEntry, type TaskType } from './observed.ts';
import type { Start } from './plan.ts';

/**
 * Annotation that names the attempt for which the Job was created. The request that stores the Job's result in the entry's status also
 * changes the attempt in the status. Therefore the result is already stored if the annotation and the status name different attempts.
 */
export const ATTEMPT_ANNOTATION = 'berth.dev/cache-turn';

/** Largest number of characters in the value of a label. An entry's name can have 253 characters, so a long name is cut. */
const LABEL_LENGTH = 63;
/** Number of hexadecimal digits of the hash in a Job's name. With these 96 bits, the Jobs of two hosts never get the same name. */
const HASH_DIGITS = 24;

/**
 * Time in seconds that an ended Job stays when no operator runs. A running operator deletes the Job as soon as it sees that the Job has
 * ended.
 */
const TTL_SECONDS = 3600;
/**
 * Time limit in seconds for a removal. A host removes an image only when no deployment uses the image. Therefore the limit is longer than
 * the default time limit of a deployment, ten minutes.
 */
const REMOVAL_SECONDS = 900;
/** Time in seconds for which a Job waits for a lost host. If the host returns after this time, nobody removes the image from the host. */
export const PARKED_SECONDS = 30 * 24 * 3600;
/**
 * Number of retries of a parked Job. A parked Job belongs to a deleted entry, and waits for a lost host. The operator plans no work for a
 * deleted entry, so the Job controller repeats the work. The number is the default of Kubernetes.
 */
const PARKED_RETRIES = 6;

/**
 * Returns the Job for a host. The result is undefined if there is nothing to fetch. The system namespace gets no Job that fetches, although
 * the removals of a namespace that is being deleted run there: the entry would choose a Secret of the system namespace.
 */
export function buildJob(observed: ObservedEntry, start: Start): Unsaved<Job> | undefined {
  const { image, config, jobNamespace, entry } = observed;
  const task = taskOf(observed, start);
  const isCaching = start.type === 'cache';
  if (task === undefined || (isCaching && jobNamespace !== entry.metadata.namespace)) {
    return undefined;
  }
  const credentials = isCaching ? credentialsFor(referencesOf(task), observed.credentials) : [];
  const job = taskJob({
    metadata: metadataOf(observed, start),
    workload: 'cache',
    task,
    containerImage: isCached(image) ? image.containerImage : observed.reference,
    pullSecrets: isCaching ? pullSecretsOf(observed, credentials) : [],
    annotations: insecureAnnotation(credentials),
    placement: { nodeName: start.host, dedicatedTo: dedicatedTo(observed, start) },
    takesSlot: isCaching,
    // A removal frees disk space, so it must be possible on a host whose disk is nearly full.
    tolerates: isCaching ? [] : ['cordon', 'fullDisk'],
    activeDeadlineSeconds: isCaching ? remaining(observed, start) : removal(start),
    ttlSecondsAfterFinished: TTL_SECONDS,
    priorityClassName: config.priorityClassName,
  });
  return start.isParked ? { ...job, spec: { ...job.spec, backoffLimit: PARKED_RETRIES } } : job;
}

function metadataOf({ entry, jobNamespace }: ObservedEntry, { type, host, row }: Start) {
  const { name, uid = '' } = entry.metadata;
  const owner = { apiVersion: API_VERSION, kind: 'ImageCacheEntry', name, uid, controller: true };
  return {
    name: jobName(type, uid, host),
    namespace: jobNamespace,
    labels: { [ENTRY_UID_LABEL]: uid, [ENTRY_NAME_LABEL]: nameLabel(name) },
    annotations: { [ATTEMPT_ANNOTATION]: attemptKey(row) },
    // The Job of a removal has no owner reference to the entry. Therefore this Job continues to exist if the entry is deleted while the host
    // is lost.
    ...(type === 'cache' && { ownerReferences: [owner] }),
  };
}

function pullSecretsOf({ entry }: ObservedEntry, credentials: ObservedEntry['credentials']) {
  const { pullSecretName } = entry.spec;
  return pullSecretNames(pullSecretName === undefined ? [] : [pullSecretName], credentials);
}

/** Returns the namespace whose hosts the Job may use. A host that has been given to another namespace must still remove the image. */
function dedicatedTo({ entry, hosts }: ObservedEntry, { type, host }: Start): string {
  const { namespace = '' } = entry.metadata;
  return type === 'cache' || hosts.get(host)?.dedicatedTo === namespace ? namespace : '*';
}

function taskOf({ entry, image }: ObservedEntry, { type, row }: Start): Task | undefined {
  const { namespace = '', uid = '' } = entry.metadata;
  const holder = { apiVersion: TASK_API_VERSION, entry: uid } as const;
  if (type === 'uncache') {
    return { ...holder, type, namespace };
  }
  return isCached(image) ? { ...holder, type, image: image.task, refresh: row.refresh === true } : undefined;
}

/**
 * Returns the time limit of a Job in seconds: the rest of the time limit that started when the host was first queued. One second is added,
 * so that the operator notices the deadline before the Job fails. Only the operator can report why the host waited.
 */
function remaining({ config, now }: ObservedEntry, { row }: Start): number {
  const spent = (now - Date.parse(row.queuedAt ?? '')) / 1000;
  return Math.max(0, Math.ceil(config.cache_job_active_deadline_seconds - spent)) + 1;
}

function removal({ isParked }: Start): number {
  return isParked ? PARKED_SECONDS : REMOVAL_SECONDS;
}

/**
 * Returns the name of a Job. It depends only on the entry, the host and the type of work, so the API server refuses an accidental second
 * Job.
 */
function jobName(type: TaskType, entryUid: string, host: string): string {
  const digest = createHash('sha256').update(`${entryUid}/${host}`).digest('hex');
  return `${type}-${digest.slice(0, HASH_DIGITS)}`;
}

function nameLabel(name: string): string {
  return name.slice(0, LABEL_LENGTH).replace(/[^a-z0-9]+$/, '');
}
