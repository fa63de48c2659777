/**
 * Records the holders of the images of a store: the machines, cache entries and tasks that need an image. The store does not remove an
 * image that has a holder.
 */
import type { ImageId } from './layout.ts';

/**
 * Name of a holder: a machine, an ImageCacheEntry or a task that needs images on this host. A machine becomes a holder of its image before
 * the pull. An ImageCacheEntry remains a holder of its image until the entry is removed, even after a restart of the agent.
 */
export type Holder = `machine/${string}` | `entry/${string}` | `task/${string}`;

interface Hold {
  readonly images: Set<ImageId>;
  /** True while the holder fetches or clones the image. A task does not clone an image, so the field becomes false after its fetch. */
  deploying: boolean;
}

export class Holders {
  readonly #holds = new Map<Holder, Hold>();
  /** Callbacks that run each time a holder no longer needs an image, or has completed its clone of an image. */
  readonly #waiting = new Set<() => void>();

  /** Records that the holder needs the image. Returns false when the record already existed. */
  add(holder: Holder, id: ImageId): boolean {
    const hold = this.#of(holder);
    if (!isEntry(holder)) {
      hold.deploying = true;
    }
    const isNew = !hold.images.has(id);
    hold.images.add(id);
    return isNew;
  }

  /** Records that a machine needs the image from which it was cloned before the agent's restart. */
  adopt(holder: Holder, id: ImageId): void {
    this.#of(holder).images.add(id);
  }

  drop(holder: Holder, id: ImageId): void {
    const hold = this.#holds.get(holder);
    hold?.images.delete(id);
    if (hold?.images.size === 0) {
      this.#holds.delete(holder);
    }
    this.#tell();
  }

  cloned(holder: Holder): void {
    const hold = this.#holds.get(holder);
    if (hold !== undefined) {
      hold.deploying = false;
    }
    this.#tell();
  }

  release(holder: Holder): void {
    this.#holds.delete(holder);
    this.#tell();
  }

  /**
   * Records that the holder needs the image, and runs `work`. If `work` fails, the function removes the record, unless the record existed
   * before the call.
   */
  async during<T>(holder: Holder, id: ImageId, work: () => Promise<T>): Promise<T> {
    const isNew = this.add(holder, id);
    try {
      return await work();
    } catch (error) {
      if (isNew) {
        this.drop(holder, id);
      }
      throw error;
    }
  }

  imagesOf(holder: Holder): ImageId[] {
    return [...(this.#holds.get(holder)?.images ?? [])];
  }

  isHeld(id: ImageId): boolean {
    return this.#some(id, () => true);
  }

  /** Returns whether a cache entry needs the image. */
  isWanted(id: ImageId): boolean {
    return this.#some(id, isEntry);
  }

  /** Returns whether a machine or task needs the image. */
  isUsed(id: ImageId): boolean {
    return this.#some(id, (holder) => !isEntry(holder));
  }

  /** Returns whether a machine or task has not yet completed its fetch or clone of the image. */
  isDeploying(id: ImageId): boolean {
    return this.#some(id, (_, { deploying }) => deploying);
  }

  /**
   * Resolves as soon as a holder no longer needs an image, or has completed its clone of an image. Rejects with the signal's reason when
   * the signal aborts.
   */
  async change(signal: AbortSignal): Promise<void> {
    signal.throwIfAborted();
    const { promise, resolve } = Promise.withResolvers<void>();
    const wake = (): void => resolve();
    this.#waiting.add(wake);
    signal.addEventListener('abort', wake);
    await promise;
    signal.removeEventListener('abort', wake);
    this.#waiting.delete(wake);
    signal.throwIfAborted();
  }

  #tell(): void {
    for (const wake of this.#waiting) {
      wake();
    }
  }

  #of(holder: Holder): Hold {
    const known = this.#holds.get(holder);
    if (known !== undefined) {
      return known;
    }
    const made = { images: new Set<ImageId>(), deploying: false };
    this.#holds.set(holder, made);
    return made;
  }

  #some(id: ImageId, test: (holder: Holder, hold: Hold) => boolean): boolean {
    for (const [holder, hold] of this.#holds) {
      if (hold.images.has(id) && test(holder, hold)) {
        return true;
      }
    }
    return false;
  }
}

function isEntry(holder: Holder): boolean {
  return holder.startsWith('entry/');
}
