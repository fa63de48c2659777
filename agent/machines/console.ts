/**
 * The console of a machine or a task. The log writer keeps the guest's bytes unchanged (consoleinput.ts). This store moves them into
 * two files of bounded size, and gives each line the time at which the agent read it.
 *
 * A stored line is `TIME F|P TEXT`, as container runtimes write theirs. P: the guest had not yet ended the line.
 */
import { EventEmitter } from 'node:events';
import { appendFileSync, mkdirSync, renameSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { setImmediate as nextTurn } from 'node:timers/promises';
import type { Logger } from 'pino';
import { CONSOLE_FOLDER, ConsoleInput } from './consoleinput.ts';
import {
  ConsoleLines,
  type ConsoleReadOptions,
  type ConsoleRecord,
  ConsoleText,
  consoleTurns,
  StoredRecords,
} from './consolerecords.ts';
import type { LogName } from './logwriter.ts';

/** Two files of this size are kept: the current one and the one before. */
const STORE_FILE_BYTES = 4 * 1024 * 1024;
/** A person who follows a console does not notice a fifth of a second; sixteen machines cost 80 calls a second. */
const POLL_MILLISECONDS = 200;
const READ_BYTES = 16 * 1024;
/** Limits of one move, which takes some milliseconds: the agent has other things to do. If more is waiting, the next move comes soon. */
const MOVE_BYTES = 16 * READ_BYTES;
const MOVE_RECORDS = 8_000;
const SOON_MILLISECONDS = 10;
/** The longest backlog is moved in a second or two. */
const CATCH_UP_MILLISECONDS = 5_000;
/** A reader that does not keep up loses the oldest records rather than filling the agent's memory. */
const FOLLOW_QUEUE_BYTES = 256 * 1024;
/** The memory of a record beside its text. */
const RECORD_OVERHEAD_BYTES = 64;

export interface ConsoleLog {
  /** Pieces of text, of some lines each. Follows until `signal`, or until the machine is deleted. */
  read(options: ConsoleReadOptions): AsyncIterable<string>;
}

export interface ConsoleOptions {
  log: LogName;
  logger: Logger;
  clock?: () => Date;
}

interface StoreEvents {
  records: [ConsoleRecord[]];
  closed: [];
}

export class ConsoleStore implements ConsoleLog {
  readonly #input: ConsoleInput;
  readonly #folder: string;
  readonly #logger: Logger;
  readonly #clock: () => Date;
  readonly #events = new EventEmitter<StoreEvents>();
  #lines = new ConsoleLines();
  readonly #turns = consoleTurns();
  #catchingUp: Promise<void> | undefined;
  #timer: NodeJS.Timeout | undefined;
  #closed = false;

  /** `log`: the log to which the guest or the task prints; the driver of the machine knows it. */
  constructor(folder: string, { log, logger, clock = () => new Date() }: ConsoleOptions) {
    this.#input = new ConsoleInput(folder, log);
    this.#folder = join(folder, CONSOLE_FOLDER);
    this.#logger = logger;
    this.#clock = clock;
    this.#events.setMaxListeners(0);
  }

  /** Begins to move what the hypervisor writes; idempotent. */
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
    // Both in one go: nothing is missed between the stored records and the new ones.
    const stored = StoredRecords.open(this.#folder, this.#turns);
    const follower = options.follow === true ? this.#follow(options.signal) : undefined;
    try {
      const { tailLines } = options;
      const start = tailLines === undefined ? 0 : await stored.tail(tailLines);
      yield* pieces(stored.from(start), text);
      stored.close();
      if (follower !== undefined && !text.full) {
        yield* pieces(follower.records, text);
      }
    } finally {
      stored.close();
      follower?.release();
    }
  }

  /** Moves everything that the guest has written by now. Readers that come meanwhile wait for the same. */
  async #caughtUp(): Promise<void> {
    this.#catchingUp ??= this.#catchUp().finally(() => {
      this.#catchingUp = undefined;
    });
    await this.#catchingUp;
  }

  /** A guest that writes on and on would be waited for without end. */
  async #catchUp(): Promise<void> {
    const deadline = performance.now() + CATCH_UP_MILLISECONDS;
    while (!this.#closed && this.#poll() && performance.now() < deadline) {
      await nextTurn();
    }
  }

  /** Listens from the moment of the call, so that nothing is missed between the stored records and the new ones. */
  #follow(signal: AbortSignal | undefined): Follower {
    const queue = new FollowQueue();
    let wake: (() => void) | undefined;
    let ended = this.#closed || signal?.aborted === true;
    const onRecords = (records: ConsoleRecord[]) => {
      queue.add(records);
      wake?.();
    };
    const onEnd = () => {
      ended = true;
      wake?.();
    };
    this.#events.on('records', onRecords);
    this.#events.once('closed', onEnd);
    signal?.addEventListener('abort', onEnd, { once: true });
    const records = (async function* () {
      for (;;) {
        if (queue.length > 0) {
          yield queue.take();
        } else if (ended) {
          return;
        } else {
          await new Promise<void>((resolve) => {
            wake = resolve;
          });
        }
      }
    })();
    const release = () => {
      this.#events.off('records', onRecords);
      this.#events.off('closed', onEnd);
      signal?.removeEventListener('abort', onEnd);
    };
    return { records, release };
  }

  /** Whether more is waiting. */
  #poll(): boolean {
    try {
      return this.#move();
    } catch (error) {
      this.#logger.warn({ err: error, folder: this.#folder }, 'console not kept');
      return false;
    }
  }

  #move(): boolean {
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
    records = records.concat(this.#lines.flush(now));
    if (records.length > 0) {
      this.#store(records);
    }
    if (moved > 0 || records.length > 0) {
      this.#input.commit(this.#lines.pending);
    }
    return length > 0;
  }

  #store(records: ConsoleRecord[]): void {
    try {
      this.#append(records);
    } catch (error) {
      // Bytes that were read and not stored, for example because the disk is full, are read again.
      this.#input.rewind();
      this.#lines = new ConsoleLines();
      throw error;
    }
    this.#events.emit('records', records);
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
    appendFileSync(current, text, { mode: 0o600 });
  }
}

interface Follower {
  records: AsyncIterable<ConsoleRecord[]>;
  /** Listens no more. */
  release: () => void;
}

/** The records that a follower has not taken yet. If there are too many, the oldest are dropped. */
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

async function* pieces(
  batches: AsyncIterable<ConsoleRecord[]>,
  text: ConsoleText,
): AsyncGenerator<string, void> {
  for await (const records of batches) {
    const piece = text.add(records);
    if (piece !== '') {
      yield piece;
    }
    if (text.full) {
      return;
    }
  }
}

function sizeOf(path: string): number {
  return statSync(path, { throwIfNoEntry: false })?.size ?? 0;
}
