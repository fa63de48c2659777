/** Stores the objects that a watch has received, by key and by index. */
import type { Logger } from 'pino';
import { type KubeObject, keyOf } from './objects.ts';

/**
 * Change that a cache reports to its readers. If an object was deleted and created again with the same name, the cache reports `deleted`
 * and then `added`.
 */
export interface ObjectChange<T> {
  type: 'added' | 'updated' | 'deleted';
  /** State of the object after the change. For the type `deleted`, it is the object's last known state. */
  object: Readonly<T>;
  previous?: Readonly<T>;
}

/**
 * Methods with which readers use the cache. Readers must not change the objects, because the cache owns them. In tests, the objects are
 * frozen at all levels.
 */
export interface Cache<T> {
  get(key: string): Readonly<T> | undefined;
  list(): Readonly<T>[];
  /** Returns the objects for which the index has this value. @throws Error when the index does not exist. */
  byIndex(index: string, value: string): Readonly<T>[];
  /** The resourceVersion that the watch has reached. It is empty before all objects have been read for the first time. */
  readonly resourceVersion: string;
  /** Calls the handler with `added` for each object of the cache, and then for every change, in order. */
  onChange(handler: (change: ObjectChange<T>) => void): void;
}

export type IndexFunctions<T> = Record<string, (object: T) => readonly string[]>;

interface Index<T> {
  valuesOf: (object: T) => readonly string[];
  keys: Map<string, Set<string>>;
}

/** The cache with the methods that change it. Only the informer calls these methods. */
export class Store<T extends KubeObject> implements Cache<T> {
  resourceVersion = '';
  readonly #objects = new Map<string, T>();
  readonly #indexes = new Map<string, Index<T>>();
  readonly #handlers: ((change: ObjectChange<T>) => void)[] = [];
  readonly #logger: Logger;
  readonly #transform: (object: T) => T;

  /** `transform` removes fields that nobody reads. It is called before an object is stored, and is allowed to change the object. */
  constructor(
    logger: Logger,
    indexes: IndexFunctions<T> = {},
    transform: (object: T) => T = (object) => object,
  ) {
    this.#logger = logger;
    this.#transform = transform;
    for (const [name, valuesOf] of Object.entries(indexes)) {
      this.#indexes.set(name, { valuesOf, keys: new Map() });
    }
  }

  get size(): number {
    return this.#objects.size;
  }

  get(key: string): Readonly<T> | undefined {
    return this.#objects.get(key);
  }

  list(): Readonly<T>[] {
    return [...this.#objects.values()];
  }

  byIndex(name: string, value: string): Readonly<T>[] {
    const index = this.#indexes.get(name);
    if (index === undefined) {
      throw new Error(`the cache has no index ${name}`);
    }
    const found: T[] = [];
    for (const key of index.keys.get(value) ?? []) {
      const object = this.#objects.get(key);
      if (object !== undefined) {
        found.push(object);
      }
    }
    return found;
  }

  onChange(handler: (change: ObjectChange<T>) => void): void {
    this.#handlers.push(handler);
    for (const object of this.#objects.values()) {
      this.#call(handler, { type: 'added', object });
    }
  }

  /**
   * Stores the object. The caller must not change the object afterwards. If the cache already has this resourceVersion of the object,
   * nothing changes.
   */
  put(received: T): void {
    const key = keyOf(received);
    const previous = this.#objects.get(key);
    if (previous !== undefined && previous.metadata.uid !== received.metadata.uid) {
      this.delete(key);
    } else if (previous?.metadata.resourceVersion === received.metadata.resourceVersion && previous) {
      return;
    }
    const current = this.#objects.get(key);
    const object = this.#transformed(received);
    guard(object);
    this.#unindex(key, current);
    this.#objects.set(key, object);
    this.#index(key, object);
    this.#emit(
      current === undefined ? { type: 'added', object } : { type: 'updated', object, previous: current },
    );
  }

  /** Deletes an object. `last` is the object's state at the deletion. If `last` is undefined, the state in the cache is used. */
  delete(key: string, last?: T): void {
    const previous = this.#objects.get(key);
    if (previous === undefined) {
      return;
    }
    this.#unindex(key, previous);
    this.#objects.delete(key);
    const object = last === undefined ? previous : this.#transformed(last);
    guard(object);
    this.#emit({ type: 'deleted', object, previous });
  }

  /** Deletes the cached objects whose keys are not in `seen`. `seen` contains the keys of all objects that the API server returned. */
  retain(seen: ReadonlySet<string>): void {
    for (const key of this.#objects.keys()) {
      if (!seen.has(key)) {
        this.delete(key);
      }
    }
  }

  #index(key: string, object: T): void {
    for (const { valuesOf, keys } of this.#indexes.values()) {
      for (const value of this.#valuesOf(valuesOf, object)) {
        const set = keys.get(value);
        if (set === undefined) {
          keys.set(value, new Set([key]));
        } else {
          set.add(key);
        }
      }
    }
  }

  #unindex(key: string, object: T | undefined): void {
    if (object === undefined) {
      return;
    }
    for (const { valuesOf, keys } of this.#indexes.values()) {
      for (const value of this.#valuesOf(valuesOf, object)) {
        const set = keys.get(value);
        set?.delete(key);
        if (set?.size === 0) {
          keys.delete(value);
        }
      }
    }
  }

  /** Applies the transform. If the transform throws, the object is kept as it is, so that one object does not stop the watch. */
  #transformed(object: T): T {
    try {
      return this.#transform(object);
    } catch (error) {
      this.#logger.error({ err: error, key: keyOf(object) }, 'object cannot be trimmed');
      return object;
    }
  }

  /**
   * Returns the values under which an index lists the object. If the function of the index throws, the result is empty, so that one object
   * does not stop the watch.
   */
  #valuesOf(valuesOf: Index<T>['valuesOf'], object: T): readonly string[] {
    try {
      return valuesOf(object);
    } catch (error) {
      this.#logger.error({ err: error, key: keyOf(object) }, 'object cannot be indexed');
      return [];
    }
  }

  #emit(change: ObjectChange<T>): void {
    for (const handler of this.#handlers) {
      this.#call(handler, change);
    }
  }

  /** Calls a handler. If the handler throws, the error is only logged, so that the other handlers still get the change. */
  #call(handler: (change: ObjectChange<T>) => void, change: ObjectChange<T>): void {
    try {
      handler(change);
    } catch (error) {
      this.#logger.error(
        { err: error, key: keyOf(change.object), change: change.type },
        'cache handler failed',
      );
    }
  }
}

/**
 * Whether cached objects are frozen, so that an attempt to change them throws an error. It is true only in tests, because freezing takes a
 * tenth of the operator's CPU time. client-go has a mutation detector for the same purpose.
 */
const GUARDED = process.env['NODE_ENV'] === 'test';

/** Freezes an object of a cache in tests, so that an attempt to change it throws an error. */
function guard(object: object): void {
  if (GUARDED) {
    deepFreeze(object);
  }
}

/**
 * Freezes an object at all levels. The loop uses `for in`, which creates no list of the values. Therefore it takes half the time of a loop
 * over such a list.
 */
function deepFreeze(value: object): void {
  for (const key in value) {
    const child = (value as Record<string, unknown>)[key];
    if (typeof child === 'object' && child !== null) {
      deepFreeze(child);
    }
  }
  Object.freeze(value);
}
