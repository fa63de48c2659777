/** Setting a timer further ahead than 2^31 - 1 ms would fire it at once. Waking up early is harmless. */
const LONGEST_TIMER_MILLISECONDS = 2_147_483_647;

interface Delayed {
  /** By the queue's clock. */
  at: number;
  timer: NodeJS.Timeout;
}

/** A key that is ready to be worked on. */
export interface Ready {
  key: string;
  /** When it became ready, by the queue's clock. */
  since: number;
}

/**
 * A work queue of keys: each waits at most once; none is handed out while it is being worked on; one that is added meanwhile is
 * ready again after. Of several wishes to come later, the earliest counts.
 */
export class WorkQueue {
  readonly #ready = new Map<string, number>();
  readonly #working = new Set<string>();
  readonly #addedWhileWorking = new Set<string>();
  readonly #delayed = new Map<string, Delayed>();
  readonly #onReady: () => void;
  readonly #now: () => number;

  /** `onReady` is called whenever a key becomes ready. */
  constructor(onReady: () => void, now: () => number = () => performance.now()) {
    this.#onReady = onReady;
    this.#now = now;
  }

  /** Keys that are ready. */
  get depth(): number {
    return this.#ready.size;
  }

  add(key: string): void {
    this.#cancel(key);
    if (this.#working.has(key)) {
      this.#addedWhileWorking.add(key);
      return;
    }
    if (!this.#ready.has(key)) {
      this.#ready.set(key, this.#now());
      this.#onReady();
    }
  }

  addAfter(key: string, milliseconds: number): void {
    if (milliseconds <= 0) {
      this.add(key);
      return;
    }
    const at = this.#now() + milliseconds;
    const known = this.#delayed.get(key);
    if (this.#ready.has(key) || (known !== undefined && known.at <= at)) {
      return;
    }
    this.#cancel(key);
    const timer = setTimeout(() => this.add(key), Math.min(milliseconds, LONGEST_TIMER_MILLISECONDS));
    this.#delayed.set(key, { at, timer });
  }

  /** The key that has waited longest. Whoever takes it must call `done`. */
  take(): Ready | undefined {
    for (const [key, since] of this.#ready) {
      this.#ready.delete(key);
      this.#working.add(key);
      return { key, since };
    }
    return undefined;
  }

  done(key: string): void {
    this.#working.delete(key);
    if (this.#addedWhileWorking.delete(key)) {
      this.add(key);
    }
  }

  /** Forgets all that waits. What is being worked on goes on. */
  clear(): void {
    for (const { timer } of this.#delayed.values()) {
      clearTimeout(timer);
    }
    this.#delayed.clear();
    this.#ready.clear();
    this.#addedWhileWorking.clear();
  }

  #cancel(key: string): void {
    clearTimeout(this.#delayed.get(key)?.timer);
    this.#delayed.delete(key);
  }
}
