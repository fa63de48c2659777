/**
 * Fetches large blobs of a registry to files. Several parts of a blob are fetched at the same time, and the digest of the whole blob is
 * verified.
 */
import { createHash, type Hash } from 'node:crypto';
import { constants, type FileHandle, open } from 'node:fs/promises';
import { type BlobSource, checkDigest, type PullOptions } from './pull.ts';
import type { Journal } from './journal.ts';
import { inParallel, Serial } from '../../../base/concurrency.ts';
import { writeAll } from '../../disks/sparse.ts';

/**
 * Size, in bytes, of the parts in which a blob is fetched. If the agent is killed, only the unfinished parts are fetched again. Parts are
 * large enough that the cost of a request is small compared with the transfer of a part.
 */
export const PART_BYTES = 16 * 1024 * 1024;
/**
 * Number of parts of a blob that are fetched at the same time, each over its own connection. In measurements, more connections were not
 * faster. Registries also limit the number of connections.
 */
const CONNECTIONS = 4;
/**
 * Number of bytes that are read and hashed at a time. Hashing them takes less than a millisecond. The agent can do other work before the
 * next bytes are hashed.
 */
const PIECE_BYTES = 1024 * 1024;

/** Name of the only part of a blob in the journal if the registry ignores ranges. All other parts have numbers. */
const WHOLE = 'whole';

/**
 * Fetches a blob to the file `path` and verifies it. During the transfer, `read` receives the bytes in order, while they arrive. The
 * function returns the result of `read` only after the blob is verified. `name` identifies the blob's parts in the journal, so that a later
 * call can continue the transfer. If the digest is wrong and `read` also fails, the function throws the error about the digest, because
 * wrong bytes can make `read` fail.
 *
 * @throws ReasonedError `DigestMismatch` when the digest differs; otherwise the error of the transfer or of `read`.
 */
export async function fetchBlob<T>(
  source: BlobSource,
  { path, journal, name }: { path: string; journal: Journal; name: string },
  options: PullOptions,
  read: (content: AsyncIterable<Buffer>) => Promise<T>,
): Promise<T> {
  const { size } = source.blob;
  const file = await open(path, constants.O_RDWR | constants.O_CREAT, 0o600);
  try {
    const arriving = new ArrivingBlob(file, size, await partBytesOf(source, options.signal));
    const fetching = inParallel(arriving.parts, CONNECTIONS, options.signal, async (part, signal) => {
      const entry = `${name} ${part.name}`;
      if (journal.has(entry)) {
        options.onSpared?.(part.end - part.start);
      } else {
        await fetchPart(source, part, file, { ...options, signal });
        await journal.add(entry, file);
      }
      part.arrived.resolve();
    }).catch((error: unknown) => arriving.fail(error));
    const [reading] = await Promise.allSettled([read(arriving.rest()), fetching]);
    const hash = await arriving.hash();
    checkDigest(source, hash);
    if (reading.status === 'rejected') {
      throw reading.reason;
    }
    return reading.value;
  } finally {
    await file.close();
  }
}

/**
 * Returns the size of the parts in which the blob is fetched. If the registry ignores ranges, this is the size of the whole blob. Each part
 * would otherwise cost the transfer of all bytes before it.
 */
async function partBytesOf({ repository, blob }: BlobSource, signal: AbortSignal): Promise<number> {
  const isOnePart = blob.size <= PART_BYTES;
  return isOnePart || (await repository.servesRanges(blob, signal)) ? PART_BYTES : blob.size;
}

interface Part {
  /** Name of the part in the journal. */
  name: string;
  start: number;
  end: number;
  arrived: PromiseWithResolvers<void>;
}

/**
 * A blob whose parts arrive in a file in any order. A reader gets the bytes in order from the beginning, and each byte is read and hashed
 * only once.
 */
class ArrivingBlob {
  readonly parts: Part[];
  readonly #partBytes: number;
  readonly #file: FileHandle;
  readonly #hash = createHash('sha256');
  #at = 0;
  /** Queue of reads. A reader that has stopped early can have a read under way when the next reader begins. */
  readonly #reads = new Serial();

  constructor(file: FileHandle, size: number, partBytes: number) {
    this.#file = file;
    this.#partBytes = partBytes;
    this.parts = Array.from({ length: Math.ceil(size / partBytes) }, (_, index) => {
      const start = index * partBytes;
      const name = partBytes === PART_BYTES ? String(index) : WHOLE;
      return { name, start, end: Math.min(start + partBytes, size), arrived: Promise.withResolvers<void>() };
    });
    // If a part fails, a reader that waits for the part gets the error. If no reader waits, this handler prevents an unhandled
    // rejection.
    for (const { arrived } of this.parts) {
      arrived.promise.catch(() => undefined);
    }
  }

  /** Tells readers that no more parts will arrive: rejects the promises of all missing parts with `error`. */
  fail(error: unknown): void {
    for (const { arrived } of this.parts) {
      arrived.reject(error);
    }
  }

  /** Yields the bytes that nobody has read yet. Waits for each piece until it has arrived. @throws Error that was given to {@link fail}. */
  async *rest(): AsyncGenerator<Buffer, void, undefined> {
    for (;;) {
      const piece = await this.#reads.run(async () => await this.#next());
      if (piece === undefined) {
        return;
      }
      yield piece;
    }
  }

  /** Returns the hash of the whole blob. Waits until all bytes of the blob have arrived. */
  async hash(): Promise<Hash> {
    for await (const _ of this.rest()) {
      // Nothing to do here: reading a piece also adds it to the hash.
    }
    return this.#hash;
  }

  async #next(): Promise<Buffer | undefined> {
    const part = this.parts[Math.floor(this.#at / this.#partBytes)];
    if (part === undefined || this.#at === part.end) {
      return undefined;
    }
    await part.arrived.promise;
    const piece = Buffer.allocUnsafe(Math.min(PIECE_BYTES, part.end - this.#at));
    for (let length = 0; length < piece.length; ) {
      const { bytesRead } = await this.#file.read(piece, length, piece.length - length, this.#at + length);
      if (bytesRead === 0) {
        throw new Error('A file of an image became shorter while it was read');
      }
      length += bytesRead;
    }
    this.#hash.update(piece);
    this.#at += piece.length;
    return piece;
  }
}

async function fetchPart(
  { repository, blob }: BlobSource,
  range: { start: number; end: number },
  file: FileHandle,
  { signal, onBytes }: PullOptions,
  hash?: Hash,
): Promise<void> {
  let position = range.start;
  for await (const bytes of repository.stream(blob, range, signal)) {
    hash?.update(bytes);
    await writeAll(file, bytes, position);
    position += bytes.length;
    onBytes(bytes.length);
  }
}

/**
 * Fetches a blob with a single request, writes it to the file `path`, verifies it and syncs the file. Use this function only for blobs that
 * are much smaller than a disk.
 */
export async function saveBlob(source: BlobSource, path: string, options: PullOptions): Promise<void> {
  const file = await open(path, 'w', 0o600);
  try {
    const hash = createHash('sha256');
    await fetchPart(source, { start: 0, end: source.blob.size }, file, options, hash);
    checkDigest(source, hash);
    await file.sync();
  } finally {
    await file.close();
  }
}
