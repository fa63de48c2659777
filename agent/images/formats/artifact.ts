/** Disks that Berth itself has published: chunks are fetched in parallel, each verified and written to its place. */
import { createHash } from 'node:crypto';
import { constants, open } from 'node:fs/promises';
import { setImmediate as turn } from 'node:timers/promises';
import { promisify } from 'node:util';
import { zstdDecompress } from 'node:zlib';
import type { Descriptor, Manifest, Repository } from '../registry/types.ts';
import { ImageError } from '../store.ts';
import { checkDigest, streamOf } from './blob.ts';
import { type Chunk, copyLocal, writeChunkTable } from './chunks.ts';
import {
  ARTIFACT_TYPE,
  checkLayers,
  chunksAtOnce,
  chunksOf,
  type DiskConfig,
  diskConfigSchema,
  invalid,
} from './disklayout.ts';
import type { PlanPull, PullOptions, PullTarget } from './format.ts';
import { finish, isFinished, type Journal, openJournal, unfinished } from './journal.ts';
import { inParallel, Slots } from './parallel.ts';
import { release } from './release.ts';
import { type SparseFile, writeSparse } from './sparse.ts';

/** Of the most layers there can be, about 90 bytes each, and as much again for chunks of the same content. */
const CONFIG_LIMIT_BYTES = 4 * 1024 * 1024;
/** Chunks that are decoded and written while others come: each takes the memory of a whole one. */
const DECODED_AT_ONCE = 2;
/** Hashing so much takes less than a millisecond; in between others get their turn. */
const HASH_BYTES = 1024 * 1024;

const decompress = promisify(zstdDecompress);

interface RemoteChunk extends Chunk {
  index: number;
  descriptor: Descriptor;
}

export const planArtifact: PlanPull = async (repository, { manifest, digest }, signal) => {
  if (manifest.artifactType !== ARTIFACT_TYPE) return undefined;
  const config = parseConfig(await repository.blob(manifest.config, CONFIG_LIMIT_BYTES, signal));
  const chunks = remoteChunks(config, manifest);
  return {
    downloadBytes: manifest.layers.reduce((sum, { size }) => sum + size, 0),
    roomBytes: chunks.reduce((sum, { length }) => sum + length, 0),
    run: async (target, options) => {
      const journal = await openJournal(target.folder, digest);
      try {
        if (await isFinished(target)) return;
        await pull(repository, { config, chunks }, { target, journal }, options);
        await writeChunkTable(
          target,
          chunks.map(({ descriptor: _descriptor, index: _index, ...chunk }) => chunk),
        );
        await finish(target);
      } finally {
        await journal.close();
      }
    },
  };
};

function parseConfig(bytes: Buffer): DiskConfig {
  try {
    return diskConfigSchema.parse(JSON.parse(bytes.toString('utf8')));
  } catch (error) {
    throw new ImageError(
      'ImageInvalid',
      `the configuration of the disk artifact is not one: ${String(error)}`,
      {
        cause: error,
      },
    );
  }
}

function remoteChunks(config: DiskConfig, manifest: Manifest): RemoteChunk[] {
  checkLayers(manifest, config);
  return chunksOf(config['dev.berth.disk'], manifest.layers.length).map(({ layer, ...chunk }) => {
    const [descriptor, rawDigest] = [manifest.layers[layer], config.rootfs.diff_ids[layer]];
    if (descriptor === undefined || rawDigest === undefined) throw invalid(`there is no layer ${layer}`);
    const { digest, size } = descriptor;
    return { ...chunk, rawDigest, digest, size, descriptor };
  });
}

interface Work {
  repository: Repository;
  /** Not fresh when an earlier call may have left something here, be it a copy that was not verified any more. */
  disk: SparseFile;
  path: string;
  /** Where a content is on the disk already, for a second chunk of it. */
  written: Map<string, number>;
  decoding: Slots;
  options: PullOptions;
}

async function pull(
  repository: Repository,
  { config, chunks }: { config: DiskConfig; chunks: readonly RemoteChunk[] },
  { target, journal }: { target: PullTarget; journal: Journal },
  options: PullOptions,
): Promise<void> {
  const { virtualSize, chunkSize } = config['dev.berth.disk'];
  const path = unfinished(target);
  const file = await open(path, constants.O_RDWR | constants.O_CREAT, 0o600);
  try {
    await file.truncate(virtualSize);

    const written = new Map<string, number>();
    const disk = { file, fresh: journal.fresh };
    const decoding = new Slots(DECODED_AT_ONCE);
    await inParallel(chunks, chunksAtOnce(chunkSize), options.signal, async (chunk, signal) => {
      const name = String(chunk.index);
      const work = { repository, disk, path, written, decoding, options: { ...options, signal } };
      if (journal.has(name)) spare(work, chunk);
      else {
        await makeChunk(work, chunk);
        await journal.add(name, file);
      }
      written.set(chunk.digest, chunk.offset);
    });
  } finally {
    await file.close();
  }
}

/** A layer counts once, however many chunks have its content. */
function spare({ written, options }: Work, { digest, size }: Chunk): void {
  if (!written.has(digest)) options.onSpared?.(size);
}

async function makeChunk(work: Work, chunk: RemoteChunk): Promise<void> {
  const { disk, path, written, options } = work;
  const same = written.get(chunk.digest);
  const local =
    same === undefined
      ? options.lookup?.(chunk.rawDigest, chunk.offset, chunk.length)
      : { path, offset: same };
  const to = { ...disk, position: chunk.offset };
  if (local !== undefined && (await copyLocal(local, chunk, to, options.signal))) {
    spare(work, chunk);
    return;
  }
  const compressed = await fetchChunk(work, chunk);
  await work.decoding.run(async () => {
    const raw = await decode(compressed, chunk);
    release(compressed);
    await writeSparse({ ...disk, fresh: disk.fresh && local === undefined }, raw, chunk.offset);
    release(raw);
  });
}

/** The layer, verified. */
async function fetchChunk({ repository, options }: Work, { descriptor }: RemoteChunk): Promise<Buffer> {
  const compressed = Buffer.allocUnsafe(descriptor.size);
  const hash = createHash('sha256');
  let at = 0;
  const range = { start: 0, end: descriptor.size };
  for await (const bytes of streamOf(repository, descriptor, range, options.signal)) {
    at += bytes.copy(compressed, at);
    hash.update(bytes);
    options.onBytes(bytes.length);
  }
  checkDigest({ repository, descriptor }, hash);
  return compressed;
}

/** What the layer gives, verified. */
async function decode(compressed: Buffer, { digest, rawDigest, length }: RemoteChunk): Promise<Buffer> {
  const raw = await decompressed(compressed, digest, length);
  const found = await digestOf(raw);
  if (found !== rawDigest) throw invalid(`${digest} gives ${found}, not ${rawDigest}`);
  return raw;
}

async function decompressed(compressed: Buffer, digest: string, length: number): Promise<Buffer> {
  try {
    // The room in one piece: it would otherwise be made of many, at a third of the speed.
    const raw = await decompress(compressed, { maxOutputLength: length + 1, chunkSize: length + 1 });
    if (raw.length === length) return raw;
    throw invalid(`${digest} gives ${raw.length} bytes, not ${length}`);
  } catch (error) {
    if (error instanceof ImageError) throw error;
    throw new ImageError('ImageInvalid', `${digest} cannot be decoded: ${String(error)}`, { cause: error });
  }
}

/** `sha256:<hex>`, others having their turn in between. */
export async function digestOf(bytes: Buffer): Promise<string> {
  const hash = createHash('sha256');
  for (let at = 0; at < bytes.length; at += HASH_BYTES) {
    hash.update(bytes.subarray(at, at + HASH_BYTES));
    await turn();
  }
  return `sha256:${hash.digest('hex')}`;
}
