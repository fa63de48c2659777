/**
 * Creates, changes and deletes objects of one kind for reconciles. Every request can be repeated safely. A patch fails if the object has
 * changed since it was read.
 */
import type { KubeClient } from '../../kube/client.ts';
import type { Consistency, Follower } from '../../kube/consistency.ts';
import { undefinedIf } from '../../base/errors.ts';
import { isAlreadyExists, isConflict, unlessMissing } from '../../kube/errors.ts';
import type { KubeObject, Ref, Resource, Unsaved } from '../../kube/objects.ts';

/** Name of the operator's field manager. */
export const FIELD_MANAGER = 'berth-operator';

export interface WriterOptions<T extends KubeObject> {
  readonly client: KubeClient;
  readonly type: Resource<T>;
  /** Informer whose cache will contain the written object. The next reconcile of the same key waits until the cache contains it. */
  readonly informer: Follower;
  readonly consistency: Consistency;
}

/**
 * Writer for the objects of one kind. `key` is the key of the reconcile that changes the object. Every method can also reject with an
 * ApiError that its docstring does not mention.
 */
export class Writer<T extends KubeObject> {
  readonly #options: WriterOptions<T>;

  constructor(options: WriterOptions<T>) {
    this.#options = options;
  }

  /**
   * Merges `change` into the object, if the object has not changed since it was read.
   * @returns the stored object; undefined if it no longer exists
   * @throws ApiError (a conflict) when the object has changed since it was read
   */
  async patch(
    key: string,
    object: T,
    change: {
      readonly metadata?: object;
      readonly spec?: object;
      readonly status?: object;
      readonly subjects?: readonly object[];
    },
    subresource?: 'status' | 'resize',
  ): Promise<T | undefined> {
    const { client, type } = this.#options;
    const { uid, resourceVersion } = object.metadata;
    const body = { ...change, metadata: { ...change.metadata, uid, resourceVersion } };
    const options = { fieldManager: FIELD_MANAGER, subresource };
    const saved = await unlessMissing(client.mergePatch(type, refTo(object), body, options));
    return saved && this.follow(key, saved);
  }

  /**
   * Adds the finalizer if `isHeld` is true, and removes it if not.
   * @returns the stored object; undefined if it no longer exists
   */
  async setFinalizer(key: string, object: T, finalizer: string, isHeld: boolean): Promise<T | undefined> {
    const others = object.metadata.finalizers?.filter((name) => name !== finalizer) ?? [];
    return await this.patch(key, object, {
      metadata: { finalizers: isHeld ? [...others, finalizer] : others },
    });
  }

  /**
   * Creates the object.
   * @returns the stored object; undefined if another object already has the name
   */
  async create(key: string, object: Unsaved<T>): Promise<T | undefined> {
    const { client, type } = this.#options;
    const creation = client.create(type, object, { fieldManager: FIELD_MANAGER });
    const created = await undefinedIf(isAlreadyExists, creation);
    return created && this.follow(key, created);
  }

  /** Deletes this object, but no later object of the same name. An object that no longer exists is treated as deleted. */
  async delete(
    { metadata }: Pick<T, 'metadata'>,
    options: Pick<
      Parameters<KubeClient['delete']>[2] & object,
      'gracePeriodSeconds' | 'propagationPolicy'
    > = {},
  ): Promise<void> {
    const { client, type } = this.#options;
    const deletion = client.delete(type, refTo({ metadata }), { uid: metadata.uid, ...options });
    // A conflict means that another object now has the name, so this object no longer exists.
    await undefinedIf(isConflict, deletion);
  }

  /**
   * Deletes this object if it has not changed since it was read. If it has changed, the reason for the deletion might no longer exist.
   * @throws ApiError (a conflict) when the object has changed since it was read
   */
  async deleteUnchanged({ metadata }: Pick<T, 'metadata'>): Promise<void> {
    const { client, type } = this.#options;
    const { uid, resourceVersion } = metadata;
    await client.delete(type, refTo({ metadata }), { uid, resourceVersion });
  }

  /** Makes the next reconcile of `key` wait until the informer shows the object that the API server returned. */
  follow(key: string, object: T): T {
    const { consistency, informer } = this.#options;
    consistency.wrote(key, informer, object.metadata.resourceVersion ?? '');
    return object;
  }
}

function refTo({ metadata: { namespace, name } }: Pick<KubeObject, 'metadata'>): Ref {
  return namespace === undefined ? { name } : { namespace, name };
}
