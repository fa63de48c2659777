/**
 * The records of a console: bytes of the guest are cut into them, two files store them, and readers get them as text. The options
 * of a reader mean the same as those of `kubectl logs`.
 */
import { closeSync, fstatSync, openSync, read } from 'node:fs';
import { join } from 'node:path';
import { StringDecoder } from 'node:string_decoder';
import { promisify } from 'node:util';
import PQueue from 'p-queue';
import { LineSplitter } from '../../base/lines.ts';
import { isMissing } from '../../base/errors.ts';

/** A line, or, where `ended` is false, a piece of one. */
export interface ConsoleRecord {
  /** RFC 3339: when the agent read it. */
  time: string;
  ended: boolean;
  text: string;
}

export interface ConsoleReadOptions {
  follow?: boolean;
  tailLines?: number;
  sinceTime?: Date;
  /** Ends the output, also within a line. */
  limitBytes?: number;
  /** Each line begins with its time. */
  timestamps?: boolean;
  /** Ends a follow. */
  signal?: AbortSignal;
}

const RECORD = /^(\S+) ([FP]) (.*)$/s;

/** Undefined for a text that is no record, for example a line cut off by a power failure. */
function parseRecord(line: string): ConsoleRecord | undefined {
  const match = RECORD.exec(line);
  if (match === null) {
    return undefined;
  }
  const [, time = '', kind, text = ''] = match;
  return { time, ended: kind === 'F', text };
}

/** Records as text: each line with a line feed, except the one that the guest has not ended. */
export class ConsoleText {
  readonly #since: string;
  readonly #timestamps: boolean;
  #remaining: number;
  #open = false;

  constructor({ sinceTime, timestamps = false, limitBytes }: ConsoleReadOptions) {
    this.#since = sinceTime?.toISOString() ?? '';
    this.#timestamps = timestamps;
    this.#remaining = limitBytes ?? Number.POSITIVE_INFINITY;
  }

  /** Nothing more is wanted. */
  get full(): boolean {
    return this.#remaining <= 0;
  }

  /** The text of the next records, which may be empty. */
  add(records: readonly ConsoleRecord[]): string {
    let text = '';
    for (const { time, ended, text: piece } of records) {
      // Times are all written the same way, so their texts have their order.
      if (time < this.#since) {
        continue;
      }
      text += `${this.#timestamps && !this.#open ? `${time} ` : ''}${piece}${ended ? '\n' : ''}`;
      this.#open = !ended;
    }
    return this.#cut(text);
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

/** A prompt (`login: `) has no line feed: a line that has waited this long is stored without one. */
const PARTIAL_MILLISECONDS = 1_000;
/** A guest may never end a line. */
const LINE_LIMIT_CHARACTERS = 16 * 1024;

/** Cuts a stream of bytes into records. */
export class ConsoleLines {
  readonly #decoder = new StringDecoder('utf8');
  #partial = '';
  #since: Date | undefined;
  #pending = 0;

  /** How many of the last bytes are in no record yet. */
  get pending(): number {
    return this.#pending;
  }

  /** The lines that these bytes end, and pieces of lines that are too long. */
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

  /** Says in a line of its own that bytes are missing here; ends the line before. */
  gap(bytes: number, now: Date): ConsoleRecord[] {
    const text = clean(this.#partial + this.#decoder.end());
    this.#begin();
    const missing = `[${bytes} bytes of the console were lost: nobody read them in time]`;
    return [text, missing].map((line) => ({ time: now.toISOString(), ended: true, text: line }));
  }

  /** The line that was begun, once it has waited long enough. */
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

/** Carriage returns would overwrite lines on a person's terminal. */
function clean(text: string): string {
  return text.replaceAll('\r', '');
}

/** The files of the store, in the order of their records. */
export const STORE_FILES = ['previous', 'current'] as const;

/** Some 2,500 records at most: they are cut and parsed in two milliseconds. */
const PIECE_BYTES = 64 * 1024;
/** A record holds at most 16 Ki characters of a line; a longer text is no record. */
const RECORD_LIMIT_BYTES = 1024 * 1024;
/** `2026-01-01T00:00:00.000Z F`: where a record says whether it ends its line. */
const KIND_OFFSET = 25;
const [ENDED, NEWLINE] = [0x46, 0x0a];

/** So many pieces are read at once on this host, and of one console. Between two pieces other readers and the agent have their turn. */
const HOST_READS = new PQueue({ concurrency: 4 });
const CONSOLE_READS = 2;

const readFile = promisify(read);

/** The turns of one console's readers. */
export function consoleTurns(): PQueue {
  return new PQueue({ concurrency: CONSOLE_READS });
}

/** The records that were stored at one moment. It holds both files open until it is closed, even if they are renamed. */
export class StoredRecords {
  readonly #files: { descriptor: number; size: number }[];
  readonly #turns: PQueue;
  readonly #size: number;

  private constructor(files: { descriptor: number; size: number }[], turns: PQueue) {
    this.#files = files;
    this.#turns = turns;
    this.#size = files.reduce((sum, { size }) => sum + size, 0);
  }

  /** In one go, so that nothing is moved between the files meanwhile. */
  static open(folder: string, turns: PQueue): StoredRecords {
    const files = STORE_FILES.map((name) => openIfThere(join(folder, name)));
    return new StoredRecords(
      files.filter((file) => file !== undefined),
      turns,
    );
  }

  close(): void {
    for (const { descriptor } of this.#files.splice(0)) {
      closeSync(descriptor);
    }
  }

  /** Where the last `count` lines begin, as {@link from} takes it. Reads backwards from the end, no further than it must. */
  async tail(count: number): Promise<number> {
    let lines = 0;
    let end = this.#size;
    // The beginning of what was read so far: the rest of a record whose beginning is still to come.
    let rest: Buffer = Buffer.alloc(0);
    let next = count === 0 ? undefined : this.#size;
    while (next !== undefined && end > 0) {
      const start = Math.max(0, end - PIECE_BYTES);
      const bytes = Buffer.concat([await this.#read(start, end - start), rest]);
      const first = firstRecord(bytes, start);
      for (const record of recordsBackwards(bytes, first)) {
        // A line begins where the record before it has ended one.
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

  /** The records from `position` on, a piece at a time. */
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
    await this.#turns.add(async () => await HOST_READS.add(async () => await this.#fill(bytes, position)));
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

/** Where the first whole record begins; at the end when there is none. */
function firstRecord(bytes: Buffer, start: number): number {
  const end = bytes.indexOf(NEWLINE);
  if (start === 0) {
    return 0;
  }
  return end < 0 ? bytes.length : end + 1;
}

/** Where the records begin that are complete from `first` on; the last one first. */
function* recordsBackwards(bytes: Buffer, first: number): Iterable<number> {
  for (let end = bytes.length; end > first; ) {
    // The last byte is the record's own line feed.
    const start = end < 2 ? first : Math.max(first, bytes.lastIndexOf(NEWLINE, end - 2) + 1);
    yield start;
    end = start;
  }
}

function openIfThere(path: string): { descriptor: number; size: number } | undefined {
  try {
    const descriptor = openSync(path, 'r');
    return { descriptor, size: fstatSync(descriptor).size };
  } catch (error) {
    if (isMissing(error)) {
      return undefined;
    }
    throw error;
  }
}
