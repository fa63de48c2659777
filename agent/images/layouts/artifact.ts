/**
 * Berth's own layout of a disk in a registry. The disk is cut into chunks of the same size. A chunk that contains only zeros is not stored.
 * Every other chunk is stored as a layer, which consists of one zstd frame. Chunks with the same content share a layer. The configuration
 * has the format of an image configuration, so that tools for images can read it. In container images, `rootfs.diff_ids` contains the
 * digests of the uncompressed archives. Here it contains the digests of the uncompressed chunks. Fields that only a disk has are below the
 * key `dev.berth.disk`. If the image also has memory, its fields are below the key `dev.berth.memory` (artifactmemory.ts). If it is from an
 * Apple host, those of its machine are below the key `dev.berth.machine` (artifactmachine.ts).
 *
 * A pull fetches the chunks in parallel, verifies each chunk, and writes it at its offset on the disk.
 */
import { createHash } from 'node:crypto';
import { constants, open } from 'node:fs/promises';
import { setImmediate as nextCycle } from 'node:timers/promises';
import * as z from 'zod';
import { ReasonedError } from '../../../api/v1alpha1/reasons.ts';
import { type ImageMemory, imageMemorySchema } from '../../../api/v1alpha1/task.ts';
import type { Repository } from '../oci/repository.ts';
import { messageOf } from '../../../base/errors.ts';
import { listOf, type Manifest, printable, readDocument } from '../oci/manifests.ts';
import { type Chunk, copyLocal, type RemoteChunk, writeChunkTable } from './chunks.ts';
import { MACHINE_FIELDS, MACHINE_KEY, machineIn, writeMachineConfig } from './artifactmachine.ts';
import { MEMORY_KEY, pullState, type RemoteState } from './artifactmemory.ts';
import { checkArchitecture, checkDigest, memoryIn, type PlanPull, type PullOptions } from './pull.ts';
import { type Journal, makeDisk, unfinished } from './journal.ts';
import { DirectFile, gathered } from '../../disks/diskio.ts';
import { inParallel } from '../../../base/concurrency.ts';
import type { JsonLimits } from '../../../base/json.ts';
import { type SparseFile, writeSparse } from '../../disks/sparse.ts';
import { zstdDecoder } from '../../disks/unpack.ts';
import { isSha256 } from '../../../api/v1alpha1/reference.ts';
import { DISK_LIMIT_BYTES, MEMORY_LIMIT_BYTES, SECTOR_BYTES, STATE_LIMIT_BYTES } from '../../disks/disk.ts';

export const ARTIFACT_TYPE = 'application/vnd.berth.disk.v1';
export const CONFIG_TYPE = 'application/vnd.oci.image.config.v1+json';
export const CHUNK_TYPE = 'application/vnd.berth.disk.chunk.v1+zstd';
export const MANIFEST_TYPE = 'application/vnd.oci.image.manifest.v1+json';

const MIB = 1024 * 1024;
const GIB = 1024 * MIB;
/** Size of a chunk in bytes. Larger chunks do not compress better. Smaller chunks need more requests and larger manifests. */
export const CHUNK_BYTES = 16 * MIB;
/**
 * Size in bytes of the largest disk that is cut into chunks of 16 MiB. Larger disks have larger chunks. If a larger disk had chunks of 16
 * MiB, its manifest could become almost as large as the 4 MiB that registries accept.
 */
const CHUNK_DISK_LIMIT_BYTES = 128 * GIB;
const LARGE_CHUNK_BYTES = 64 * MIB;
/**
 * Largest number of layers of a disk. The limit exists because each layer takes about 160 bytes in a manifest, and a manifest has at most 4
 * MiB.
 */
export const LAYER_LIMIT = 20_000;
/**
 * Largest number of chunks with data of a published disk and its memory together. Each chunk takes three items in the configuration, and
 * each layer one. All together fit into the limit of a configuration (artifact.ts).
 */
export const CHUNK_LIMIT = 36_000;
/** Limits of the chunks that are in memory at the same time: their total size in bytes, and their number. */
const MEMORY_BYTES = 128 * MIB;
const CHUNKS_AT_ONCE = 4;

const count = z.number().int().nonnegative();
/** Fields that the layouts of the disk and of the memory have in common. */
const CHUNKED = {
  /** Size of a chunk in bytes. */
  chunkSize: z.number().int().min(SECTOR_BYTES).max(LARGE_CHUNK_BYTES).multipleOf(SECTOR_BYTES),
  /**
   * Pairs of two indexes. The first index names a chunk of the disk or memory. The second index names the layer with the content of this
   * chunk. The pairs are in ascending order of chunks. A chunk without a pair contains only zeros.
   */
  map: listOf(z.tuple([count, count]), CHUNK_LIMIT),
};
const layoutSchema = z.object({
  version: z.literal(1),
  /** Size of the disk in bytes. */
  virtualSize: z.number().int().positive().max(DISK_LIMIT_BYTES).multipleOf(SECTOR_BYTES),
  ...CHUNKED,
});
type DiskLayout = z.infer<typeof layoutSchema>;

const memoryLayoutSchema = z.strictObject({
  version: z.literal(1),
  ...imageMemorySchema.shape,
  memoryBytes: imageMemorySchema.shape.memoryBytes.max(MEMORY_LIMIT_BYTES),
  ...CHUNKED,
  /** Index of the layer with the state of the devices. It must be the last layer, so that no chunk can name it. */
  state: count,
  /** Size of the state in bytes, without compression. */
  stateBytes: z.number().int().positive().max(STATE_LIMIT_BYTES),
});
type MemoryLayout = z.infer<typeof memoryLayoutSchema>;

const machineLayoutSchema = z.strictObject({ ...MACHINE_FIELDS, ...CHUNKED });

const diskConfigSchema = z.object({
  architecture: z.string(),
  /** Operating system of the guest, or `unknown` when it was not specified. */
  os: z.string(),
  rootfs: z.object({ type: z.literal('layers'), diff_ids: listOf(z.string().refine(isSha256), LAYER_LIMIT) }),
  'dev.berth.disk': layoutSchema,
  [MEMORY_KEY]: memoryLayoutSchema.optional(),
  [MACHINE_KEY]: machineLayoutSchema.optional(),
});
export type DiskConfig = z.infer<typeof diskConfigSchema>;

export function chunkSizeFor(virtualSize: number): number {
  return virtualSize <= CHUNK_DISK_LIMIT_BYTES ? CHUNK_BYTES : LARGE_CHUNK_BYTES;
}

/** Returns the number of chunks of `chunkSize` bytes that can be processed at the same time within the memory limit. */
export function chunksAtOnce(chunkSize: number): number {
  return Math.max(1, Math.min(CHUNKS_AT_ONCE, Math.floor(MEMORY_BYTES / chunkSize)));
}

/** Returns the largest size in bytes that `length` bytes can have after compression. The result is zstd's own bound, rounded up. */
export function compressedLimit(length: number): number {
  return length + Math.ceil(length / 256) + 1024;
}

/** Part of an artifact that is cut into chunks. */
type Part = 'disk' | 'memory' | 'machine';

interface DiskChunk {
  /** Index of the chunk on the disk, from 0. */
  index: number;
  offset: number;
  length: number;
  layer: number;
}

/**
 * Returns the chunks that the `map` of a disk or memory lists, with their offsets and lengths in bytes. All other chunks contain only zeros.
 * `layers` is the number of layers with chunks in the manifest.
 *
 * @throws ReasonedError `ImageInvalid` when the map breaks a rule of the layout.
 */
export function chunksOf(
  { virtualSize, chunkSize, map }: DiskLayout,
  layers: number,
  what: Part = 'disk',
): DiskChunk[] {
  const last = Math.ceil(virtualSize / chunkSize) - 1;
  let before = -1;
  return map.map(([index, layer]) => {
    if (index <= before || index > last) {
      throw invalid(`chunk ${index} of the ${what} is out of order or beyond the end of the ${what}`);
    }
    if (layer >= layers) {
      throw invalid(
        `chunk ${index} of the ${what} names layer ${layer}, but there are only ${layers} layers`,
      );
    }
    before = index;
    const offset = index * chunkSize;
    return { index, offset, length: Math.min(chunkSize, virtualSize - offset), layer };
  });
}

/**
 * Checks the number and types of the layers.
 *
 * @throws ReasonedError `ImageInvalid` when there are too many layers, their number differs from the number of digests, or a layer has the
 * wrong type.
 */
function checkLayers({ layers }: Manifest, config: DiskConfig): void {
  const digests = config.rootfs.diff_ids.length;
  if (layers.length > LAYER_LIMIT) {
    throw invalid(`it has ${layers.length} layers, more than the allowed ${LAYER_LIMIT}`);
  }
  if (layers.length !== digests) {
    throw invalid(`it has ${layers.length} layers, but digests for ${digests} layers`);
  }
  for (const [index, { mediaType }] of layers.entries()) {
    if (mediaType !== CHUNK_TYPE) {
      throw invalid(`layer ${index} has the media type ${printable(mediaType)} instead of ${CHUNK_TYPE}`);
    }
  }
}

function invalid(what: string): ReasonedError {
  return new ReasonedError('ImageInvalid', `The disk artifact cannot be used: ${what}`);
}

/**
 * Limits of the configuration of a disk. A disk has at most 20,000 layers. A layer and the entry of its first chunk take about 90 bytes and
 * four items, so all layers take about 1.8 MB and 80,000 items. If several chunks share a layer, each further chunk needs an entry of its
 * own, with three items. The rest of the limits is for these entries.
 */
const CONFIG_LIMITS: JsonLimits = { bytes: 4 * 1024 * 1024, items: 131_072 };
/**
 * The largest accepted zstd window is 64 MiB, the size of the largest chunk. The constant is the base-2 logarithm of this limit in bytes.
 * The limit saves memory, because several layers are decoded at once.
 */
const WINDOW_LOG = 26;
/** Number of bytes that are decoded and hashed at a time. */
const PIECE_BYTES = 256 * 1024;
/** Number of bytes that are written at a time. Smaller writes would be slower, because the disk needs some time for each write. */
const WRITE_BYTES = 1024 * 1024;
/**
 * Number of bytes that {@link digestOf} hashes at a time. Hashing them takes less than a millisecond. The agent can do other work before
 * the next bytes are hashed.
 */
const HASH_BYTES = 1024 * 1024;

export const planArtifact: PlanPull = async (
  repository,
  { manifest, digest, architecture },
  signal,
  { withMemory } = { withMemory: false },
) => {
  if (manifest.artifactType !== ARTIFACT_TYPE) {
    return undefined;
  }
  const bytes = await repository.blob(manifest.config, CONFIG_LIMITS.bytes, signal);
  const what = 'The configuration of the disk artifact';
  const config = readDocument(diskConfigSchema, bytes, CONFIG_LIMITS, what);
  checkArchitecture(repository.name, config.architecture, architecture);
  const { disk, memory, machine } = partsOf(config, manifest);
  const fetched = withMemory ? memory : undefined;
  const files = [disk, fetched, machine].filter((file) => file !== undefined);
  const layers = new Map(files.flatMap(({ chunks }) => chunks).map((one) => [one.digest, one.size]));
  return {
    ...(memory && { memory: memory.described }),
    downloadBytes: sumOf([...layers.values()]) + (fetched?.state.size ?? 0),
    roomBytes: sumOf(files.map(roomOf)) + (fetched?.state.length ?? 0),
    run: async (target, options) => {
      await makeDisk(target, digest, async (journal) => {
        const written: Written = new Map();
        const pulling = { repository, journal, options, written };
        if (fetched !== undefined) {
          const { folder } = target;
          await pullState(repository, fetched.state, { folder, journal }, options);
          await pull({ ...fetched, path: memoryIn(folder).ram }, pulling);
        }
        if (machine !== undefined) {
          await pull({ ...machine, path: machineIn(target.folder).variables }, pulling);
          await writeMachineConfig(target.folder, machine.config);
        }
        await pull({ ...disk, path: unfinished(target) }, pulling);
        await writeChunkTable(target, disk.chunks);
      });
    },
  };
};

function sumOf(numbers: readonly number[]): number {
  return numbers.reduce((sum, one) => sum + one, 0);
}

/** A disk or a memory that is cut into chunks. */
interface ChunkedFile {
  /** Size of the file in bytes. */
  bytes: number;
  chunkSize: number;
  chunks: readonly RemoteChunk[];
  /** Beginning of the names of the chunks in the journal. */
  prefix: string;
}

type RemoteLayer = Pick<RemoteChunk, 'digest' | 'size' | 'rawDigest'>;

interface RemoteMemory extends ChunkedFile {
  described: ImageMemory;
  state: RemoteState;
}

interface RemoteMachine extends ChunkedFile {
  /** Configuration of the machine, as JSON. */
  config: string;
}

function roomOf({ chunks }: ChunkedFile): number {
  return sumOf(chunks.map(({ length }) => length));
}

/** Returns the disk of an artifact, and its memory or machine. @throws ReasonedError `ImageInvalid` when one of them breaks a rule of its layout. */
function partsOf(
  config: DiskConfig,
  manifest: Manifest,
): { disk: ChunkedFile; memory?: RemoteMemory; machine?: RemoteMachine } {
  checkLayers(manifest, config);
  const all = manifest.layers.map(({ digest, size }, index) => {
    return { digest, size, rawDigest: config.rootfs.diff_ids[index] ?? '' };
  });
  const { 'dev.berth.disk': disk, [MEMORY_KEY]: memory, [MACHINE_KEY]: machine } = config;
  if (machine !== undefined) {
    if (memory !== undefined) {
      throw invalid('it has memory, which no image of an Apple host has');
    }
    const { variablesBytes: virtualSize, config: text } = machine;
    const variables = chunkedFile({ ...machine, virtualSize }, all, 'machine');
    return { disk: chunkedFile(disk, all, 'disk'), machine: { ...variables, config: text } };
  }
  if (memory === undefined) {
    return { disk: chunkedFile(disk, all, 'disk') };
  }
  const state = stateOf(memory, all);
  const layers = all.slice(0, -1);
  const { memoryBytes: virtualSize } = memory;
  return {
    disk: chunkedFile(disk, layers, 'disk'),
    memory: {
      ...chunkedFile({ ...memory, virtualSize }, layers, 'memory'),
      described: imageMemorySchema.parse(memory),
      state,
    },
  };
}

function stateOf({ state, stateBytes: length }: MemoryLayout, layers: readonly RemoteLayer[]): RemoteState {
  const layer = layers.at(-1);
  if (layer === undefined || state !== layers.length - 1) {
    throw invalid(`its memory names layer ${state} for the state, which is not the last layer`);
  }
  const limit = compressedLimit(length);
  if (layer.size > limit) {
    throw invalid(`the layer of its state has ${layer.size} bytes, more than the allowed ${limit}`);
  }
  return { ...layer, length };
}

/**
 * Returns the chunks of a disk or memory with their layers. `layers` are the layers with chunks.
 *
 * @throws ReasonedError `ImageInvalid` when the map breaks a rule of the layout, or a layer is too large for a chunk.
 */
function chunkedFile(layout: DiskLayout, layers: readonly RemoteLayer[], what: Part): ChunkedFile {
  const { virtualSize: bytes, chunkSize } = layout;
  const limit = compressedLimit(chunkSize);
  const chunks = chunksOf(layout, layers.length, what).map(({ layer, ...chunk }) => {
    const found = layers[layer];
    if (found === undefined) {
      throw invalid(`layer ${layer} is missing`);
    }
    if (found.size > limit) {
      throw invalid(`layer ${layer} has ${found.size} bytes, more than the allowed ${limit}`);
    }
    return { ...chunk, ...found };
  });
  return { bytes, chunkSize, chunks, prefix: what === 'disk' ? '' : `${what} ` };
}

/** Places of content on this host by the digest of its layer. Offsets are in bytes. */
type Written = Map<string, { path: string; offset: number }>;

interface Work {
  repository: Repository;
  /** The file that this pull writes. If an earlier pull was interrupted, the file can contain unverified content of that pull. */
  disk: SparseFile;
  /**
   * Places of the layers whose content the pull has already written: the file, and the offset in bytes. The key is the digest of the layer.
   * If a later chunk has the same layer, the pull copies the content from this place.
   */
  written: Written;
  /** Buffer that collects decoded bytes until there are enough to write. Undefined if the file does not support direct writes. */
  piece: Buffer | undefined;
  /**
   * Buffer into which one worker fetches the compressed content of its chunks, one chunk after the other. If each chunk had a new buffer,
   * several old buffers would be in memory until the garbage collector frees them.
   */
  room: Buffer;
  options: PullOptions;
}

interface Pulling extends Pick<Work, 'repository' | 'written' | 'options'> {
  journal: Journal;
}

async function pull(
  { path, bytes, chunkSize, chunks, prefix }: ChunkedFile & { path: string },
  { repository, journal, options, written }: Pulling,
): Promise<void> {
  const width = chunksAtOnce(chunkSize);
  // Entries of the journal that are being written, at most one for each worker. While the entry for a chunk is written to the disk, the
  // worker already fetches its next chunk.
  const entries: Promise<void>[] = [];
  const file = await open(path, constants.O_RDWR | constants.O_CREAT, 0o600);
  let direct: DirectFile | undefined;
  try {
    direct = await DirectFile.open(path, { count: width, bytes: WRITE_BYTES });
    await file.truncate(bytes);
    const disk = { file, fresh: journal.fresh, direct };
    // A disk can have hundreds of thousands of chunks. A call with an argument for each of them would exceed the stack.
    const largest = chunks.reduce((most, { size }) => Math.max(most, size), 0);
    const rooms: Buffer[] = [];
    await inParallel(chunks, width, options.signal, async (chunk, signal, worker) => {
      const name = `${prefix}${chunk.index}`;
      const room = (rooms[worker] ??= Buffer.allocUnsafe(largest));
      const piece = direct?.rooms[worker];
      const work = { repository, disk, written, piece, room, options: { ...options, signal } };
      if (journal.has(name)) {
        spare(work, chunk);
      } else {
        await makeChunk(work, chunk);
        const before = entries[worker];
        const entry = journal.add(name, file);
        // If the entry cannot be written, the worker's next chunk or the wait at the end throws the error. Until then, this handler prevents
        // an unhandled rejection.
        entry.catch(() => undefined);
        entries[worker] = entry;
        await before;
      }
      written.set(chunk.digest, { path, offset: chunk.offset });
    });
    await Promise.all(entries);
  } finally {
    await Promise.allSettled(entries);
    await direct?.close();
    await file.close();
  }
}

/**
 * Reports to `onSpared` that the layer of a chunk need not be downloaded. Reports each layer only once, even if several chunks have its
 * content.
 */
function spare({ written, options }: Work, { digest, size }: Chunk): void {
  if (!written.has(digest)) {
    options.onSpared?.(size);
  }
}

async function makeChunk(work: Work, chunk: RemoteChunk): Promise<void> {
  const { disk, written, options } = work;
  const local = written.get(chunk.digest) ?? options.lookup?.(chunk);
  const to = { file: disk.file, fresh: disk.fresh, position: chunk.offset };
  if (local !== undefined && (await copyLocal(local, chunk, to, options.signal))) {
    spare(work, chunk);
    return;
  }
  const compressed = await fetchChunk(work, chunk);
  const target = { ...disk, fresh: disk.fresh && local === undefined };
  await writeDecoded({ target, piece: work.piece }, compressed, chunk);
}

/** Fetches the compressed layer of a chunk into the buffer `room`. Returns the part of this buffer with the verified bytes. */
async function fetchChunk({ repository, room, options }: Work, chunk: Chunk): Promise<Buffer> {
  const hash = createHash('sha256');
  let at = 0;
  const range = { start: 0, end: chunk.size };
  for await (const bytes of repository.stream(chunk, range, options.signal)) {
    at += bytes.copy(room, at);
    hash.update(bytes);
    options.onBytes(bytes.length);
  }
  checkDigest({ repository, blob: chunk }, hash);
  return room.subarray(0, at);
}

/**
 * Decodes the layer of a chunk, and writes the content at the chunk's offset on the disk. The promise resolves only after the content was
 * verified.
 */
async function writeDecoded(
  { target, piece }: { target: SparseFile; piece: Buffer | undefined },
  compressed: Buffer,
  { digest, rawDigest, offset, length }: RemoteChunk,
): Promise<void> {
  const hash = createHash('sha256');
  let at = 0;
  for await (const bytes of gathered(decoded(compressed, digest), piece)) {
    if (at + bytes.length > length) {
      throw invalid(`layer ${digest} unpacks to more than ${length} bytes`);
    }
    hash.update(bytes);
    await writeSparse(target, bytes, offset + at);
    at += bytes.length;
  }
  if (at < length) {
    throw invalid(`layer ${digest} unpacks to ${at} bytes instead of ${length}`);
  }
  const found = `sha256:${hash.digest('hex')}`;
  if (found !== rawDigest) {
    throw invalid(`the content of layer ${digest} has the digest ${found} instead of ${rawDigest}`);
  }
}

async function* decoded(compressed: Buffer, digest: string): AsyncGenerator<Buffer, void, undefined> {
  const decoder = zstdDecoder(PIECE_BYTES, WINDOW_LOG);
  decoder.end(compressed);
  try {
    yield* decoder as AsyncIterable<Buffer>;
  } catch (error) {
    throw new ReasonedError('ImageInvalid', `Layer ${digest} cannot be unpacked: ${messageOf(error)}`, {
      cause: error,
    });
  }
}

/** Returns the digest of the bytes as `sha256:<hex>`. The function hashes the bytes in pieces, and other work runs between two pieces. */
export async function digestOf(bytes: Buffer): Promise<string> {
  const hash = createHash('sha256');
  for (let at = 0; at < bytes.length; at += HASH_BYTES) {
    hash.update(bytes.subarray(at, at + HASH_BYTES));
    await nextCycle();
  }
  return `sha256:${hash.digest('hex')}`;
}
