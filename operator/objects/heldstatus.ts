/** Status changes that nobody waits for are held back for a moment, to be folded into the next write. */
import { mergeDiff } from './mergepatch.ts';

export interface HeldStatusOptions {
  /** How long a change is held back. */
  readonly holdMilliseconds: number;
  /** Milliseconds since the epoch. */
  readonly clock: () => number;
}

export interface StatusChange {
  readonly before: object | undefined;
  readonly after: object;
  /** Whether the change may be held back. Asked only when there is one. */
  readonly mayWait: () => boolean;
}

export class HeldStatus {
  readonly #options: HeldStatusOptions;
  /** Since when a change has been held back, in milliseconds since the epoch. */
  readonly #since = new Map<string, number>();

  constructor(options: HeldStatusOptions) {
    this.#options = options;
  }

  /**
   * Writes the difference, unless it is held back.
   * @param save writes a merge patch of the status
   * @returns milliseconds until the write is due; undefined when it was done or nothing differs
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

  /** For an object that is gone. */
  forget(key: string): void {
    this.#since.delete(key);
  }

  #remaining(key: string): number {
    const { clock, holdMilliseconds } = this.#options;
    const now = clock();
    const since = this.#since.get(key) ?? now;
    this.#since.set(key, since);
    return since + holdMilliseconds - now;
  }
}
