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
import type { Logger } from 'pino';
import { ConsoleLines } from './consolelines.ts';
import { type ConsoleReadOptions, type ConsoleRecord, parseRecord, select } from './consoleread.ts';
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
const READ_BYTES = 256 * 1024;
/** A reader that does not keep up loses the oldest records rather than filling the agent's memory. */
const FOLLOW_QUEUE_RECORDS = 10_000;

export interface ConsoleLog {
  /** Pieces of text, each ending in a line feed unless the guest has not ended the line. Follows until `signal`, or until the machine is deleted. */
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
    this.#timer = setInterval(() => this.#poll(), POLL_MILLISECONDS);
    this.#timer.unref();
  }

  close(): void {
    if (this.#closed) return;
    this.#poll();
    this.#closed = true;
    clearInterval(this.#timer);
    this.#events.emit('closed');
  }

  async *read(options: ConsoleReadOptions): AsyncIterable<string> {
    let remaining = options.limitBytes ?? Number.POSITIVE_INFINITY;
    for await (const lines of this.#selected(options)) {
      for (const line of lines) {
        const piece = cut(line, remaining);
        remaining -= Buffer.byteLength(piece);
        if (piece !== '') yield piece;
        if (remaining <= 0) return;
      }
    }
  }

  async *#selected(options: ConsoleReadOptions): AsyncIterable<string[]> {
    if (!this.#closed) this.#poll();
    const stored = this.#stored();
    const { follow, signal, timestamps = false } = options;
    const follower = follow === true ? this.#follow(signal) : undefined;
    yield select(stored, options);
    if (follower === undefined) return;
    for await (const records of follower) yield select(records, { timestamps });
  }

  /** Listens from the moment of the call, so that nothing is missed between the stored records and the new ones. */
  #follow(signal: AbortSignal | undefined): AsyncIterable<ConsoleRecord[]> {
    const queue: ConsoleRecord[] = [];
    let wake: (() => void) | undefined;
    let ended = this.#closed || signal?.aborted === true;
    const onRecords = (records: ConsoleRecord[]) => {
      queue.push(...records);
      queue.splice(0, Math.max(0, queue.length - FOLLOW_QUEUE_RECORDS));
      wake?.();
    };
    const onEnd = () => {
      ended = true;
      wake?.();
    };
    this.#events.on('records', onRecords);
    this.#events.once('closed', onEnd);
    signal?.addEventListener('abort', onEnd, { once: true });
    const release = () => {
      this.#events.off('records', onRecords);
      this.#events.off('closed', onEnd);
      signal?.removeEventListener('abort', onEnd);
    };
    return (async function* () {
      try {
        for (;;) {
          if (queue.length > 0) yield queue.splice(0);
          else if (ended) return;
          else {
            await new Promise<void>((resolve) => {
              wake = resolve;
            });
          }
        }
      } finally {
        release();
      }
    })();
  }

  #stored(): ConsoleRecord[] {
    const text = `${readIfThere(join(this.#folder, 'previous'))}${readIfThere(join(this.#folder, 'current'))}`;
    return text
      .split('\n')
      .map(parseRecord)
      .filter((record) => record !== undefined);
  }

  #poll(): void {
    try {
      this.#move();
    } catch (error) {
      if (!isMissing(error)) this.#logger.warn({ error: String(error), file: this.#raw }, 'console not kept');
    }
  }

  #move(): void {
    const now = this.#clock();
    const descriptor = openSync(this.#raw, 'r+');
    const records: ConsoleRecord[] = [];
    try {
      let offset = this.#offset(fstatSync(descriptor).size);
      const start = offset;
      const buffer = Buffer.alloc(READ_BYTES);
      for (;;) {
        const length = readSync(descriptor, buffer, 0, READ_BYTES, offset);
        if (length === 0) break;
        offset += length;
        records.push(...this.#lines.push(buffer.subarray(0, length), now));
      }
      records.push(...this.#lines.flush(now));
      if (offset >= RAW_LIMIT_BYTES) {
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

function cut(text: string, limit: number): string {
  const bytes = Buffer.from(text);
  return bytes.length <= limit ? text : bytes.subarray(0, Math.max(0, limit)).toString('utf8');
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
