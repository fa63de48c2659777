/**
 * The table of a disk's chunks. It is stored as `chunks.json` in the folder of the disk. Pulls of other disks read the table to copy chunks
 * from this disk.
 */
import { createHash } from 'node:crypto';
import { open, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import * as z from 'zod';
import { isMissing, undefinedIf } from '../../../base/errors.ts';
import { type JsonLimits, parseJson } from '../../../base/json.ts';
import type { ContentLookup, PullTarget } from './pull.ts';
import { type SparseFile, writeSparse } from '../../disks/sparse.ts';

/** File name of the chunk table in the folder of the disk. */
export const CHUNK_TABLE = 'chunks.json';
const COPY_BYTES = 1024 * 1024;
/** Limits of a table. A disk has at most 20,000 chunks with different content, each with five fields and about 230 bytes. */
const TABLE_LIMITS: JsonLimits = { bytes: 8 * 1024 * 1024, items: 131_072 };

const chunkSchema = z.object({
  /** Position of the chunk on the disk, in bytes. */
  offset: z.number().int().nonnegative(),
  length: z.number().int().positive(),
  /** Digest of the chunk's content without compression: `sha256:<hex>`. */
  rawDigest: z.string(),
  /** Digest of the blob that contains this chunk in the registry. The blob is usually compressed. */
  digest: z.string(),
  size: z.number().int().nonnegative(),
});
const tableSchema = z.object({ chunks: z.array(chunkSchema) });

export type Chunk = z.infer<typeof chunkSchema>;

/** Chunk of a disk that is pulled. `index` distinguishes the chunks in the journal of the pull. */
export type RemoteChunk = Chunk & { index: number };

/**
 * Writes the table. If several chunks have the same content, the table contains only the first of them. Otherwise a small hostile image,
 * which repeats one layer, could have a table of many megabytes, and reading it would block the agent for seconds.
 */
export async function writeChunkTable({ folder }: PullTarget, chunks: readonly Chunk[]): Promise<void> {
  const byContent = new Map(chunks.toReversed().map((chunk) => [chunk.rawDigest, chunk]));
  const first = chunks.filter((chunk) => byContent.get(chunk.rawDigest) === chunk);
  const table = JSON.stringify(tableSchema.parse({ chunks: first }));
  await writeFile(join(folder, CHUNK_TABLE), table, { mode: 0o600, flush: true });
}

/** Reads the chunk table in the folder of a pulled disk. @throws Error when there is no valid table. */
export async function readChunkTable(folder: string): Promise<Chunk[]> {
  return tableSchema.parse(parseJson(await readFile(join(folder, CHUNK_TABLE)), TABLE_LIMITS)).chunks;
}

/**
 * Returns a function that searches disks of this host for content with a given digest. If several chunks have this content, the returned
 * function gives the position of the first one.
 */
export function lookupIn(disks: readonly { disk: string; chunks: readonly Chunk[] }[]): ContentLookup {
  const places = new Map<string, { path: string; offset: number; length: number }>();
  for (const { disk, chunks } of disks) {
    for (const { rawDigest, offset, length } of chunks) {
      if (!places.has(rawDigest)) {
        places.set(rawDigest, { path: disk, offset, length });
      }
    }
  }
  return ({ rawDigest, length }) => {
    const place = places.get(rawDigest);
    return place?.length === length ? { path: place.path, offset: place.offset } : undefined;
  };
}

/**
 * Copies content from a file of this host to `to`. Returns false when the file was removed or is too short, or when the digest of the
 * copied bytes differs from `rawDigest`. When the result is false, `to` can contain wrong bytes.
 */
export async function copyLocal(
  from: { path: string; offset: number },
  content: { rawDigest: string; length: number },
  to: SparseFile & { position: number },
  signal: AbortSignal,
): Promise<boolean> {
  const source = await undefinedIf(isMissing, open(from.path, 'r'));
  if (source === undefined) {
    return false;
  }
  try {
    const hash = createHash('sha256');
    const buffer = Buffer.allocUnsafe(Math.min(COPY_BYTES, content.length));
    for (let at = 0; at < content.length; ) {
      signal.throwIfAborted();
      const wanted = Math.min(buffer.length, content.length - at);
      const { bytesRead } = await source.read(buffer, 0, wanted, from.offset + at);
      if (bytesRead === 0) {
        return false;
      }
      const bytes = buffer.subarray(0, bytesRead);
      hash.update(bytes);
      await writeSparse(to, bytes, to.position + at);
      at += bytesRead;
    }
    return `sha256:${hash.digest('hex')}` === content.rawDigest;
  } finally {
    await source.close();
  }
}
