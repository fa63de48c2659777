/**
 * The store of the console of a machine or a task. The guest or the task prints bytes into files that input.ts reads. The store moves these
 * bytes into two files of its own, which have a size limit. The store adds to each line the time at which the agent read the line.
 *
 * A stored line is `TIME F|P TEXT`, the format of container runtimes. F means a line that the guest has ended. P means a piece of a line
 * that the guest had not yet ended.
 *
 * A reader can follow a console, as `kubectl logs -f` does. From the moment at which it starts, it gets the records that are added.
 */
import { EventEmitter } from 'node:events';
import { appendFileSync, mkdirSync, renameSync, truncateSync } from 'node:fs';
import { join } from 'node:path';
import { setImmediate as nextCycle } from 'node:timers/promises';
import type { Logger } from 'pino';
import { isOfSystem, undefinedIfSync } from '../../base/errors.ts';
import { AppendedFile, CONSOLE_FOLDER, type ConsoleInput, Segments, sizeOf } from './input.ts';
import {
  ConsoleLines,
  type ConsoleReadOptions,
  type ConsoleRecord,
  ConsoleText,
  consoleReads,
  StoredRecords,
} from './records.ts';

/** Limit of one file of the store, in bytes. The store keeps two files, the current file and the previous file. */
const STORE_FILE_BYTES = 4 * 1024 * 1024;
/**
 * Time between two checks of a console for new output. A reader does not notice a delay of 200 ms. Sixteen machines need only 80 checks a
 * second.
 */
const POLL_MILLISECONDS = 200;
const READ_BYTES = 16 * 1024;
/**
 * Largest amount of output that the agent moves into the store in one step, in bytes and in records. Such a step takes only a few
 * milliseconds, so that other work of the agent does not wait long. If more output is waiting, the next step begins after 10 ms.
 */
const MOVE_BYTES = 16 * READ_BYTES;
const MOVE_RECORDS = 8_000;
const SOON_MILLISECONDS = 10;
/**
 * Longest time that a reader waits while output is moved into the store. Even the largest amount of output usually takes only one or two
 * seconds.
 */
const CATCH_UP_MILLISECONDS = 5_000;

export interface ConsoleLog {
  /**
   * Yields the console's text piece by piece. If `follow` is set, the text ends when `signal` aborts, the machine is deleted or the task
   * has ended.
   */
  read(options: ConsoleReadOptions): AsyncIterable<string>;
}

export interface ConsoleOptions {
  /** Who prints: a machine has a log writer, and a task appends to a file. */
  of: 'machine' | 'task';
  logger: Logger;
  clock?: () => Date;
}

export class ConsoleStore implements ConsoleLog {
  readonly #input: ConsoleInput;
  readonly #folder: string;
  readonly #logger: Logger;
  readonly #clock: () => Date;
  readonly #events = new EventEmitter<StoreEvents>();
  #lines = new ConsoleLines();
  readonly #reads = consoleReads();
  #catchingUp: Promise<void> | undefined;
  #timer: NodeJS.Timeout | undefined;
  #closed = false;
  #isFailing = false;

  /**
   * Creates the store of a console. `folder` is the folder of the machine or task.
   */
  constructor(folder: string, { of, logger, clock = () => new Date() }: ConsoleOptions) {
    this.#input = of === 'task' ? new AppendedFile(folder) : new Segments(folder, 'serial');
    this.#folder = join(folder, CONSOLE_FOLDER);
    this.#logger = logger;
    this.#clock = clock;
    this.#events.setMaxListeners(0);
  }

  /** Begins to move the console's output into the store. A second call does nothing. */
  start(): void {
    if (this.#timer !== undefined || this.#closed) {
      return;
    }
    this.#keepMoving(SOON_MILLISECONDS);
  }

  #keepMoving(milliseconds: number): void {
    this.#timer = setTimeout(() => {
      const isMore = this.#poll();
      this.#keepMoving(isMore ? SOON_MILLISECONDS : POLL_MILLISECONDS);
    }, milliseconds).unref();
  }

  close(): void {
    if (this.#closed) {
      return;
    }
    this.#poll();
    this.#closed = true;
    clearTimeout(this.#timer);
    this.#events.emit('closed');
  }

  async *read(options: ConsoleReadOptions): AsyncIterable<string> {
    const text = new ConsoleText(options);
    await this.#caughtUp();
    // The code opens the stored records and creates the follower without an `await` in between. So each record is either a stored record or
    // one that the follower gets.
    const stored = StoredRecords.open(this.#folder, this.#reads);
    const follower =
      options.follow === true ? new Follower(this.#events, this.#closed, options.signal) : undefined;
    try {
      const { tailLines } = options;
      const start = tailLines === undefined ? 0 : await stored.tail(tailLines);
      yield* pieces(textsOf(stored.from(start), text), text);
      stored.close();
      if (follower !== undefined && !text.full) {
        yield* pieces(follower.read(text), text);
      }
    } finally {
      stored.close();
      follower?.release();
    }
  }

  /**
   * Moves all waiting output of the console into the store. If another reader comes during the move, that reader waits for the end of the
   * same move.
   */
  async #caughtUp(): Promise<void> {
    this.#catchingUp ??= this.#catchUp().finally(() => {
      this.#catchingUp = undefined;
    });
    await this.#catchingUp;
  }

  /** Moves output into the store until no bytes are waiting. The function has a time limit, because a guest can write without end. */
  async #catchUp(): Promise<void> {
    const deadline = performance.now() + CATCH_UP_MILLISECONDS;
    while (!this.#closed && this.#poll() && performance.now() < deadline) {
      await nextCycle();
    }
  }

  /** Moves waiting output into the store. Returns whether more output is waiting. */
  #poll(): boolean {
    try {
      return this.#move();
    } catch (error) {
      // A disk can be full for days, so only the first of several failures in a row is logged.
      if (!this.#isFailing) {
        this.#logger.warn({ err: error, folder: this.#folder }, 'Output of a console was not stored');
      }
      this.#isFailing = true;
      return false;
    }
  }

  #move(): boolean {
    const { records, moved, isMore } = this.#orAgain(() => this.#take());
    if (records.length > 0) {
      this.#orAgain(() => this.#append(records));
      this.#events.emit('records', records);
    }
    if (moved > 0 || records.length > 0) {
      this.#input.commit(this.#lines.pending);
      this.#isFailing = false;
    }
    return isMore;
  }

  /** Takes waiting output from the input: its records, and the number of its bytes. `isMore` tells whether more output is waiting. */
  #take(): { records: ConsoleRecord[]; moved: number; isMore: boolean } {
    const now = this.#clock();
    let records: ConsoleRecord[] = [];
    let moved = 0;
    let length: number;
    do {
      const { lost, bytes } = this.#input.next(READ_BYTES);
      if (lost > 0) {
        records = records.concat(this.#lines.gap(lost, now));
      }
      records = records.concat(this.#lines.push(bytes, now));
      length = bytes.length;
      moved += length;
    } while (length > 0 && moved < MOVE_BYTES && records.length < MOVE_RECORDS);
    return { records: records.concat(this.#lines.flush(now)), moved, isMore: length > 0 };
  }

  /**
   * Calls `work`. If it fails, the output that was taken is not stored, for example because the disk is full or too many files are open. So
   * the reading position goes back, and the same bytes are read again later.
   */
  #orAgain<T>(work: () => T): T {
    try {
      return work();
    } catch (error) {
      this.#input.rewind();
      this.#lines = new ConsoleLines();
      throw error;
    }
  }

  #append(records: ConsoleRecord[]): void {
    mkdirSync(this.#folder, { recursive: true, mode: 0o700 });
    const current = join(this.#folder, 'current');
    const text = records
      .map(({ time, ended, text: line }) => `${time} ${ended ? 'F' : 'P'} ${line}\n`)
      .join('');
    if (sizeOf(current) + Buffer.byteLength(text) > STORE_FILE_BYTES) {
      if (sizeOf(current) > 0) {
        renameSync(current, join(this.#folder, 'previous'));
      }
    }
    const size = sizeOf(current);
    try {
      appendFileSync(current, text, { mode: 0o600 });
    } catch (error) {
      // Perhaps the disk had room for a part of the text. This part is removed, because the whole text is stored again later.
      undefinedIfSync(isOfSystem, () => truncateSync(current, size));
      throw error;
    }
  }
}

/** Yields the pieces of text that are not empty, up to the reader's limit of bytes. */
async function* pieces(texts: AsyncIterable<string>, text: ConsoleText): AsyncGenerator<string, void> {
  for await (const piece of texts) {
    if (piece !== '') {
      yield piece;
    }
    if (text.full) {
      return;
    }
  }
}

async function* textsOf(
  batches: AsyncIterable<ConsoleRecord[]>,
  text: ConsoleText,
): AsyncGenerator<string, void> {
  for await (const records of batches) {
    yield text.add(records);
  }
}

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
interface StoreEvents {
  records: [ConsoleRecord[]];
  closed: [];
}

/**
 * Collects new records in a queue for one reader. The queue gets the records that are added to the store after this object was created.
 * `ConsoleStore` creates this object at the moment at which it opens the older records, so that the reader misses no record.
 */
class Follower {
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
