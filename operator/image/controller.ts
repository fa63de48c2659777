/**
 * Reconciles Images and ISOs. For their content the operator creates Jobs. These Jobs fetch images, save disks of VMs, and push images to
 * registries.
 */
import type { Logger } from 'pino';
import { soonest } from '../../base/time.ts';
import { type Image, type ImageStatus, imageStatusSchema } from '../../api/v1alpha1/image.ts';
import { type ISO, isoStatusSchema } from '../../api/v1alpha1/iso.ts';
import { boundStatus } from '../../api/v1alpha1/status.ts';
import { VMS } from '../../api/v1alpha1/resources.ts';
import type { VM } from '../../api/v1alpha1/vm.ts';
import type { KubeClient } from '../../kube/client.ts';
import type { Consistency } from '../../kube/consistency.ts';
import type { Controller, Result } from '../../kube/controller.ts';
import type { Pod } from '../../kube/core.ts';
import { type ApiError, isObjectRefused, isWebhookFailure, unlessMissing } from '../../kube/errors.ts';
import type { Recorder } from '../objects/events.ts';
import type { Informer } from '../../kube/informer.ts';
import { type Job, JOBS } from '../../kube/job.ts';
import { keyOf, type Resource, type Unsaved } from '../../kube/objects.ts';
import { conditionIn } from '../objects/conditions.ts';
import { mergeDiff } from '../../kube/mergepatch.ts';
import { recheckMilliseconds } from '../objects/recheck.ts';
import { refusalMessage } from '../objects/refusal.ts';
import { RefusedChanges } from '../objects/refusedchanges.ts';
import { Writer } from '../objects/writer.ts';
import { jobOf } from '../tasks/owner.ts';
import { ignoredEntries, readCredentials } from '../objects/registries.ts';
import { originKeys } from './content.ts';
import { endedJobs } from './endedjobs.ts';
import { recordImageEvents } from './events.ts';
import { expiresAt } from './expiry.ts';
import { type ImageSources, observeImage, type ObservedImage } from './observe.ts';
import { type Place, placeKey } from './place.ts';
import { planImage, vmWithoutDisk } from './plan.ts';
import { abandonedPlaces, keptEvent, removalRecord, replacedPlaces } from './removalrecord.ts';

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
  readonly #refusedChanges: RefusedChanges;

  constructor(options: ImageControllerOptions) {
    const { client, consistency, resource, objects, jobs } = options;
    this.#options = options;
    this.#refusedChanges = new RefusedChanges({ ...options, dependent: 'Job' });
    this.#objects = new Writer<Image | ISO>({ client, consistency, type: resource, informer: objects });
    this.#jobs = new Writer({ client, consistency, type: JOBS, informer: jobs });
  }

  /** Reconciles one object once. `key` is `namespace/name`. */
  async reconcile(key: string, { logger }: { logger: Logger }): Promise<Result> {
    const object = this.#options.objects.cache.get(key);
    if (object === undefined) {
      this.#options.consistency.forget(key);
      this.#refusedChanges.forget(key);
      return undefined;
    }
    const isDeleted = object.metadata.deletionTimestamp !== undefined;
    const served = unlessMissing(isDeleted ? this.#letGo(object, logger) : this.#serve(object, logger));
    return await this.#refusedChanges.during(object, served);
  }

  async #serve(found: Image | ISO, logger: Logger): Promise<Result> {
    const object = await this.#withFinalizer(found);
    if (object === undefined) {
      return undefined;
    }
    const current = await this.#withCurrentVM(observeImage(this.#options, object));
    const observed = await this.#withCredentials(current);
    const { createJob, status, wakeMilliseconds } = planImage(observed);
    const expiry = expiresAt(object, status);
    if (expiry !== undefined && observed.now >= expiry) {
      logger.info('deleting an Image whose TTL is over');
      await this.#objects.deleteUnchanged(object);
      return undefined;
    }
    const refusal = createJob === undefined ? undefined : await this.#createJob(object, createJob, logger);
    const refused = refusal && refusalMessage(refusal, conditionIn(object.status, 'Reconciling')?.message);
    await this.#keepRecords(observed, replacedPlaces(observed, status), logger);
    await this.#writeStatus(object, refused === undefined ? status : planImage(observed, refused).status);
    const nextJobAt = await this.#deleteJobs(observed, status);
    const waitsSince = conditionIn(object.status, 'Reconciling')?.lastTransitionTime;
    const wake = refused === undefined ? wakeMilliseconds : recheckMilliseconds(waitsSince, observed.now);
    return {
      requeueAfterMilliseconds: soonest(wake, ...[expiry, nextJobAt].map((at) => at && at - observed.now)),
    };
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
    const observed = observeImage(this.#options, object);
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
   * @throws ApiError when a webhook cannot be called. Only the status or the finalizer still names the content, so both must stay until the
   * webhook answers.
   */
  async #keepRecords(observed: ObservedImage, places: readonly Place[], logger: Logger): Promise<void> {
    for (const place of places) {
      const refused = await this.#createJob(observed.object, removalRecord(observed, place), logger);
      if (refused === undefined) {
        continue;
      }
      if (isWebhookFailure(refused)) {
        throw refused;
      }
      // An Event reports that a quota refused the Job. The refusal must not stop the work for the image.
      this.#options.recorder.event(observed.object, keptEvent(placeKey(place), refused.message));
    }
  }

  /** Creates the Job. Returns the API server's error when it does not accept the Job, otherwise undefined. */
  async #createJob(object: Image | ISO, job: Unsaved<Job>, logger: Logger): Promise<ApiError | undefined> {
    try {
      const created = await this.#jobs.create(keyOf(object), job);
      if (created !== undefined) {
        logger.info({ job: created.metadata.name }, 'a Job for an image was made');
      }
      return undefined;
    } catch (error) {
      if (isObjectRefused(error)) {
        logger.warn({ err: error }, 'a Job for an image was refused');
        return error;
      }
      throw error;
    }
  }

  /**
   * Deletes the Jobs that have ended long ago. The stored status contains their results.
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
 * Returns functions that find the Images or ISOs to reconcile when another object changes. Each function returns keys (`namespace/name`).
 * Some of the functions search all Images or ISOs. This takes little time, because there are far fewer Images than VMs.
 */
export function imagesAffected({ kind, objects, config }: Pick<ImageSources, 'kind' | 'objects' | 'config'>) {
  const matching = (test: (object: Image | ISO) => boolean): string[] =>
    objects.cache.list().filter(test).map(keyOf);
  const byJob = ({ metadata: { namespace, ownerReferences = [] } }: Job): string[] =>
    ownerReferences.filter((owner) => owner.kind === kind).map(({ name }) => `${namespace}/${name}`);
  return {
    byOrigin: (origin: Image | ISO) =>
      matching((object) => originKeys(object, config).includes(keyOf(origin))),
    byJob,
    byPod: (pod: Pod, jobs: Informer<Job>) => {
      const job = jobOf(pod, jobs);
      return job === undefined ? [] : byJob(job);
    },
    byVM: ({ metadata: { name, namespace } }: VM) =>
      matching(({ spec, metadata }) => metadata.namespace === namespace && vmNames(spec).includes(name)),
  };
}

function vmNames(spec: Image['spec'] | ISO['spec']): (string | undefined)[] {
  const fromVM = 'fromVM' in spec.source ? spec.source.fromVM?.name : undefined;
  return [fromVM, 'commit' in spec ? spec.commit?.vmName : undefined];
}

/** Enqueues the Images or ISOs that depend on a changed object: an Image or ISO, a Job, a Job's Pod, or a VM. */
export function enqueueImages(controller: Controller, options: Omit<ImageSources, 'clock'>): void {
  const { objects, vms, jobs, taskPods } = options;
  const enqueue = (keys: readonly string[]): void => keys.forEach((key) => controller.enqueue(key));
  const affected = imagesAffected(options);
  objects.cache.onChange(({ object }) => enqueue([keyOf(object), ...affected.byOrigin(object)]));
  jobs.cache.onChange(({ object }) => enqueue(affected.byJob(object)));
  taskPods.cache.onChange(({ object }) => enqueue(affected.byPod(object, jobs)));
  vms.cache.onChange(({ type, object, previous }) => {
    if (type !== 'updated' || diskKey(object) !== diskKey(previous)) {
      enqueue(affected.byVM(object));
    }
  });
}

/**
 * Returns a text that changes when the VM first runs, and when it fails. Each of these changes can end the wait of an Image for the disk of
 * the VM.
 */
function diskKey(vm: VM | undefined): string {
  const { firstRunningTime, failure } = vm?.status ?? {};
  return `${firstRunningTime} ${failure?.time}`;
}
