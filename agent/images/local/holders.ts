/** Records which machine, cache entry or task holds which image of a store. */
import type { ImageId } from './layout.ts';

/**
 * Name of a holder of images. A machine holds an image from before the pull. An ImageCacheEntry holds its image until it is
 * released, also across restarts of the agent.
 */
export type Holder = `machine/${string}` | `entry/${string}` | `task/${string}`;

interface Hold {
  readonly images: Set<ImageId>;
  /** True while the holder may be reading the image or about to read it: until its clone is complete. */
  deploying: boolean;
}

export class Holders {
  readonly #holds = new Map<Holder, Hold>();
  /** Callbacks for each hold that ends or whose clone is complete. */
  readonly #waiting = new Set<() => void>();

  /** Adds an image to a holder. Returns false when the holder already has the image. */
  add(holder: Holder, id: ImageId): boolean {
    const hold = this.#of(holder);
    if (!isEntry(holder)) {
      hold.deploying = true;
    }
    const isNew = !hold.images.has(id);
    hold.images.add(id);
    return isNew;
  }

  /** Adds an image to a machine that an earlier agent cloned from the image. */
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

  /** Runs `work` while the holder has the image. If `work` fails, the hold ends, unless it existed before. */
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

  /** Returns whether a cache entry holds the image. */
  isWanted(id: ImageId): boolean {
    return this.#some(id, isEntry);
  }

  /** Returns whether a holder is between the pull and the clone of the image. */
  isDeploying(id: ImageId): boolean {
    return this.#some(id, (_, { deploying }) => deploying);
  }

  /** Resolves when the next hold ends or its clone is complete. Rejects with the signal's reason when the signal aborts. */
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
