/** The stored part of a console: two files, read piece by piece, so that no reader holds up the agent or fills its memory. */
import { closeSync, fstatSync, openSync, read } from 'node:fs';
import { join } from 'node:path';
import { promisify } from 'node:util';
import PQueue from 'p-queue';
import { LineSplitter } from '../../base/lines.ts';
import { isMissing } from '../../base/errors.ts';
import { type ConsoleRecord, parseRecord } from './consoleread.ts';

/** Files of the store in the order of their records. */
export const STORE_FILES = ['previous', 'current'] as const;

/** Some 2,500 records at most: they are cut and parsed in two milliseconds. */
const PIECE_BYTES = 64 * 1024;
/** A record holds a line's piece of at most 16 Ki characters; what is longer is no record. */
const RECORD_LIMIT_BYTES = 1024 * 1024;
/** `2026-01-01T00:00:00.000Z F`: where a record says whether it ends its line. */
const KIND_OFFSET = 25;
const [ENDED, NEWLINE] = [0x46, 0x0a];

/** Pieces that are read at once, on this host and of one console. Between two pieces others have their turn, and the agent too. */
const HOST_READS = new PQueue({ concurrency: 4 });
const CONSOLE_READS = 2;

const readFile = promisify(read);

/** The turns of one console's readers. */
export function consoleTurns(): PQueue {
  return new PQueue({ concurrency: CONSOLE_READS });
}

/** What was stored at one moment. Holds both files open until it is closed, whatever becomes of their names. */
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
