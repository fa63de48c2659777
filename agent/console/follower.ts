/** A reader that follows a console: it gets the records that the store receives while the reader exists. */
import type { EventEmitter } from 'node:events';
import type { ConsoleRecord } from './records.ts';
import type { ConsoleText } from './text.ts';

/** Limit of the queue of one reader who follows a console. A slow reader loses the oldest records, because the memory is limited. */
const FOLLOW_QUEUE_BYTES = 256 * 1024;
/** Memory that a record uses in addition to its text, in bytes. */
const RECORD_OVERHEAD_BYTES = 64;
/**
 * Time after the last piece of an unfinished line until a follower gets a line feed. `kubectl logs -f` prints only whole lines, but a
 * prompt (`login: `) has no line feed. The store gives each piece of a line after about 1 s, so a growing line is not cut.
 */
const STILL_MILLISECONDS = 2_000;

/** Events of a store for its followers. */
export interface StoreEvents {
  records: [ConsoleRecord[]];
  closed: [];
}

/** Queues new records from the moment of its creation, so that no record is lost between the stored records and the new records. */
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

  /** Waits for records or the end. Returns false if there are none within the time limit. */
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
