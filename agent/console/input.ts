/**
 * Reads the bytes of a console as the guest or the task printed them. The log writer stores the bytes of a machine's console in several
 * files. A task (the work of a Job) appends its bytes to a single file.
 */
import {
  closeSync,
  existsSync,
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
import { dirname, join } from 'node:path';
import { isMissing, undefinedIfSync } from '../../base/errors.ts';
import { listSegments, type LogName, logsWritten, SEGMENT_BYTES, type Segment } from './logwriter.ts';

/**
 * Subfolder of the machine's or task's folder. The subfolder contains the console's store, and the position up to which the console was
 * read.
 */
export const CONSOLE_FOLDER = 'console';

/**
 * Largest number of unread bytes in a console's single file. If the file has more, the agent skips the oldest ones, because the console's
 * store has the same size limit and could not keep them.
 */
const BACKLOG_BYTES = 2 * SEGMENT_BYTES;
/** Name of the file in a task's folder to which the task appends its lines. */
export const TASK_LOG = 'serial.log';
/** Size in bytes at which a console's single file is emptied, if all its bytes have been read. */
const RAW_LIMIT_BYTES = 1024 * 1024;

export interface RawPiece {
  /** Number of lost bytes directly before `bytes`. They were removed before an agent read them, or were lost in a crash of the host. */
  lost: number;
  bytes: Buffer;
}

/** Source of a console's bytes. The position of the last commit is kept in a file, so that an agent that has restarted continues there. */
export interface ConsoleInput {
  /** Returns the next bytes, at most `length`. The result has no bytes when all bytes have been read. */
  next: (length: number) => RawPiece;
  /**
   * Confirms that all bytes read so far are stored, except the last `pending` bytes. If the position cannot be written to its file, this
   * throws, but the position counts until the agent ends.
   */
  commit: (pending: number) => void;
  /** Goes back to the position of the last commit. The bytes after this position are then read again. */
  rewind: () => void;
}

const NOTHING: RawPiece = { lost: 0, bytes: Buffer.alloc(0) };

/**
 * Reads the bytes that the log writer stores after the creation of this object. This object has its own position in the log, so it does not
 * change the position that the machine's {@link Segments} have committed.
 */
export class ConsoleTail {
  readonly #segments: Segments;

  constructor(folder: string, log: LogName) {
    this.#segments = new Segments(folder, log, logEnd(folder, log));
  }

  /** Returns the next bytes, at most `length`. Bytes that were removed before they were read are left out. */
  next(length: number): Buffer {
    return this.#segments.next(length).bytes;
  }
}

/** Console of a machine: the files of its log writer. */
export class Segments implements ConsoleInput {
  readonly #folder: string;
  readonly #log: LogName;
  readonly #file: string;
  #position: number | undefined;
  /** Position of the last commit. The file has an earlier one if it could not be written. */
  #committed: number | undefined;
  #saved: number | undefined;

  /** `position` is the position of the first byte to read. The default is the position of the last commit. */
  constructor(folder: string, log: LogName, position?: number) {
    this.#folder = folder;
    this.#log = log;
    this.#file = join(folder, CONSOLE_FOLDER, 'position');
    this.#position = position;
  }

  next(length: number): RawPiece {
    const segments = listSegments(this.#folder, this.#log);
    const [first] = segments;
    if (first === undefined) {
      return NOTHING;
    }
    const known = this.#position ?? this.#load(logEnd(this.#folder, this.#log));
    let from = Math.max(known, first.start);
    let bytes = readSegment(segments, from, length);
    const after = segments.find(({ start }) => start > from);
    if (bytes.length === 0 && after !== undefined) {
      // After a crash of the host, the end of a file can be missing. Reading then continues at the start of the next file, and the missing
      // bytes count as lost.
      from = after.start;
      bytes = readSegment(segments, from, length);
    }
    this.#position = from + bytes.length;
    return { lost: from - known, bytes };
  }

  commit(pending: number): void {
    if (this.#position === undefined) {
      return;
    }
    this.#committed = this.#position - pending;
    if (this.#committed !== this.#saved) {
      savePosition(this.#file, this.#committed);
      this.#saved = this.#committed;
    }
  }

  rewind(): void {
    this.#position = this.#committed;
  }

  /**
   * Returns the committed position, but at most `end`, which is the end of the log. After a crash of the host, the files can lack bytes
   * that were already read. The committed position is then after the end of the log.
   */
  #load(end: number): number {
    return Math.min(positionIn(this.#file), end);
  }
}

/** Console of a task: a single file, to which no log writer writes. It grows without a limit until this reader empties it. */
export class AppendedFile implements ConsoleInput {
  readonly #raw: string;
  readonly #file: string;
  #position: number | undefined;
  /** Position of the last commit. The file has an earlier one if it could not be written. */
  #committed: number | undefined;

  constructor(folder: string) {
    this.#raw = join(folder, TASK_LOG);
    this.#file = join(folder, CONSOLE_FOLDER, 'offset');
  }

  next(length: number): RawPiece {
    if (!existsSync(this.#raw)) {
      return NOTHING;
    }
    const size = sizeOf(this.#raw);
    this.#position ??= positionIn(this.#file);
    // If the file is shorter than the part that was already read, it is a new file. Reading then begins at its start.
    if (this.#position > size) {
      this.#position = 0;
    }
    const lost = Math.max(0, size - BACKLOG_BYTES - this.#position);
    const bytes = readPiece(this.#raw, this.#position + lost, length);
    this.#position += lost + bytes.length;
    return { lost, bytes };
  }

  commit(pending: number): void {
    if (this.#position === undefined) {
      return;
    }
    if (this.#position >= RAW_LIMIT_BYTES) {
      this.#empty(this.#position);
    }
    // `pending` can be larger than the position, because the file has perhaps just been emptied. Pending bytes that were in the file before
    // can no longer be read.
    this.#committed = Math.max(0, this.#position - pending);
    savePosition(this.#file, this.#committed);
  }

  rewind(): void {
    this.#position = this.#committed;
  }

  /** Empties the file if all its bytes were read. Bytes written in the microseconds between the size check and the truncation are lost. */
  #empty(position: number): void {
    const descriptor = openSync(this.#raw, 'r+');
    try {
      if (fstatSync(descriptor).size > position) {
        return;
      }
      ftruncateSync(descriptor, 0);
      this.#position = 0;
    } finally {
      closeSync(descriptor);
    }
  }
}

function readSegment(segments: readonly Segment[], position: number, length: number): Buffer {
  const segment = segments.findLast(({ start }) => start <= position);
  if (segment === undefined) {
    return NOTHING.bytes;
  }
  return readPiece(segment.path, position - segment.start, length);
}

/**
 * Returns a piece of a file: at most `length` bytes, from `offset` on. If the file no longer exists, the piece is empty, and the caller's
 * next read uses the remaining files.
 */
function readPiece(path: string, offset: number, length: number): Buffer {
  const descriptor = undefinedIfSync(isMissing, () => openSync(path, 'r'));
  if (descriptor === undefined) {
    return NOTHING.bytes;
  }
  try {
    const buffer = Buffer.alloc(length);
    return buffer.subarray(0, readSync(descriptor, buffer, 0, length, offset));
  } finally {
    closeSync(descriptor);
  }
}

/** Writes a position to a temporary file, which then replaces `file`. So if the disk is full, the old position stays. */
function savePosition(file: string, position: number): void {
  mkdirSync(dirname(file), { recursive: true, mode: 0o700 });
  writeFileSync(`${file}.tmp`, String(position), { mode: 0o600 });
  renameSync(`${file}.tmp`, file);
}

/**
 * Returns the position in a file; 0 if the file is missing or has no position. The files are not synced, so a crash of the host can damage
 * them. The console then begins again with the bytes that are still there.
 */
function positionIn(path: string): number {
  const position = Number(undefinedIfSync(isMissing, () => readFileSync(path, 'utf8')) ?? '');
  return Number.isSafeInteger(position) && position >= 0 ? position : 0;
}

/** Returns the position after the last byte of a log; 0 if the log has no files. */
export function logEnd(folder: string, log: LogName): number {
  const last = listSegments(folder, log).at(-1);
  return last === undefined ? 0 : last.start + sizeOf(last.path);
}

/** Returns the size of a file in bytes; 0 if the file does not exist. */
export function sizeOf(path: string): number {
  return statSync(path, { throwIfNoEntry: false })?.size ?? 0;
}

/**
 * Returns the last bytes of a log as text. The text begins at the position `from` or later, and has at most `limitBytes`. Call this function
 * when the hypervisor has ended. The function waits until the log writer has ended too.
 */
export async function logTail(folder: string, log: LogName, limitBytes: number, from = 0): Promise<string> {
  await logsWritten(folder);
  const tails = listSegments(folder, log).map(({ start, path }) => {
    const size = sizeOf(path);
    const begin = Math.max(0, from - start, size - limitBytes);
    return readPiece(path, begin, Math.max(0, size - begin));
  });
  return Buffer.concat(tails).subarray(-limitBytes).toString('utf8');
}
