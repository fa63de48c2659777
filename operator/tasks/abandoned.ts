/**
 * Deletes ended Jobs whose object no longer exists. Kubernetes deletes a Job that has an owner reference. The Job that removes an image from
 * a host has none, so that it outlives its ImageCacheEntry while the host is lost. If somebody deletes an Image with `--cascade=orphan`, the
 * Jobs of the Image also lose their owner references.
 */
import type { Logger } from 'pino';
import type { Image } from '../../api/v1alpha1/image.ts';
import type { ImageCacheEntry } from '../../api/v1alpha1/imagecacheentry.ts';
import type { ISO } from '../../api/v1alpha1/iso.ts';
import { IMAGE_CACHE_ENTRIES, IMAGES, ISOS } from '../../api/v1alpha1/resources.ts';
import type { KubeClient } from '../../kube/client.ts';
import type { Consistency } from '../../kube/consistency.ts';
import type { Controller, Result } from '../../kube/controller.ts';
import type { Informer } from '../../kube/informer.ts';
import { type Job, JOBS } from '../../kube/core.ts';
import type { KubeObject } from '../../kube/objects.ts';
import { Writer } from '../objects/writer.ts';
import { trueCondition } from './outcome.ts';
import { controllerOf, ownersOf } from './owner.ts';

/** The only key of this controller. One reconcile handles all abandoned Jobs, so that the API server is asked only once for all of them. */
const ABANDONED_KEY = 'abandoned';

/** Kinds whose objects have Jobs. */
const OWNERS = [IMAGE_CACHE_ENTRIES, IMAGES, ISOS];

export interface AbandonedJobSources {
  readonly jobs: Informer<Job>;
  readonly entries: Informer<ImageCacheEntry>;
  readonly images: Informer<Image>;
  readonly isos: Informer<ISO>;
}

export interface AbandonedJobOptions extends AbandonedJobSources {
  readonly client: KubeClient;
  readonly consistency: Consistency;
}

export class AbandonedJobReconciler {
  readonly #options: AbandonedJobOptions;
  readonly #jobs: Writer<Job>;

  constructor(options: AbandonedJobOptions) {
    const { client, consistency, jobs } = options;
    this.#options = options;
    this.#jobs = new Writer({ client, consistency, type: JOBS, informer: jobs });
  }

  /**
   * Deletes the ended Jobs whose objects the API server no longer has. The caches only select the Jobs, because a cache might not show a new
   * object yet.
   */
  async reconcile(_key: string, { logger }: { logger: Logger }): Promise<Result> {
    const known = this.#knownUids();
    const suspects = this.#options.jobs.cache.list().filter((job) => isLeft(job) && !belongsTo(job, known));
    if (suspects.length === 0) {
      return undefined;
    }
    const existing = await this.#existingUids();
    for (const job of suspects.filter((one) => !belongsTo(one, existing))) {
      await this.#jobs.delete(job, { propagationPolicy: 'Background' });
      logger.info(
        { job: job.metadata.name },
        'an ended Job was deleted, because its object no longer exists',
      );
    }
    return undefined;
  }

  #knownUids(): Set<string> {
    const { entries, images, isos } = this.#options;
    const objects: Readonly<KubeObject>[] = [
      ...entries.cache.list(),
      ...images.cache.list(),
      ...isos.cache.list(),
    ];
    return new Set(objects.map(({ metadata: { uid = '' } }) => uid));
  }

  async #existingUids(): Promise<Set<string>> {
    const uids = new Set<string>();
    for (const type of OWNERS) {
      for await (const { items } of this.#options.client.pages<KubeObject>(type)) {
        items.forEach(({ metadata: { uid = '' } }) => uids.add(uid));
      }
    }
    return uids;
  }
}

/** Returns true if the Job has ended and Kubernetes does not delete it together with another object. */
function isLeft(job: Readonly<Job>): boolean {
  return (
    ownersOf(job).length > 0 &&
    controllerOf(job) === undefined &&
    job.metadata.deletionTimestamp === undefined &&
    trueCondition(job, 'Complete', 'Failed') !== undefined
  );
}

function belongsTo(job: Readonly<Job>, uids: ReadonlySet<string>): boolean {
  return ownersOf(job).some((uid) => uids.has(uid));
}

/** Enqueues the only key when a Job has ended, and when an object that might have such a Job is deleted. */
export function enqueueAbandonedJobs(
  controller: Controller,
  { jobs, entries, images, isos }: AbandonedJobSources,
): void {
  jobs.cache.onChange(({ type, object }) => {
    if (type !== 'deleted' && isLeft(object)) {
      controller.enqueue(ABANDONED_KEY);
    }
  });
  for (const { cache } of [entries, images, isos]) {
    cache.onChange(({ type }) => {
      if (type === 'deleted' && jobs.cache.list().some(isLeft)) {
        controller.enqueue(ABANDONED_KEY);
      }
    });
  }
}
