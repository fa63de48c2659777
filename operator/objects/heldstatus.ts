/** Delays status changes that nobody waits for, so that one request contains several of them. */
import { mergeDiff } from '../../kube/mergepatch.ts';

export interface HeldStatusOptions {
  /** Longest delay in milliseconds before a change is stored. */
  readonly holdMilliseconds: number;
  /** Returns the current time in milliseconds since the epoch. */
  readonly clock: () => number;
}

export interface StatusChange {
  readonly before: object | undefined;
  readonly after: object;
  /** Returns true if the change can be stored later. This function is called only when there is a change. */
  readonly mayWait: () => boolean;
}

export class HeldStatus {
  readonly #options: HeldStatusOptions;
  /**
   * Time since which an object has a status change that is not stored yet, in milliseconds since the epoch. The map's key is the key of the
   * object.
   */
  readonly #since = new Map<string, number>();

  constructor(options: HeldStatusOptions) {
    this.#options = options;
  }

  /**
   * Stores the difference between the statuses `before` and `after`. A change that can wait is stored only after `holdMilliseconds`. Before
   * that, this method stores nothing, and the caller must call it again later.
   * @param save stores a merge patch of the status
   * @returns milliseconds after which the caller must call again; undefined if the status is stored or did not change
   */
  async write(
    key: string,
    { before, after, mayWait }: StatusChange,
    save: (patch: object) => Promise<void>,
  ): Promise<number | undefined> {
    const patch = mergeDiff(before, after);
    const remaining = patch !== undefined && mayWait() ? this.#remaining(key) : 0;
    if (remaining > 0) {
      return remaining;
    }
    this.forget(key);
    if (patch !== undefined) {
      await save(patch);
    }
    return undefined;
  }

  /** Forgets the delayed change of an object, for example after the object was deleted. */
  forget(key: string): void {
    this.#since.delete(key);
  }

  #remaining(key: string): number {
    const { clock, holdMilliseconds } = this.#options;
    const now = clock();
    // A clock that was set back must not lengthen the delay.
    const since = Math.min(this.#since.get(key) ?? now, now);
    this.#since.set(key, since);
    return since + holdMilliseconds - now;
  }
}
