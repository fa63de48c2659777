/** The one place where an ImageCacheEntry's reconcile writes. Every write is safe to repeat and fails when stale. */
import type { ImageCacheEntry } from '../../api/v1alpha1/imagecacheentry.ts';
import type { KubeClient } from '../../kube/client.ts';
import type { Consistency } from '../../kube/consistency.ts';
import { isAlreadyExists, isConflict, isNotFound } from '../../kube/errors.ts';
import type { Informer } from '../../kube/informer.ts';
import { type Job, JOBS } from '../../kube/job.ts';
import type { Unsaved } from '../../kube/objects.ts';
import { FIELD_MANAGER, IMAGE_CACHE_ENTRIES } from '../objects/resources.ts';
import { CACHE_FINALIZER } from './names.ts';
import type { CacheJob } from './observed.ts';

export interface ExecutorOptions {
  readonly client: KubeClient;
  readonly entries: Informer<ImageCacheEntry>;
  readonly jobs: Informer<Job>;
  readonly consistency: Consistency;
  readonly namespace: string;
}

export class Executor {
  readonly #options: ExecutorOptions;
  /** Uids of Jobs that were deleted here and that the cache still shows. */
  readonly #deleted = new Set<string>();

  constructor(options: ExecutorOptions) {
    this.#options = options;
    options.jobs.cache.onChange(({ type, object }) => {
      if (type === 'deleted') {
        this.#deleted.delete(object.metadata.uid ?? '');
      }
    });
  }

  isDeleted(uid: string): boolean {
    return this.#deleted.has(uid);
  }

  /** Undefined when the entry is gone. */
  async setFinalizer(entry: ImageCacheEntry, isHeld: boolean): Promise<ImageCacheEntry | undefined> {
    const others = entry.metadata.finalizers?.filter((name) => name !== CACHE_FINALIZER) ?? [];
    const finalizers = isHeld ? [...others, CACHE_FINALIZER] : others;
    return await this.#patch(entry, { metadata: { finalizers } });
  }

  /** Writes only what differs; undefined when the entry is gone. */
  async writeStatus(entry: ImageCacheEntry, status: object): Promise<ImageCacheEntry | undefined> {
    return await this.#patch(entry, { status }, 'status');
  }

  /** Its Pod goes with it, whatever it is doing. */
  async deleteJob({ name, uid }: CacheJob): Promise<void> {
    const { client, namespace, jobs } = this.#options;
    try {
      await client.delete(JOBS, { namespace, name }, { uid, propagationPolicy: 'Background' });
    } catch (error) {
      // Another Job has the name by now: this one is gone.
      if (!isConflict(error)) {
        throw error;
      }
    }
    // The watch may have been faster than the answer.
    if (jobs.cache.get(`${namespace}/${name}`)?.metadata.uid === uid) {
      this.#deleted.add(uid);
    }
  }

  async createJob(entry: ImageCacheEntry, job: Unsaved<Job>): Promise<void> {
    const { client, consistency, jobs } = this.#options;
    try {
      const made = await client.create(JOBS, job, { fieldManager: FIELD_MANAGER });
      consistency.wrote(entry.metadata.name, jobs, made.metadata.resourceVersion ?? '');
    } catch (error) {
      // Its names are the operator's alone: an answer to an earlier try was lost.
      if (!isAlreadyExists(error)) {
        throw error;
      }
    }
  }

  async #patch(
    entry: ImageCacheEntry,
    body: { metadata?: object; status?: object },
    subresource?: string,
  ): Promise<ImageCacheEntry | undefined> {
    const { client, consistency, entries } = this.#options;
    const { name, uid, resourceVersion } = entry.metadata;
    const patch = { ...body, metadata: { ...body.metadata, uid, resourceVersion } };
    try {
      const saved = await client.mergePatch(IMAGE_CACHE_ENTRIES, { name }, patch, {
        fieldManager: FIELD_MANAGER,
        subresource,
      });
      consistency.wrote(name, entries, saved.metadata.resourceVersion ?? '');
      return saved;
    } catch (error) {
      if (isNotFound(error)) {
        return undefined;
      }
      throw error;
    }
  }
}
