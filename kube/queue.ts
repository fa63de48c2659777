/** Setting a timer further ahead than 2^31 - 1 ms would fire it at once. Waking up early is harmless. */
const LONGEST_TIMER_MILLISECONDS = 2_147_483_647;

interface Delayed {
  /** By the queue's clock. */
  at: number;
  timer: NodeJS.Timeout;
}

/**
 * Of so many keys that are taken, one is of the other lane when both have some: what is urgent goes first, and what is not is
 * never held up for good.
 */
const URGENT_SHARE = 4;

/** A key that is ready to be worked on. */
export interface Ready {
  key: string;
  /** When it became ready, by the queue's clock. */
  since: number;
}

/**
 * A work queue of keys: each waits at most once; none is handed out while it is being worked on; one that is added meanwhile is
 * ready again after. Of several wishes to come later, the earliest counts. Urgent keys are handed out before others, each
 * lane in its order.
 */
export class WorkQueue {
  readonly #urgent = new Map<string, number>();
  readonly #ready = new Map<string, number>();
  readonly #working = new Set<string>();
  /** And whether one of the wishes was urgent. */
  readonly #addedWhileWorking = new Map<string, boolean>();
  readonly #delayed = new Map<string, Delayed>();
  readonly #onReady: () => void;
  readonly #now: () => number;
  #taken = 0;

  /** `onReady` is called whenever a key becomes ready. */
  constructor(onReady: () => void, now: () => number = () => performance.now()) {
    this.#onReady = onReady;
    this.#now = now;
  }

  /** Keys that are ready. */
  get depth(): number {
    return this.#urgent.size + this.#ready.size;
  }

  /** A key that waits already becomes urgent, never the other way round. */
  add(key: string, { urgent = false } = {}): void {
    this.#cancel(key);
    if (this.#working.has(key)) {
      this.#addedWhileWorking.set(key, urgent || this.#addedWhileWorking.get(key) === true);
      return;
    }
    const since = this.#ready.get(key);
    if (this.#urgent.has(key) || (since !== undefined && !urgent)) {
      return;
    }
    this.#ready.delete(key);
    (urgent ? this.#urgent : this.#ready).set(key, since ?? this.#now());
    this.#onReady();
  }

  addAfter(key: string, milliseconds: number): void {
    if (milliseconds <= 0) {
      this.add(key);
      return;
    }
    const at = this.#now() + milliseconds;
    const known = this.#delayed.get(key);
    if (this.#ready.has(key) || this.#urgent.has(key) || (known !== undefined && known.at <= at)) {
      return;
    }
    this.#cancel(key);
    const timer = setTimeout(() => this.add(key), Math.min(milliseconds, LONGEST_TIMER_MILLISECONDS));
    this.#delayed.set(key, { at, timer });
  }

  /** The key that has waited longest in its lane. Whoever takes it must call `done`. */
  take(): Ready | undefined {
    const turnOfOthers = this.#taken % URGENT_SHARE === URGENT_SHARE - 1;
    const lanes = turnOfOthers ? [this.#ready, this.#urgent] : [this.#urgent, this.#ready];
    for (const lane of lanes) {
      for (const [key, since] of lane) {
        lane.delete(key);
        this.#working.add(key);
        this.#taken += 1;
        return { key, since };
      }
    }
    return undefined;
  }

  done(key: string): void {
    this.#working.delete(key);
    const urgent = this.#addedWhileWorking.get(key);
    if (urgent !== undefined) {
      this.#addedWhileWorking.delete(key);
      this.add(key, { urgent });
    }
  }

  /** Forgets all that waits. What is being worked on goes on. */
  clear(): void {
    for (const { timer } of this.#delayed.values()) {
      clearTimeout(timer);
    }
    this.#delayed.clear();
    this.#urgent.clear();
    this.#ready.clear();
    this.#addedWhileWorking.clear();
  }

  #cancel(key: string): void {
    clearTimeout(this.#delayed.get(key)?.timer);
    this.#delayed.delete(key);
  }
}
