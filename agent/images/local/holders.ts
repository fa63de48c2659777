/** Who needs which image of a store. */
import type { ImageId } from './layout.ts';

/**
 * Who needs an image. A machine needs it from before the pull. An ImageCacheEntry needs it until it lets go, also over restarts
 * of the agent.
 */
export type Holder = `machine/${string}` | `entry/${string}` | `task/${string}`;

interface Hold {
  readonly images: Set<ImageId>;
  /** It may be reading the image, or be about to: until its clone is made. */
  deploying: boolean;
}

export class Holders {
  readonly #holds = new Map<Holder, Hold>();
  /** Called at every hold that ends or is a clone by now. */
  readonly #waiting = new Set<() => void>();

  /** False when the holder has it already. */
  add(holder: Holder, id: ImageId): boolean {
    const hold = this.#of(holder);
    if (!isEntry(holder)) {
      hold.deploying = true;
    }
    const isNew = !hold.images.has(id);
    hold.images.add(id);
    return isNew;
  }

  /** The agent has found a machine that an earlier agent cloned from the image. */
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

  /** Does `work` while the holder has the image. It stays the holder's when that succeeds, or when it was before. */
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

  /** Whether a cache entry wants it. */
  isWanted(id: ImageId): boolean {
    return this.#some(id, isEntry);
  }

  /** Whether somebody is between pull and clone of it. */
  isDeploying(id: ImageId): boolean {
    return this.#some(id, (_, { deploying }) => deploying);
  }

  /** Resolves at the next hold that ends, or is a clone by then; rejects with the signal's reason. */
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
