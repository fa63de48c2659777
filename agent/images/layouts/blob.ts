/** Large blobs of a registry as files: fetched in parts at the same time, and verified as a whole. */
import { createHash, type Hash } from 'node:crypto';
import { constants, type FileHandle, open } from 'node:fs/promises';
import { ReasonedError } from '../../../api/v1alpha1/reasons.ts';
import type { Descriptor, Repository } from '../oci/types.ts';
import type { PullOptions } from './pull.ts';
import type { Journal } from './journal.ts';
import { inParallel } from '../../../base/parallel.ts';
import { writeAll } from '../../disks/sparse.ts';

/** A kill loses at most so much of each part under way. The cost of a request is small beside it. */
export const PART_BYTES = 16 * 1024 * 1024;
/** More connections brought nothing where it was measured, and registries limit them. */
const CONNECTIONS = 4;
/** Hashing one takes less than a millisecond; in between others get their turn. */
const PIECE_BYTES = 1024 * 1024;

export interface BlobSource {
  repository: Repository;
  descriptor: Descriptor;
}

/**
 * Fetches a blob to `path`, and verifies it. `read` has its content meanwhile, in order, as far as it has come; its answer
 * counts only once the blob is verified. `name`: of its parts in the journal, by which a second call goes on.
 *
 * @throws ReasonedError `DigestMismatch`, which explains whatever `read` found wrong, else what `read` throws.
 */
export async function fetchBlob<T>(
  source: BlobSource,
  { path, journal, name }: { path: string; journal: Journal; name: string },
  options: PullOptions,
  read: (content: AsyncIterable<Buffer>) => Promise<T>,
): Promise<T> {
  const { size } = source.descriptor;
  const file = await open(path, constants.O_RDWR | constants.O_CREAT, 0o600);
  try {
    const arriving = new ArrivingBlob(file, size);
    const fetching = inParallel(arriving.parts, CONNECTIONS, options.signal, async (part, signal) => {
      const entry = `${name} ${part.start / PART_BYTES}`;
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

interface Part {
  start: number;
  end: number;
  arrived: PromiseWithResolvers<void>;
}

/** A blob in a file that comes in parts, in any order, and is read and hashed once, from the beginning. */
class ArrivingBlob {
  readonly parts: Part[];
  readonly #file: FileHandle;
  readonly #hash = createHash('sha256');
  #at = 0;
  #reader: symbol | undefined;
  #reading: Promise<unknown> = Promise.resolve();

  constructor(file: FileHandle, size: number) {
    this.#file = file;
    this.parts = Array.from({ length: Math.ceil(size / PART_BYTES) }, (_, index) => {
      const start = index * PART_BYTES;
      return { start, end: Math.min(start + PART_BYTES, size), arrived: Promise.withResolvers<void>() };
    });
    // Whoever waits for one is told; nobody may.
    for (const { arrived } of this.parts) {
      arrived.promise.catch(() => undefined);
    }
  }

  /** Nothing more comes. */
  fail(error: unknown): void {
    for (const { arrived } of this.parts) {
      arrived.reject(error);
    }
  }

  /**
   * Gives the bytes that were not read yet, each piece when it is there. No other reader is given any from now on.
   *
   * @throws Error that was given to {@link fail}.
   */
  async *rest(): AsyncGenerator<Buffer, void, undefined> {
    const reader = Symbol('reader');
    this.#reader = reader;
    // Somebody who gave up may not have waited for his last piece, and has its failure too.
    await this.#reading.catch(() => undefined);
    while (this.#at < (this.parts.at(-1)?.end ?? 0)) {
      const part = this.parts[Math.floor(this.#at / PART_BYTES)];
      await part?.arrived.promise;
      if (this.#reader !== reader) {
        return;
      }
      const piece = this.#piece(part?.end ?? 0);
      this.#reading = piece;
      yield await piece;
    }
  }

  /** The hash of the whole, once all is there. */
  async hash(): Promise<Hash> {
    for await (const _ of this.rest()) {
      // Reading it hashes it.
    }
    return this.#hash;
  }

  async #piece(end: number): Promise<Buffer> {
    const piece = Buffer.allocUnsafe(Math.min(PIECE_BYTES, end - this.#at));
    for (let length = 0; length < piece.length; ) {
      const { bytesRead } = await this.#file.read(piece, length, piece.length - length, this.#at + length);
      if (bytesRead === 0) {
        throw new Error('a file of an image has become shorter while it was read');
      }
      length += bytesRead;
    }
    this.#hash.update(piece);
    this.#at += piece.length;
    return piece;
  }
}

async function fetchPart(
  { repository, descriptor }: BlobSource,
  range: { start: number; end: number },
  file: FileHandle,
  { signal, onBytes }: PullOptions,
): Promise<void> {
  let position = range.start;
  for await (const bytes of streamOf(repository, descriptor, range, signal)) {
    await writeAll(file, bytes, position);
    position += bytes.length;
    onBytes(bytes.length);
  }
}

export function checkDigest({ repository, descriptor }: BlobSource, hash: Hash): void {
  const found = `sha256:${hash.digest('hex')}`;
  if (found === descriptor.digest) {
    return;
  }
  throw new ReasonedError(
    'DigestMismatch',
    `${repository.name} gave something else for ${descriptor.digest}: its digest is ${found}`,
  );
}

/** The bytes of a part of a blob; of an empty one none, without asking: nothing may be read from a blob's end. */
export async function* streamOf(
  repository: Repository,
  descriptor: Descriptor,
  range: { start: number; end: number },
  signal: AbortSignal,
): AsyncGenerator<Buffer, void, undefined> {
  if (range.start === range.end) {
    return;
  }
  yield* repository.stream(descriptor, range, signal) as AsyncIterable<Buffer>;
}

/** A blob as a file, in one piece, verified: for what is small beside a disk. */
export async function saveBlob(source: BlobSource, path: string, options: PullOptions): Promise<void> {
  const { repository, descriptor } = source;
  const file = await open(path, 'w', 0o600);
  try {
    const hash = createHash('sha256');
    let position = 0;
    const range = { start: 0, end: descriptor.size };
    for await (const bytes of streamOf(repository, descriptor, range, options.signal)) {
      hash.update(bytes);
      await writeAll(file, bytes, position);
      position += bytes.length;
      options.onBytes(bytes.length);
    }
    checkDigest(source, hash);
    await file.sync();
  } finally {
    await file.close();
  }
}
