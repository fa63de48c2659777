import { LONGEST_TIMER_MILLISECONDS } from '../base/time.ts';

interface Delayed {
  /** Time when the key becomes ready, by the queue's clock. */
  at: number;
  timer: NodeJS.Timeout;
}

/** If both urgent and other keys are ready, every fourth key that is taken is not urgent. Therefore no key waits forever. */
const URGENT_SHARE = 4;

/** Key that is ready, which means that a worker can take it. */
export interface Ready {
  key: string;
  /** Time when the key became ready, by the queue's clock. */
  since: number;
}

/** The keys that are ready, each with the time since which it is ready. */
class Lane extends Map<string, number> {
  /** Iterator over the keys that were not taken. A new iterator for each key would pass over all keys that were taken before. */
  #untaken = this.entries();

  /** Removes and returns the key that was added first. The result is undefined if there is no key. */
  takeFirst(): Ready | undefined {
    let { value } = this.#untaken.next();
    if (value === undefined) {
      // An iterator that has reached the end does not return keys that are added later.
      this.#untaken = this.entries();
      ({ value } = this.#untaken.next());
    }
    if (value === undefined) {
      return undefined;
    }
    const [key, since] = value;
    this.delete(key);
    return { key, since };
  }
}

/**
 * Work queue of keys. A key is in the queue at most once, and no worker gets a key that another worker still works on. If a key is added
 * while a worker works on it, it becomes ready after that work. If a key is added with several delays, the earliest applies. Urgent keys
 * are usually taken before other keys. Of several urgent keys, the first one that was added is taken first. The same applies to several
 * keys that are not urgent.
 */
export class WorkQueue {
  readonly #urgent = new Lane();
  readonly #ready = new Lane();
  readonly #working = new Set<string>();
  /** Keys that were added while a worker worked on them. The value is true if one of the additions was urgent. */
  readonly #addedWhileWorking = new Map<string, boolean>();
  readonly #delayed = new Map<string, Delayed>();
  readonly #onReady: () => void;
  readonly #now: () => number;
  #taken = 0;

  /** Creates an empty queue. `onReady` is called whenever a key becomes ready. */
  constructor(onReady: () => void, now: () => number = () => performance.now()) {
    this.#onReady = onReady;
    this.#now = now;
  }

  /** Number of keys that are ready. */
  get depth(): number {
    return this.#urgent.size + this.#ready.size;
  }

  /**
   * Adds a key. If a waiting key is added again as urgent, it becomes urgent. If an urgent key is added again as not urgent, it stays
   * urgent.
   */
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
    // If the delay is longer than the longest timer of Node.js, the key is added too early. This is harmless.
    const timer = setTimeout(() => this.add(key), Math.min(milliseconds, LONGEST_TIMER_MILLISECONDS));
    this.#delayed.set(key, { at, timer });
  }

  /**
   * Returns the next key, in the order that {@link WorkQueue} describes. The result is undefined if no key is ready. The caller must call
   * `done` with the key after the work.
   */
  take(): Ready | undefined {
    const isForOthers = this.#taken % URGENT_SHARE === URGENT_SHARE - 1;
    const lanes = isForOthers ? [this.#ready, this.#urgent] : [this.#urgent, this.#ready];
    for (const lane of lanes) {
      const first = lane.takeFirst();
      if (first !== undefined) {
        this.#working.add(first.key);
        this.#taken += 1;
        return first;
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

  /** Forgets a waiting key. */
  drop(key: string): void {
    this.#cancel(key);
    this.#urgent.delete(key);
    this.#ready.delete(key);
  }

  /** Forgets all waiting keys. Workers continue with the keys that they have taken. */
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
