/**
 * A reader that follows a console, as `kubectl logs -f` does. From the moment at which the reader starts, it gets the records that are
 * added to the console's store.
 */
import type { EventEmitter } from 'node:events';
import type { ConsoleRecord } from './records.ts';
import type { ConsoleText } from './text.ts';

/**
 * Largest size of one follower's queue of unread records. If a follower reads so slowly that its queue exceeds this size, the queue drops
 * its oldest records.
 */
const FOLLOW_QUEUE_BYTES = 256 * 1024;
/** Memory that a record uses in addition to its text, in bytes. */
const RECORD_OVERHEAD_BYTES = 64;
/**
 * If an unfinished line does not grow for this time, a follower gets a line feed. Without the line feed, `kubectl logs -f` would not show a
 * prompt (`login: `), because it prints only whole lines. The time is longer than one second, because followers get each new piece of a
 * growing line after about one second.
 */
const STILL_MILLISECONDS = 2_000;

/** Events that a console's store sends to its followers. */
export interface StoreEvents {
  records: [ConsoleRecord[]];
  closed: [];
}

/**
 * Collects new records in a queue for one reader. The queue gets the records that are added to the store after this object was created.
 * `ConsoleStore` creates this object at the moment at which it opens the older records, so that the reader misses no record.
 */
export class Follower {
  readonly #events: EventEmitter<StoreEvents>;
  readonly #signal: AbortSignal | undefined;
  readonly #queue = new FollowQueue();
  readonly #onRecords = (records: ConsoleRecord[]): void => {
    this.#queue.add(records);
    this.#wake?.();
  };
  readonly #onEnd = (): void => {
    this.#ended = true;
    this.#wake?.();
  };
  #wake: (() => void) | undefined;
  #ended = false;

  constructor(events: EventEmitter<StoreEvents>, isClosed: boolean, signal: AbortSignal | undefined) {
    this.#events = events;
    this.#signal = signal;
    this.#ended = isClosed || signal?.aborted === true;
    events.on('records', this.#onRecords);
    events.once('closed', this.#onEnd);
    signal?.addEventListener('abort', this.#onEnd, { once: true });
  }

  /** Stops listening for new records. */
  release(): void {
    this.#events.off('records', this.#onRecords);
    this.#events.off('closed', this.#onEnd);
    this.#signal?.removeEventListener('abort', this.#onEnd);
  }

  /**
   * Yields the text of new records until the console is closed or the signal aborts. Adds a line feed to an unfinished line that no longer
   * grows.
   */
  async *read(text: ConsoleText): AsyncGenerator<string, void> {
    for (;;) {
      if (this.#queue.length > 0) {
        yield text.add(this.#queue.take());
      } else if (this.#ended) {
        return;
      } else if (!(await this.#changes(text.isOpen ? STILL_MILLISECONDS : undefined))) {
        yield text.endLine();
      }
    }
  }

  /**
   * Waits for new records or for the end of the console. Returns false if neither comes within the time limit. If the limit is undefined,
   * the wait has no time limit.
   */
  async #changes(limitMilliseconds: number | undefined): Promise<boolean> {
    const { promise, resolve } = Promise.withResolvers<boolean>();
    this.#wake = () => resolve(true);
    const timer = limitMilliseconds && setTimeout(() => resolve(false), limitMilliseconds);
    const isChanged = await promise;
    clearTimeout(timer);
    return isChanged;
  }
}

/** Records that a follower has not read yet. If their size exceeds the limit, the oldest records are dropped. */
class FollowQueue {
  #records: ConsoleRecord[] = [];
  #bytes = 0;

  get length(): number {
    return this.#records.length;
  }

  add(records: readonly ConsoleRecord[]): void {
    this.#records = this.#records.concat(records);
    this.#bytes += records.reduce((sum, record) => sum + weightOf(record), 0);
    let drop = 0;
    while (this.#bytes > FOLLOW_QUEUE_BYTES) {
      this.#bytes -= weightOf(this.#records[drop]);
      drop += 1;
    }
    if (drop > 0) {
      this.#records = this.#records.slice(drop);
    }
  }

  take(): ConsoleRecord[] {
    const records = this.#records;
    this.#records = [];
    this.#bytes = 0;
    return records;
  }
}

function weightOf(record: ConsoleRecord | undefined): number {
  return record === undefined ? 0 : record.text.length + RECORD_OVERHEAD_BYTES;
}
