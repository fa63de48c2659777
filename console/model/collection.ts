/** Objects of one type, as a list and the events of watches leave them. */
import { type KubeObject, keyOf } from '../../kube/objects.ts';

/** Event of a watch. An event of the type ERROR has a Status in the place of an object. */
export interface ObjectEvent<T> {
  readonly type: 'ADDED' | 'MODIFIED' | 'DELETED' | 'BOOKMARK' | 'ERROR';
  readonly object: T;
}

export class Collection<T extends KubeObject> {
  readonly #objects = new Map<string, T>();

  /** All objects, in no order. */
  get all(): T[] {
    return [...this.#objects.values()];
  }

  get size(): number {
    return this.#objects.size;
  }

  /** Returns the object with this key of {@link keyOf}. */
  get(key: string): T | undefined {
    return this.#objects.get(key);
  }

  /** Replaces all objects by those of a list. */
  replace(objects: readonly T[]): void {
    this.#objects.clear();
    for (const object of objects) {
      this.#objects.set(keyOf(object), object);
    }
  }

  /** Applies an event. Bookmarks and errors change nothing. */
  apply({ type, object }: ObjectEvent<T>): void {
    if (type === 'DELETED') {
      this.#objects.delete(keyOf(object));
    } else if (type === 'ADDED' || type === 'MODIFIED') {
      this.#objects.set(keyOf(object), object);
    }
  }
}
