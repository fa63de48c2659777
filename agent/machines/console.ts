/**
 * What a guest wrote to its serial console. The hypervisor appends to a raw file; this store moves it on into two
 * files of bounded size, each line with the time at which it was seen, and empties the raw file in place.
 *
 * A stored line is `TIME F|P TEXT`, as container runtimes write theirs; P: the guest had not yet ended the line.
 */
import { EventEmitter } from 'node:events';
import {
  appendFileSync,
  closeSync,
  fstatSync,
  ftruncateSync,
  mkdirSync,
  openSync,
  readFileSync,
  readSync,
  renameSync,
  statSync,
  writeFileSync,
} from 'node:fs';
import { join } from 'node:path';
import { setImmediate as nextTurn } from 'node:timers/promises';
import type { Logger } from 'pino';
import { ConsoleLines } from './consolelines.ts';
import { type ConsoleReadOptions, type ConsoleRecord, ConsoleText } from './consoleread.ts';
import { consoleTurns, StoredRecords } from './consolestore.ts';
import { isMissing } from '../errors.ts';
import { FILES } from './folder.ts';

/** Two files of this size are kept: the current one and the one before. */
const STORE_FILE_BYTES = 4 * 1024 * 1024;
/** A person who follows a console does not notice a fifth of a second; sixteen machines cost 80 calls a second. */
const POLL_MILLISECONDS = 200;
/** The raw file is emptied when it has grown to this and everything is read. */
const RAW_LIMIT_BYTES = 1024 * 1024;
/** Of what was written while no agent was there, as much is kept as the store holds. */
const BACKLOG_BYTES = 2 * STORE_FILE_BYTES;
const READ_BYTES = 16 * 1024;
/** Of one move, some milliseconds long: the agent has other things to do. Where more is waiting, the next one comes soon. */
const MOVE_BYTES = 16 * READ_BYTES;
const MOVE_RECORDS = 8_000;
const SOON_MILLISECONDS = 10;
/** The longest backlog is moved in a second or two. */
const CATCH_UP_MILLISECONDS = 5_000;
/** A reader that does not keep up loses the oldest records rather than filling the agent's memory. */
const FOLLOW_QUEUE_BYTES = 256 * 1024;
/** What a record takes beside its text. */
const RECORD_OVERHEAD_BYTES = 64;

export interface ConsoleLog {
  /** Pieces of text, of some lines each. Follows until `signal`, or until the machine is deleted. */
  read(options: ConsoleReadOptions): AsyncIterable<string>;
}

interface StoreEvents {
  records: [ConsoleRecord[]];
  closed: [];
}

export class ConsoleStore implements ConsoleLog {
  readonly #raw: string;
  readonly #folder: string;
  readonly #logger: Logger;
  readonly #clock: () => Date;
  readonly #events = new EventEmitter<StoreEvents>();
  readonly #lines = new ConsoleLines();
  readonly #turns = consoleTurns();
  #catchingUp: Promise<void> | undefined;
  #timer: NodeJS.Timeout | undefined;
  #closed = false;

  constructor(machineFolder: string, options: { logger: Logger; clock?: () => Date }) {
    this.#raw = join(machineFolder, FILES.serial);
    this.#folder = join(machineFolder, FILES.console);
    this.#logger = options.logger;
    this.#clock = options.clock ?? (() => new Date());
    this.#events.setMaxListeners(0);
  }

  /** Begins to move what the hypervisor writes; idempotent. */
  start(): void {
    if (this.#timer !== undefined || this.#closed) return;
    this.#keepMoving(SOON_MILLISECONDS);
  }

  #keepMoving(milliseconds: number): void {
    this.#timer = setTimeout(() => {
      const isMore = this.#poll();
      this.#keepMoving(isMore ? SOON_MILLISECONDS : POLL_MILLISECONDS);
    }, milliseconds).unref();
  }

  close(): void {
    if (this.#closed) return;
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
      if (follower !== undefined && !text.full) yield* pieces(follower.records, text);
    } finally {
      stored.close();
      follower?.release();
    }
  }

  /** What the guest has written by now is moved, however much it is; readers that come meanwhile wait for the same. */
  async #caughtUp(): Promise<void> {
    this.#catchingUp ??= this.#catchUp().finally(() => {
      this.#catchingUp = undefined;
    });
    await this.#catchingUp;
  }

  /** A guest that writes on and on would be waited for without end. */
  async #catchUp(): Promise<void> {
    const deadline = performance.now() + CATCH_UP_MILLISECONDS;
    while (!this.#closed && this.#poll() && performance.now() < deadline) await nextTurn();
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
        if (queue.length > 0) yield queue.take();
        else if (ended) return;
        else {
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
      if (!isMissing(error)) this.#logger.warn({ err: error, file: this.#raw }, 'console not kept');
      return false;
    }
  }

  #move(): boolean {
    const now = this.#clock();
    const descriptor = openSync(this.#raw, 'r+');
    let records: ConsoleRecord[] = [];
    let isMore: boolean;
    try {
      let offset = this.#offset(fstatSync(descriptor).size);
      const start = offset;
      const buffer = Buffer.alloc(READ_BYTES);
      let length: number;
      do {
        length = readSync(descriptor, buffer, 0, READ_BYTES, offset);
        offset += length;
        records = records.concat(this.#lines.push(buffer.subarray(0, length), now));
      } while (length > 0 && offset - start < MOVE_BYTES && records.length < MOVE_RECORDS);
      isMore = length > 0;
      records = records.concat(this.#lines.flush(now));
      if (!isMore && offset >= RAW_LIMIT_BYTES) {
        // What the guest writes between the last read and here, some microseconds, is lost.
        ftruncateSync(descriptor, 0);
        offset = 0;
      }
      if (records.length > 0) this.#append(records);
      if (offset !== start) writeFileSync(join(this.#folder, 'offset'), String(offset));
    } finally {
      closeSync(descriptor);
    }
    if (records.length > 0) this.#events.emit('records', records);
    return isMore;
  }

  /** Where to go on reading; an agent that starts reads it from the file. */
  #offset(size: number): number {
    mkdirSync(this.#folder, { recursive: true, mode: 0o700 });
    const known = Number(readIfThere(join(this.#folder, 'offset')));
    // A raw file that is shorter than what was read of it was made anew.
    const offset = known <= size ? known : 0;
    return Math.max(offset, size - BACKLOG_BYTES);
  }

  #append(records: ConsoleRecord[]): void {
    const current = join(this.#folder, 'current');
    const text = records
      .map(({ time, ended, text: line }) => `${time} ${ended ? 'F' : 'P'} ${line}\n`)
      .join('');
    if (sizeOf(current) + Buffer.byteLength(text) > STORE_FILE_BYTES) {
      if (sizeOf(current) > 0) renameSync(current, join(this.#folder, 'previous'));
    }
    appendFileSync(current, text, { mode: 0o600 });
  }
}

interface Follower {
  records: AsyncIterable<ConsoleRecord[]>;
  /** Listens no more. */
  release: () => void;
}

/** What a follower has not taken yet; of more than it may hold, the newest. */
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
    if (drop > 0) this.#records = this.#records.slice(drop);
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
    if (piece !== '') yield piece;
    if (text.full) return;
  }
}

function readIfThere(path: string): string {
  try {
    return readFileSync(path, 'utf8');
  } catch (error) {
    if (isMissing(error)) return '';
    throw error;
  }
}

function sizeOf(path: string): number {
  return statSync(path, { throwIfNoEntry: false })?.size ?? 0;
}
