/**
 * Reconciles Images and ISOs. For their content the operator creates Jobs. These Jobs fetch images, save disks of VMs, and push images to
 * registries. The operator records Events, and deletes ended Jobs.
 */
import type { Logger } from 'pino';
import { soonest } from '../../base/time.ts';
import { type Image, type ImageStatus, imageStatusSchema } from '../../api/v1alpha1/image.ts';
import { type ISO, isoStatusSchema } from '../../api/v1alpha1/iso.ts';
import { boundStatus } from '../../api/v1alpha1/status.ts';
import { VMS } from '../../api/v1alpha1/resources.ts';
import type { KubeClient } from '../../kube/client.ts';
import type { Consistency } from '../../kube/consistency.ts';
import type { Result } from '../../kube/controller.ts';
import { isObjectRefused, isRefusedByRule, unlessMissing } from '../../kube/errors.ts';
import { normal, type Recorder, warning } from '../objects/events.ts';
import { type Job, JOBS } from '../../kube/core.ts';
import { keyOf, type Resource, type Unsaved } from '../../kube/objects.ts';
import { conditionIn } from '../objects/conditions.ts';
import { mergeDiff } from '../../kube/mergepatch.ts';
import { recheckMilliseconds, refusalMessage, Refusals } from '../objects/refusals.ts';
import { Writer } from '../objects/writer.ts';
import { TASKS_BY_OWNER } from '../tasks/owner.ts';
import { RefusedPods } from '../tasks/refusedpods.ts';
import { ignoredEntries, readCredentials } from '../objects/registries.ts';
import { expiresAt, withoutMemory } from './status.ts';
import { type ImageJob, type ImageSources, type ObservedImage, observeImage } from './observe.ts';
import {
  abandonedPlaces,
  keptEvent,
  keptForFile,
  type ContentPlace,
  placeKey,
  removalRecord,
  replacedPlaces,
} from './place.ts';
import { planImage, vmWithoutDisk } from './plan.ts';
import { trueCondition } from '../tasks/outcome.ts';
import { type ImageFacts, latest } from './facts.ts';
import { saidReason } from '../../api/v1alpha1/reasons.ts';

/** Finalizer of Images and ISOs. It delays a deletion while a host prepares a VM from the image. */
const IMAGE_FINALIZER = 'berth.dev/image';
/**
 * Time in milliseconds between two checks whether an image can be deleted. Its deletion waits until no VM is being deployed from it.
 * Changes of VMs do not trigger this check.
 */
const DELETION_RECHECK_MILLISECONDS = 5_000;
export interface ImageControllerOptions extends ImageSources {
  readonly resource: Resource<Image> | Resource<ISO>;
  readonly client: KubeClient;
  readonly recorder: Recorder;
  readonly consistency: Consistency;
}

export class ImageReconciler {
  readonly #options: ImageControllerOptions;
  readonly #objects: Writer<Image | ISO>;
  readonly #jobs: Writer<Job>;
  readonly #refusals: Refusals;
  readonly #refusedPods: RefusedPods;

  constructor(options: ImageControllerOptions) {
    const { client, consistency, resource, objects, jobs } = options;
    this.#options = options;
    this.#refusals = new Refusals({ ...options, dependent: 'Job' });
    this.#refusedPods = new RefusedPods(options);
    this.#objects = new Writer<Image | ISO>({ client, consistency, type: resource, informer: objects });
    this.#jobs = new Writer({ client, consistency, type: JOBS, informer: jobs });
  }

  /** Reconciles one object once. `key` is `namespace/name`. */
  async reconcile(key: string, { logger }: { logger: Logger }): Promise<Result> {
    const object = this.#options.objects.cache.get(key);
    if (object === undefined) {
      this.#options.consistency.forget(key);
      this.#refusals.forget(key);
      return undefined;
    }
    const isDeleted = object.metadata.deletionTimestamp !== undefined;
    const served = unlessMissing(isDeleted ? this.#letGo(object, logger) : this.#begin(object, logger));
    return await this.#refusals.during(object, served);
  }

  /**
   * Serves an object. If this fails before the object has a status, and people must be told about the error, the status gets the words of
   * the API server. @throws the error
   */
  async #begin(object: Image | ISO, logger: Logger): Promise<Result> {
    try {
      return await this.#serve(object, logger);
    } catch (error) {
      const refused = this.#refusals.judge(keyOf(object), error);
      if (refused !== undefined && object.status?.phase === undefined) {
        await this.#writeStatus(object, planImage(this.#observe(object), refused.message).status);
      }
      throw error;
    }
  }

  async #serve(found: Image | ISO, logger: Logger): Promise<Result> {
    const object = await this.#withFinalizer(found);
    if (object === undefined) {
      return undefined;
    }
    const jobs = this.#options.jobs.cache.byIndex(TASKS_BY_OWNER, object.metadata.uid ?? '');
    const nextQuestion = await this.#refusedPods.ask(jobs);
    const current = await this.#withCurrentVM(this.#observe(object));
    const observed = await this.#withCredentials(current);
    const { createJob, status, wakeMilliseconds } = planImage(observed);
    const expiry = expiresAt(object, status);
    if (expiry !== undefined && observed.now >= expiry) {
      logger.info('deleting an Image whose TTL is over');
      await this.#objects.deleteUnchanged(object);
      return undefined;
    }
    const refusal = createJob === undefined ? undefined : await this.#createJob(object, createJob, logger);
    await this.#keepRecords(observed, replacedPlaces(observed, status), logger);
    await (refusal === undefined ? this.#writeStatus(object, status) : this.#tellRefusal(observed, refusal));
    const nextJobAt = await this.#deleteJobs(observed, status);
    const waitsSince = conditionIn(object.status, 'Reconciling')?.lastTransitionTime;
    const wake = refusal === undefined ? wakeMilliseconds : recheckMilliseconds(waitsSince, observed.now);
    const dates = [expiry, nextJobAt].map((at) => at && at - observed.now);
    return { requeueAfterMilliseconds: soonest(wake, nextQuestion, ...dates) };
  }

  #observe(object: Image | ISO): ObservedImage {
    return observeImage(this.#options, object, (job) => this.#refusedPods.messageFor(job));
  }

  /**
   * Stores the status with the words of the API server, which refused the Job.
   * @throws the refusal if it is an unknown error that lasts, so that the controller counts it and tries again
   */
  async #tellRefusal(observed: ObservedImage, refusal: Error): Promise<void> {
    const { object } = observed;
    const reported = refusalMessage(refusal, conditionIn(object.status, 'Reconciling')?.message);
    await this.#writeStatus(object, planImage(observed, reported).status);
    if (!isObjectRefused(refusal)) {
      throw refusal;
    }
  }

  /**
   * If a commit would fail because its VM has not run, the function reads the VM from the API server. The cache can lack the first run of
   * the VM, and nobody repeats a commit that failed.
   */
  async #withCurrentVM(observed: ObservedImage): Promise<ObservedImage> {
    const name = vmWithoutDisk(observed);
    if (name === undefined) {
      return observed;
    }
    const { namespace = '' } = observed.object.metadata;
    const vm = await unlessMissing(this.#options.client.get(VMS, { namespace, name }));
    return { ...observed, vm: () => vm };
  }

  /** If a Job must be created, adds the registry credentials of the image's namespace to the observed state. */
  async #withCredentials(observed: ObservedImage): Promise<ObservedImage> {
    const { client, recorder } = this.#options;
    const { namespace = '' } = observed.object.metadata;
    if (planImage(observed).createJob === undefined) {
      return observed;
    }
    const { credentials, mistakes } = await readCredentials(client, namespace);
    const ignored = ignoredEntries(mistakes);
    if (ignored !== undefined) {
      recorder.event(observed.object, ignored);
    }
    return { ...observed, credentials };
  }

  /**
   * Removes the finalizer of a deleted object when no VM is being deployed from the object any more. The Jobs of the object have an owner
   * reference, so they are deleted together with the object.
   */
  async #letGo(object: Image | ISO, logger: Logger): Promise<Result> {
    const { finalizers = [] } = object.metadata;
    if (!finalizers.includes(IMAGE_FINALIZER)) {
      return undefined;
    }
    const observed = this.#observe(object);
    if (observed.deploying.length > 0) {
      await this.#writeStatus(object, planImage(observed).status);
      return { requeueAfterMilliseconds: DELETION_RECHECK_MILLISECONDS };
    }
    await this.#keepRecords(observed, abandonedPlaces(observed), logger);
    await this.#objects.setFinalizer(keyOf(object), object, IMAGE_FINALIZER, false);
    return undefined;
  }

  /** Adds the finalizer if it is missing. Returns the stored object. The result is undefined if the object no longer exists. */
  async #withFinalizer(object: Image | ISO): Promise<Image | ISO | undefined> {
    return object.metadata.finalizers?.includes(IMAGE_FINALIZER) === true
      ? object
      : await this.#objects.setFinalizer(keyOf(object), object, IMAGE_FINALIZER, true);
  }

  /**
   * Creates removal records (suspended Jobs) for content that the image will no longer use. This happens before the status changes. If the
   * operator crashes in between, a record can name content that the image still needs. Such content stays, because the operator checks
   * before each removal whether something needs the content.
   * @throws ApiError when no rule refuses the record, for example when a webhook cannot be called. Only the status or the finalizer still
   * names the content, so both must stay until the record exists.
   */
  async #keepRecords(
    observed: ObservedImage,
    places: readonly ContentPlace[],
    logger: Logger,
  ): Promise<void> {
    for (const place of places) {
      const refused = await this.#createJob(observed.object, removalRecord(observed, place), logger);
      if (refused === undefined) {
        continue;
      }
      if (!isRefusedByRule(refused)) {
        throw refused;
      }
      // An Event reports that a quota refused the Job. The refusal must not stop the work for the image.
      this.#options.recorder.event(observed.object, keptEvent(placeKey(place), refused.message));
    }
  }

  /**
   * Creates the Job. Returns the API server's error if people must be told about it, otherwise undefined.
   * @throws any other error
   */
  async #createJob(object: Image | ISO, job: Unsaved<Job>, logger: Logger): Promise<Error | undefined> {
    try {
      const created = await this.#jobs.create(keyOf(object), job);
      if (created !== undefined) {
        logger.info({ job: created.metadata.name }, 'a Job for an image was made');
      }
      return undefined;
    } catch (error) {
      const refused = this.#refusals.judge(keyOf(object), error);
      if (refused === undefined) {
        throw error;
      }
      logger.warn({ err: error }, 'a Job for an image was refused');
      return refused;
    }
  }

  /**
   * Deletes ended Jobs after some time. The stored status contains their results.
   * @returns the time when the next Job is to be deleted, in milliseconds since the epoch
   */
  async #deleteJobs(observed: ObservedImage, status: ImageStatus): Promise<number | undefined> {
    const { due, nextAt } = endedJobs(observed, status);
    for (const job of due) {
      await this.#jobs.delete(job, { propagationPolicy: 'Background' });
    }
    return nextAt;
  }

  async #writeStatus(object: Image | ISO, wanted: object): Promise<void> {
    const schema = this.#options.kind === 'Image' ? imageStatusSchema : isoStatusSchema;
    const status = boundStatus(schema, wanted);
    const patch = mergeDiff(object.status, status);
    if (patch === undefined) {
      return;
    }
    const saved = await this.#objects.patch(keyOf(object), object, { status: patch }, 'status');
    if (saved !== undefined) {
      recordImageEvents(this.#options.recorder, object, status);
    }
  }
}

/**
 * Time in milliseconds for which a failed Job stays. The next attempt needs this Job, because only the Job stores the number of the attempt.
 * Therefore the time is longer than the longest wait between attempts. During this time `kubectl describe` shows the failure.
 */
const KEPT_MILLISECONDS = 3_600_000;
/**
 * Time in milliseconds for which the Jobs of an operation stay that has succeeded. The status has their result, and their Pods stand among
 * the Pods of users. In this time people and programs that watch a Job see its end.
 */
const DONE_MILLISECONDS = 60_000;

interface EndedJobs {
  /** Jobs to delete now. The status must contain their results. */
  readonly due: readonly Job[];
  /** Time when the next Job is due, in milliseconds since the epoch. It is undefined if there is no such Job. */
  readonly nextAt: number | undefined;
}

/** Returns which ended Jobs are due. `status` contains the facts of the image that the operator has stored. */
export function endedJobs({ jobs, now }: ObservedImage, status: ImageFacts): EndedJobs {
  const kept = keptForFile(jobs, status);
  const ends = jobs
    .filter((job) => !kept.includes(job))
    .map((one) => ({ job: one.job, at: endOf(one.job) + keptMilliseconds(one, jobs) }));
  const due = ends.filter(({ at }) => at <= now).map(({ job }) => job);
  return { due, nextAt: soonest(...ends.map(({ at }) => at).filter((at) => at > now)) };
}

function keptMilliseconds({ operation, requestedAt }: ImageJob, jobs: readonly ImageJob[]): number {
  const isDone = latest(jobs, operation, requestedAt)?.outcome.kind === 'succeeded';
  return isDone ? DONE_MILLISECONDS : KEPT_MILLISECONDS;
}

/** Returns the time when the Job ended, in milliseconds since the epoch. The result is NaN while the Job has not ended. */
function endOf(job: Job): number {
  const end = trueCondition(job, 'Complete', 'Failed');
  return Date.parse(end?.lastTransitionTime ?? '');
}

function recordImageEvents(recorder: Recorder, object: Image | ISO, next: ImageStatus): void {
  const last: ImageStatus = object.status ?? {};
  if (next.phase !== last.phase) {
    phaseEvent(recorder, object, next);
  }
  actionEvent(recorder, object, { verb: 'Commit', before: last.lastCommit, after: next.lastCommit });
  actionEvent(recorder, object, { verb: 'Push', before: last.lastPush, after: next.lastPush });
}

const ACTION_REASONS = {
  Commit: { succeeded: 'CommitSucceeded', failed: 'CommitFailed' },
  Push: { succeeded: 'PushSucceeded', failed: 'PushFailed' },
} as const;

interface ActionChange {
  verb: 'Commit' | 'Push';
  before: ImageStatus['lastPush'];
  after: ImageStatus['lastPush'];
}

function actionEvent(recorder: Recorder, object: Image | ISO, { verb, before, after }: ActionChange): void {
  if (after?.finishedAt === undefined || after.finishedAt === before?.finishedAt) {
    return;
  }
  const { result, reference = '', message = '' } = after;
  recorder.event(
    object,
    result === 'Succeeded'
      ? normal(ACTION_REASONS[verb].succeeded, verb, reference)
      : warning(ACTION_REASONS[verb].failed, verb, message),
  );
}

function phaseEvent(recorder: Recorder, object: Image | ISO, next: ImageStatus): void {
  const ready = conditionIn(next, 'Ready');
  if (next.phase === 'Ready') {
    const facts = `Size of its disk: ${next.size ?? 'unknown'}. Digest of its content: ${next.digest ?? 'none'}`;
    const note = withoutMemory(object, next);
    const message = `The image is ready. ${facts}${note === '' ? '' : `. ${note}`}`;
    recorder.event(object, normal('Ready', 'Pull', message));
  } else if (next.phase === 'Failed') {
    recorder.event(object, warning(saidReason(ready?.reason, 'Failed'), 'Pull', ready?.message ?? ''));
  }
}
