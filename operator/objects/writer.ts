/** The one way in which reconciles write objects of a kind. Every write is safe to repeat and fails when stale. */
import type { KubeClient } from '../../kube/client.ts';
import type { Consistency, Follower } from '../../kube/consistency.ts';
import { isAlreadyExists, isConflict, isNotFound } from '../../kube/errors.ts';
import type { KubeObject, Ref, Resource, Unsaved } from '../../kube/objects.ts';
import { FIELD_MANAGER } from './resources.ts';

export interface WriterOptions<T extends KubeObject> {
  readonly client: KubeClient;
  readonly type: Resource<T>;
  /** Where a write comes back: the next reconcile of its key waits for it. */
  readonly informer: Follower;
  readonly consistency: Consistency;
}

/** `key` names the reconcile that writes, and all methods reject with an ApiError that they do not mention here. */
export class Writer<T extends KubeObject> {
  readonly #options: WriterOptions<T>;

  constructor(options: WriterOptions<T>) {
    this.#options = options;
  }

  /**
   * Merges `change` into the object, which must be as it was read.
   * @returns the object as stored; undefined when it is gone
   * @throws ApiError a conflict when the object has changed since it was read
   */
  async patch(
    key: string,
    object: T,
    change: { readonly metadata?: object; readonly spec?: object; readonly status?: object },
    subresource?: 'status' | 'resize',
  ): Promise<T | undefined> {
    const { client, type } = this.#options;
    const { uid, resourceVersion } = object.metadata;
    const body = { ...change, metadata: { ...change.metadata, uid, resourceVersion } };
    try {
      const options = { fieldManager: FIELD_MANAGER, subresource };
      return this.follow(key, await client.mergePatch(type, refTo(object), body, options));
    } catch (error) {
      if (isNotFound(error)) {
        return undefined;
      }
      throw error;
    }
  }

  /** @returns the object as stored; undefined when it is gone */
  async setFinalizer(key: string, object: T, finalizer: string, isHeld: boolean): Promise<T | undefined> {
    const others = object.metadata.finalizers?.filter((name) => name !== finalizer) ?? [];
    return await this.patch(key, object, {
      metadata: { finalizers: isHeld ? [...others, finalizer] : others },
    });
  }

  /** @returns the object as stored; undefined when there is one of that name already */
  async create(key: string, object: Unsaved<T>): Promise<T | undefined> {
    const { client, type } = this.#options;
    try {
      return this.follow(key, await client.create(type, object, { fieldManager: FIELD_MANAGER }));
    } catch (error) {
      if (isAlreadyExists(error)) {
        return undefined;
      }
      throw error;
    }
  }

  /** Deletes this object and no later one of its name. An object that is gone counts as deleted. */
  async delete(
    { metadata }: Pick<T, 'metadata'>,
    options: Pick<
      Parameters<KubeClient['delete']>[2] & object,
      'gracePeriodSeconds' | 'propagationPolicy'
    > = {},
  ): Promise<void> {
    const { client, type } = this.#options;
    try {
      await client.delete(type, refTo({ metadata }), { uid: metadata.uid, ...options });
    } catch (error) {
      // Another object has the name by now: this one is gone.
      if (!isConflict(error)) {
        throw error;
      }
    }
  }

  /** Has the next reconcile of `key` wait until the informer shows the object, which the API server has shown. */
  follow(key: string, object: T): T {
    const { consistency, informer } = this.#options;
    consistency.wrote(key, informer, object.metadata.resourceVersion ?? '');
    return object;
  }
}

function refTo({ metadata: { namespace, name } }: Pick<KubeObject, 'metadata'>): Ref {
  return namespace === undefined ? { name } : { namespace, name };
}
