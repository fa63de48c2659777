/**
 * Cuts the bytes of a console into records, reads the records from the two files of the console's store, and turns them into the text that a
 * reader gets. The options of the text have the same meaning as the options of `kubectl logs`.
 */
import { closeSync, fstatSync, openSync, read } from 'node:fs';
import { join } from 'node:path';
import { StringDecoder } from 'node:string_decoder';
import { promisify } from 'node:util';
import PQueue from 'p-queue';
import { LineSplitter } from '../../base/lines.ts';
import { isMissing, undefinedIfSync } from '../../base/errors.ts';

/** A line of the console, or a piece of a line if `ended` is false. */
export interface ConsoleRecord {
  /** Time at which the agent read the text, in the format of RFC 3339. */
  time: string;
  ended: boolean;
  text: string;
}

const RECORD = /^(\S+) ([FP]) (.*)$/s;

/** Parses a stored line. Returns undefined for a text that is not a record, for example a line that a power failure cut off. */
function parseRecord(line: string): ConsoleRecord | undefined {
  const match = RECORD.exec(line);
  if (match === null) {
    return undefined;
  }
  const [, time = '', kind, text = ''] = match;
  return { time, ended: kind === 'F', text };
}

/** If a line has no line feed after this time, its text so far is stored. For example, a prompt (`login: `) has no line feed. */
const PARTIAL_MILLISECONDS = 1_000;
/** Largest number of characters of an unfinished line. A longer line is cut into pieces, because a guest can print a line without end. */
const LINE_LIMIT_CHARACTERS = 16 * 1024;

/** Cuts a stream of bytes into records. */
export class ConsoleLines {
  readonly #decoder = new StringDecoder('utf8');
  #partial = '';
  #since: Date | undefined;
  #pending = 0;

  /** Number of bytes at the end of the input that are not yet in a record. */
  get pending(): number {
    return this.#pending;
  }

  /**
   * Takes the next bytes of the console. Returns a record for each line that these bytes complete. If the last line is unfinished and too
   * long, also returns its pieces as records.
   */
  push(bytes: Buffer, now: Date): ConsoleRecord[] {
    const time = now.toISOString();
    const lines = (this.#partial + this.#decoder.write(bytes)).split('\n');
    const last = lines.pop() ?? '';
    const records = lines.map((line) => ({ time, ended: true, text: clean(line) }));
    this.#since = last === '' ? undefined : (this.#since ?? now);
    this.#partial = last;
    const end = bytes.lastIndexOf('\n');
    this.#pending = end < 0 ? this.#pending + bytes.length : bytes.length - end - 1;
    while (this.#partial.length > LINE_LIMIT_CHARACTERS) {
      records.push({ time, ended: false, text: clean(this.#partial.slice(0, LINE_LIMIT_CHARACTERS)) });
      this.#partial = this.#partial.slice(LINE_LIMIT_CHARACTERS);
      this.#pending = Math.min(this.#pending, Buffer.byteLength(this.#partial));
    }
    return records;
  }

  /** Returns a record that ends the unfinished line, and a record that states how many bytes of the console were lost. */
  gap(bytes: number, now: Date): ConsoleRecord[] {
    const text = clean(this.#partial + this.#decoder.end());
    this.#begin();
    const missing = `[${bytes} bytes of the console were lost, because the agent did not read them in time, or the host crashed]`;
    return [text, missing].map((line) => ({ time: now.toISOString(), ended: true, text: line }));
  }

  /** Returns the unfinished line as a record, if its first part was read at least 1 s ago. Otherwise returns an empty list. */
  flush(now: Date): ConsoleRecord[] {
    if (this.#since === undefined || now.getTime() - this.#since.getTime() < PARTIAL_MILLISECONDS) {
      return [];
    }
    const text = clean(this.#partial);
    this.#begin();
    return [{ time: now.toISOString(), ended: false, text }];
  }

  #begin(): void {
    this.#partial = '';
    this.#since = undefined;
    this.#pending = 0;
  }
}

/** Removes carriage returns. In a reader's terminal, the text after a carriage return would overwrite the text before it. */
function clean(text: string): string {
  return text.replaceAll('\r', '');
}

/** Files of a console's store, the file with the older records first. */
export const STORE_FILES = ['previous', 'current'] as const;

/**
 * Size of one read of stored records, in bytes. A piece of this size has at most about 2,500 records. The agent needs two milliseconds to
 * cut and parse these records.
 */
const PIECE_BYTES = 64 * 1024;
/** Limit of a stored record in bytes. All records that the agent stores are smaller, so a longer text is not a record. */
const RECORD_LIMIT_BYTES = 1024 * 1024;
/**
 * Offset of the letter after the time, within a stored record (`2026-01-01T00:00:00.000Z F`). The letter states whether the record ends its
 * line.
 */
const KIND_OFFSET = 25;
const [ENDED, NEWLINE] = [0x46, 0x0a];

/**
 * Largest numbers of pieces of stored records that are read at the same time: 4 on the whole host, and 2 of one console. A reader waits for
 * its turn before each piece, so that other readers and other work of the agent also get processor time.
 */
const HOST_READS = new PQueue({ concurrency: 4 });
const CONSOLE_READS = 2;

const readFile = promisify(read);

/** Creates the queue that limits how many readers of one console read at the same time. */
export function consoleReads(): PQueue {
  return new PQueue({ concurrency: CONSOLE_READS });
}

/**
 * The records that a console's store contains at one moment. Both files of the store stay open until `close`, so that the records can be
 * read even if the store renames the files.
 */
export class StoredRecords {
  readonly #files: { descriptor: number; size: number }[];
  readonly #reads: PQueue;
  readonly #size: number;

  private constructor(files: { descriptor: number; size: number }[], reads: PQueue) {
    this.#files = files;
    this.#reads = reads;
    this.#size = files.reduce((sum, { size }) => sum + size, 0);
  }

  /** Opens both files of the store in one synchronous call, so that the store cannot move records from one file to the other in between. */
  static open(folder: string, reads: PQueue): StoredRecords {
    const files = STORE_FILES.map((name) => openIfThere(join(folder, name)));
    return new StoredRecords(
      files.filter((file) => file !== undefined),
      reads,
    );
  }

  close(): void {
    for (const { descriptor } of this.#files.splice(0)) {
      closeSync(descriptor);
    }
  }

  /**
   * Returns the position at which the last `count` lines begin. The caller passes this position to {@link from}. The function reads
   * backwards from the end of the store, only as far as necessary.
   */
  async tail(count: number): Promise<number> {
    let lines = 0;
    let end = this.#size;
    // The loop reads the pieces in reverse order, from the end of the store to its start. `rest` contains the incomplete record at the
    // start of the piece that was read before. The beginning of this record is in the piece that is read now.
    let rest: Buffer = Buffer.alloc(0);
    let next = count === 0 ? undefined : this.#size;
    while (next !== undefined && end > 0) {
      const start = Math.max(0, end - PIECE_BYTES);
      const bytes = Buffer.concat([await this.#read(start, end - start), rest]);
      const first = firstRecord(bytes, start);
      for (const record of recordsBackwards(bytes, first)) {
        // If this record ends a line, the next line begins at the following record (`next`). The code counts this next line.
        if (bytes[record + KIND_OFFSET] === ENDED && next < this.#size) {
          lines += 1;
        }
        if (lines === count) {
          return next;
        }
        next = start + record;
      }
      rest = bytes.subarray(0, first);
      if (rest.length > RECORD_LIMIT_BYTES) {
        return next;
      }
      end = start;
    }
    return next ?? this.#size;
  }

  /** Yields the records from `position` on, one piece at a time. */
  async *from(position: number): AsyncIterable<ConsoleRecord[]> {
    const splitter = new LineSplitter(RECORD_LIMIT_BYTES);
    for (let start = position; start < this.#size; start += PIECE_BYTES) {
      const bytes = await this.#read(start, Math.min(PIECE_BYTES, this.#size - start));
      yield splitter
        .push(bytes)
        .map(parseRecord)
        .filter((record) => record !== undefined);
    }
  }

  async #read(position: number, length: number): Promise<Buffer> {
    const bytes = Buffer.alloc(length);
    await this.#reads.add(async () => await HOST_READS.add(async () => await this.#fill(bytes, position)));
    return bytes;
  }

  async #fill(bytes: Buffer, position: number): Promise<void> {
    let begin = 0;
    let filled = 0;
    for (const { descriptor, size } of this.#files) {
      const offset = Math.max(0, position - begin);
      const length = Math.min(size - offset, bytes.length - filled);
      if (length > 0) {
        await readFile(descriptor, bytes, filled, length, offset);
        filled += length;
      }
      begin += size;
    }
  }
}

/**
 * Returns the offset of the first whole record in `bytes`. If there is none, returns the length of `bytes`. `start` is the position of
 * `bytes` in the store.
 */
function firstRecord(bytes: Buffer, start: number): number {
  const end = bytes.indexOf(NEWLINE);
  if (start === 0) {
    return 0;
  }
  return end < 0 ? bytes.length : end + 1;
}

/** Yields the offsets of the records in `bytes`, the last record first. `first` is the offset of the first whole record. */
function* recordsBackwards(bytes: Buffer, first: number): Iterable<number> {
  for (let end = bytes.length; end > first; ) {
    // The last byte before `end` is the line feed of this record. So the search for the previous line feed begins before that byte.
    const start = end < 2 ? first : Math.max(first, bytes.lastIndexOf(NEWLINE, end - 2) + 1);
    yield start;
    end = start;
  }
}

function openIfThere(path: string): { descriptor: number; size: number } | undefined {
  const descriptor = undefinedIfSync(isMissing, () => openSync(path, 'r'));
  return descriptor === undefined ? undefined : { descriptor, size: fstatSync(descriptor).size };
}

export interface ConsoleReadOptions {
  follow?: boolean | undefined;
  tailLines?: number | undefined;
  sinceTime?: Date | undefined;
  /** Limit of the output in bytes. The output can end within a line. */
  limitBytes?: number | undefined;
  /** Whether each line begins with its time. */
  timestamps?: boolean;
  /** Signal that ends the text if `follow` is set. */
  signal?: AbortSignal;
}

/**
 * Turns records into text. Each line of the text ends with a line feed, except perhaps the last one. The last line gets its
 * line feed when the guest or {@link endLine} ends the line.
 */
export class ConsoleText {
  readonly #since: string;
  readonly #timestamps: boolean;
  #remaining: number;
  #open = false;
  /** Whether {@link endLine} has ended the last line, and the guest has not ended this line yet. */
  #endedEarly = false;

  constructor({ sinceTime, timestamps = false, limitBytes }: ConsoleReadOptions) {
    this.#since = sinceTime?.toISOString() ?? '';
    this.#timestamps = timestamps;
    this.#remaining = limitBytes ?? Number.POSITIVE_INFINITY;
  }

  /** Whether the reader's limit of bytes is reached. */
  get full(): boolean {
    return this.#remaining <= 0;
  }

  /** Whether the text so far ends within a line. */
  get isOpen(): boolean {
    return this.#open;
  }

  /**
   * Ends the unfinished line and returns the line feed for it. Call this function only while {@link isOpen} is true. If the rest of the
   * line comes later, the rest becomes a separate line. If only the line feed comes later, the text gets no second line feed.
   */
  endLine(): string {
    this.#open = false;
    this.#endedEarly = true;
    return this.#cut('\n');
  }

  /** Returns the text of the next records. The text can be empty. */
  add(records: readonly ConsoleRecord[]): string {
    let text = '';
    for (const record of records) {
      // All times have the same format, so a comparison of their texts gives their order.
      if (record.time >= this.#since) {
        text += this.#textOf(record);
      }
    }
    return this.#cut(text);
  }

  #textOf({ time, ended, text }: ConsoleRecord): string {
    // A record without text adds nothing in two cases. In the first case, the record only ends a line that `endLine` has already ended. In
    // the second case, the record does not end its line, and had only a carriage return, which was removed.
    const isNothing = text === '' && (this.#endedEarly || !ended);
    this.#endedEarly &&= isNothing && !ended;
    if (isNothing) {
      return '';
    }
    const start = this.#timestamps && !this.#open ? `${time} ` : '';
    this.#open = !ended;
    return `${start}${text}${ended ? '\n' : ''}`;
  }

  #cut(text: string): string {
    if (this.#remaining === Number.POSITIVE_INFINITY) {
      return text;
    }
    const bytes = Buffer.from(text);
    const piece = bytes.subarray(0, Math.max(0, this.#remaining));
    this.#remaining -= bytes.length;
    return piece.toString('utf8');
  }
}
