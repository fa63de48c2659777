/** Large blobs of a registry as files: fetched in parts at the same time, and verified as a whole. */
import { createHash, type Hash } from 'node:crypto';
import { constants, type FileHandle, open } from 'node:fs/promises';
import type { Descriptor, Repository } from '../registry/types.ts';
import { ImageError } from '../store.ts';
import type { PullOptions } from './format.ts';
import type { Journal } from './journal.ts';
import { inParallel } from './parallel.ts';
import { writeAll } from './sparse.ts';

/** What a kill loses of each part under way; a request's own cost is small beside it. */
export const PART_BYTES = 16 * 1024 * 1024;
/** More connections brought nothing where it was measured, and registries limit them. */
export const CONNECTIONS = 4;
/** Hashing one takes less than a millisecond; in between others get their turn. */
const HASH_BYTES = 1024 * 1024;

export interface BlobSource {
  repository: Repository;
  descriptor: Descriptor;
}

/**
 * Fetches a blob to `path` and verifies it. `name`: of its parts in the journal, by which a second call goes on. Throws
 * ImageError `DigestMismatch`.
 */
export async function fetchBlob(
  { repository, descriptor }: BlobSource,
  path: string,
  work: { journal: Journal; name: string },
  options: PullOptions,
): Promise<void> {
  const { size } = descriptor;
  const file = await open(path, constants.O_RDWR | constants.O_CREAT, 0o600);
  try {
    const parts = Array.from({ length: Math.ceil(size / PART_BYTES) }, (_, index) => index);
    await inParallel(parts, CONNECTIONS, options.signal, async (index, signal) => {
      const start = index * PART_BYTES;
      const end = Math.min(start + PART_BYTES, size);
      if (work.journal.has(`${work.name} ${index}`)) {
        options.onSpared?.(end - start);
        return;
      }
      await fetchPart({ repository, descriptor }, { start, end }, file, { ...options, signal });
      await work.journal.add(`${work.name} ${index}`, file);
    });
    await verifyFile(file, { repository, descriptor }, options.signal);
  } finally {
    await file.close();
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

async function verifyFile(file: FileHandle, source: BlobSource, signal: AbortSignal): Promise<void> {
  const hash = createHash('sha256');
  const buffer = Buffer.allocUnsafe(HASH_BYTES);
  for (let at = 0; at < source.descriptor.size; ) {
    signal.throwIfAborted();
    const { bytesRead } = await file.read(buffer, 0, HASH_BYTES, at);
    if (bytesRead === 0) break;
    hash.update(buffer.subarray(0, bytesRead));
    at += bytesRead;
  }
  checkDigest(source, hash);
}

export function checkDigest({ repository, descriptor }: BlobSource, hash: Hash): void {
  const found = `sha256:${hash.digest('hex')}`;
  if (found === descriptor.digest) return;
  throw new ImageError(
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
  if (range.start === range.end) return;
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
