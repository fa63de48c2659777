/** Reconciles Images and ISOs: their content is fetched, made, copied and published by Jobs on hosts. */
import type { Logger } from 'pino';
import { type Image, imageStatusSchema } from '../../api/v1alpha1/image.ts';
import type { ISO } from '../../api/v1alpha1/iso.ts';
import { isoStatusSchema } from '../../api/v1alpha1/iso.ts';
import { boundStatus } from '../../api/v1alpha1/status.ts';
import type { VM } from '../../api/v1alpha1/vm.ts';
import type { SaidReason } from '../../api/v1alpha1/reasons.ts';
import type { KubeClient } from '../../kube/client.ts';
import type { Consistency } from '../../kube/consistency.ts';
import type { Result } from '../../kube/controller.ts';
import type { Pod } from '../../kube/core.ts';
import { isAlreadyExists, isNotFound, isRefused } from '../../kube/errors.ts';
import type { EventRecorder } from '../../kube/events.ts';
import type { Informer } from '../../kube/informer.ts';
import { type Job, JOBS } from '../../kube/job.ts';
import { keyOf, type Resource, type Unsaved } from '../../kube/objects.ts';
import type { OperatorConfig } from '../config/config.ts';
import { mergeDiff } from '../objects/mergepatch.ts';
import { FIELD_MANAGER } from '../objects/resources.ts';
import { recordImageEvents } from './events.ts';
import { observeImage } from './observe.ts';
import type { ObservedImage } from './observed.ts';
import { planImage } from './plan.ts';
import { keptEvent } from '../imagestorage/controller.ts';
import { type Place, placeKey } from '../imagestorage/needs.ts';
import { abandonedPlaces, removalRecord, replacedPlaces } from './removalrecord.ts';

/** On Images and ISOs: held while a host is being prepared from them. */
const IMAGE_FINALIZER = 'berth.dev/image';
/** A deletion waits for VMs to be deployed; their changes are not watched for it. */
const DELETION_RECHECK_MILLISECONDS = 5_000;
/** After a refusal by quota or admission: no watch tells when the reason goes away. */
const REFUSED_RECHECK_MILLISECONDS = 10_000;

export interface ImageControllerOptions {
  readonly kind: 'Image' | 'ISO';
  readonly resource: Resource<Image> | Resource<ISO>;
  readonly objects: Informer<Image> | Informer<ISO>;
  readonly client: KubeClient;
  readonly vms: Informer<VM>;
  readonly jobs: Informer<Job>;
  readonly taskPods: Informer<Pod>;
  readonly config: OperatorConfig;
  readonly recorder: EventRecorder<SaidReason>;
  readonly consistency: Consistency;
  readonly clock: () => number;
}

export class ImageReconciler {
  readonly #options: ImageControllerOptions;

  constructor(options: ImageControllerOptions) {
    this.#options = options;
  }

  /** One look at one object; `key` is `namespace/name`. */
  async reconcile(key: string, { logger }: { logger: Logger }): Promise<Result> {
    const object = this.#options.objects.cache.get(key);
    if (object === undefined) {
      this.#options.consistency.forget(key);
      return undefined;
    }
    try {
      return object.metadata.deletionTimestamp === undefined
        ? await this.#serve(object, logger)
        : await this.#letGo(object, logger);
    } catch (error) {
      if (isNotFound(error)) {
        return undefined;
      }
      throw error;
    }
  }

  async #serve(found: Image | ISO, logger: Logger): Promise<Result> {
    const object = await this.#withFinalizer(found);
    const observed = observeImage(this.#options, object);
    const { createJob, status, wakeMilliseconds } = planImage(observed);
    const refused = createJob === undefined ? undefined : await this.#createJob(object, createJob, logger);
    await this.#keepRecords(observed, replacedPlaces(observed, status), logger);
    await this.#writeStatus(object, refused === undefined ? status : planImage(observed, refused).status);
    const wake = refused === undefined ? wakeMilliseconds : REFUSED_RECHECK_MILLISECONDS;
    return wake === undefined ? undefined : { requeueAfterMilliseconds: wake };
  }

  /** The Jobs go with the object, by their owner reference. */
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
    await this.#setFinalizers(
      object,
      finalizers.filter((name) => name !== IMAGE_FINALIZER),
    );
    return undefined;
  }

  async #withFinalizer(object: Image | ISO): Promise<Image | ISO> {
    const { finalizers = [] } = object.metadata;
    return finalizers.includes(IMAGE_FINALIZER)
      ? object
      : await this.#setFinalizers(object, [...finalizers, IMAGE_FINALIZER]);
  }

  async #setFinalizers(object: Image | ISO, finalizers: string[]): Promise<Image | ISO> {
    const { uid, resourceVersion } = object.metadata;
    return await this.#patch(object, { metadata: { finalizers, uid, resourceVersion } });
  }

  /** Before the image lets go of its content: a crash in between leaves a record of content that is still needed, and kept. */
  async #keepRecords(observed: ObservedImage, places: readonly Place[], logger: Logger): Promise<void> {
    for (const place of places) {
      const refused = await this.#createJob(observed.object, removalRecord(observed, place), logger);
      if (refused !== undefined) {
        // A quota must not keep the image.
        this.#options.recorder.event(observed.object, keptEvent(placeKey(place), refused));
      }
    }
  }

  /** The server's words when it refuses. */
  async #createJob(object: Image | ISO, job: Unsaved<Job>, logger: Logger): Promise<string | undefined> {
    const { client, jobs, consistency } = this.#options;
    try {
      const created = await client.create(JOBS, job, { fieldManager: FIELD_MANAGER });
      consistency.wrote(keyOf(object), jobs, created.metadata.resourceVersion ?? '');
      logger.info({ job: created.metadata.name }, 'a Job for an image was made');
      return undefined;
    } catch (error) {
      if (isAlreadyExists(error)) {
        return undefined;
      }
      if (isRefused(error)) {
        logger.warn({ err: error }, 'a Job for an image was refused');
        return error.message;
      }
      throw error;
    }
  }

  async #writeStatus(object: Image | ISO, wanted: object): Promise<void> {
    const schema = this.#options.kind === 'Image' ? imageStatusSchema : isoStatusSchema;
    const status = boundStatus(schema, wanted);
    const patch = mergeDiff(object.status, status);
    if (patch === undefined) {
      return;
    }
    const { uid, resourceVersion } = object.metadata;
    await this.#patch(object, { metadata: { uid, resourceVersion }, status: patch }, 'status');
    recordImageEvents(this.#options.recorder, object, status);
  }

  async #patch(object: Image | ISO, patch: object, subresource?: 'status'): Promise<Image | ISO> {
    const { client, resource, objects, consistency } = this.#options;
    const { name, namespace = '' } = object.metadata;
    const options = { fieldManager: FIELD_MANAGER, ...(subresource && { subresource }) };
    const saved = await client.mergePatch(resource, { name, namespace }, patch, options);
    consistency.wrote(keyOf(object), objects, saved.metadata.resourceVersion ?? '');
    return saved;
  }
}
