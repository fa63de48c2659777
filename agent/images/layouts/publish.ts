/** Publishes a disk as Berth's own artifact. Does not send blobs that the registry already has. */
import { createHash } from 'node:crypto';
import { createReadStream } from 'node:fs';
import { open } from 'node:fs/promises';
import { pipeline, Readable } from 'node:stream';
import { constants, createZstdCompress } from 'node:zlib';
import { ReasonedError } from '../../../api/v1alpha1/reasons.ts';
import type { Descriptor } from '../oci/manifests.ts';
import type { Repository } from '../oci/repository.ts';
import {
  ARTIFACT_TYPE,
  CHUNK_BYTES,
  CHUNK_LIMIT,
  CHUNK_TYPE,
  chunksAtOnce,
  chunkSizeFor,
  compressedLimit,
  CONFIG_TYPE,
  digestOf,
  type DiskConfig,
  LAYER_LIMIT,
  MANIFEST_TYPE,
} from './artifact.ts';
import { imageMemorySchema } from '../../../api/v1alpha1/task.ts';
import { MACHINE_KEY, readMachine } from './artifactmachine.ts';
import { MEMORY_KEY } from './artifactmemory.ts';
import type { Chunk } from './chunks.ts';
import { checkMemory } from './storedmemory.ts';
import type { MachineFiles, MemoryFiles } from '../../disks/disk.ts';
import { fileDigest, freeBuffer } from '../../disks/diskio.ts';
import { dataExtents } from '../../disks/qemuimg.ts';
import { inParallel } from '../../../base/concurrency.ts';
import { isZero, readAll } from '../../disks/sparse.ts';

/** Compression level of zstd. Do not change it: all blobs would change, and content that registries already have would be sent again. */
const COMPRESSION_LEVEL = 3;
const COMPRESSION = {
  /** Number of bytes of compressed output that are copied at a time. */
  chunkSize: 256 * 1024,
  params: {
    [constants.ZSTD_c_compressionLevel]: COMPRESSION_LEVEL,
    [constants.ZSTD_c_contentSizeFlag]: 1,
    [constants.ZSTD_c_checksumFlag]: 1,
  },
};

/** Number of bytes that are passed to the connection at a time. */
const UPLOAD_BYTES = 256 * 1024;
/**
 * Largest number of chunks that are published at the same time. Each chunk needs memory for its uncompressed and its compressed content,
 * and for the connection.
 */
const CHUNKS_AT_ONCE = 3;

/** A disk in a raw file. The file can be sparse. Nobody writes to the file. */
export interface RawDisk {
  path: string;
  /** Size of the disk. If the file is shorter, the rest of the disk is zeros. */
  virtualSizeBytes: number;
  /** Architecture of the guest. Undefined when it was not specified. */
  architecture?: 'amd64' | 'arm64' | undefined;
  os?: string | undefined;
  /** Memory of the machine, of the same moment as the disk. Absent if only the disk is published. */
  memory?: MemoryFiles | undefined;
  /** Files of the machine beside its disk, if it is from an Apple host. */
  machine?: MachineFiles;
}

export interface DiskToPublish extends RawDisk {
  repository: Repository;
  tag: string;
  /** Annotations of the manifest. */
  annotations?: Readonly<Record<string, string>> | undefined;
}

export interface PublishOptions {
  signal: AbortSignal;
  /**
   * Called with the number of bytes of the disk and memory, including holes, that were processed since the last call. The sum of all calls
   * is the size of both.
   */
  onBytes: (count: number) => void;
}

export interface PublishedDisk {
  /** Digest of the manifest. */
  digest: string;
  /** Number of bytes that the artifact takes in the registry if no other artifact shares its chunks. */
  storageBytes: number;
}

/** Value for an architecture or operating system that was not specified. Every machine accepts an image with this value. */
const UNKNOWN = 'unknown';

/**
 * Uploads the chunks, the configuration and the manifest of a disk, and of its memory if it has one.
 *
 * @throws ReasonedError when the upload fails or there is too much data.
 */
export async function publishDisk(disk: DiskToPublish, options: PublishOptions): Promise<PublishedDisk> {
  const { repository, tag, architecture = UNKNOWN, os = UNKNOWN } = disk;
  const { signal } = options;
  const { layers, layouts } = await publishLayers(disk, options);
  const config: DiskConfig = {
    architecture,
    os,
    rootfs: { type: 'layers', diff_ids: layers.map(({ rawDigest }) => rawDigest) },
    ...layouts,
  };
  const configBytes = Buffer.from(JSON.stringify(config));
  const manifest = Buffer.from(
    JSON.stringify({
      schemaVersion: 2,
      mediaType: MANIFEST_TYPE,
      artifactType: ARTIFACT_TYPE,
      config: await publishConfig(repository, configBytes, signal),
      layers: layers.map(({ digest, size }) => ({ mediaType: CHUNK_TYPE, digest, size })),
      annotations: disk.annotations,
    }),
  );
  const digest = await repository.putManifest(tag, MANIFEST_TYPE, manifest, signal);
  const layerBytes = layers.reduce((sum, { size }) => sum + size, 0);
  return { digest, storageBytes: layerBytes + configBytes.length + manifest.length };
}

type Layer = Pick<Chunk, 'rawDigest' | 'digest' | 'size'>;

/** Layers of an artifact, and the layouts of its disk, memory and machine. */
interface PublishedLayers {
  layers: Layer[];
  layouts: Pick<DiskConfig, 'dev.berth.disk' | typeof MEMORY_KEY | typeof MACHINE_KEY>;
}

/** Publishes the layers of a disk, and of its memory if it has one. */
async function publishLayers(disk: DiskToPublish, options: PublishOptions): Promise<PublishedLayers> {
  const { repository, path, virtualSizeBytes: virtualSize, memory } = disk;
  const chunkSize = chunkSizeFor(virtualSize);
  const layerLimit = memory === undefined ? LAYER_LIMIT : LAYER_LIMIT - 1;
  const publishing: Publishing = { repository, layers: new Map(), layerLimit, chunks: 0, options };
  const stateBytes = memory === undefined ? 0 : await checkMemory(memory);
  const ofDisk = await publishChunks({ path, bytes: virtualSize, chunkSize }, publishing);
  if (disk.machine !== undefined) {
    return await withMachine({ version: 1, virtualSize, chunkSize }, ofDisk, disk.machine, publishing);
  }
  if (memory === undefined) {
    const { layers, maps } = arranged([ofDisk]);
    const [map = []] = maps;
    return { layers, layouts: { 'dev.berth.disk': { version: 1, virtualSize, chunkSize, map } } };
  }
  const ram = { path: memory.ram, bytes: memory.memoryBytes, chunkSize: CHUNK_BYTES };
  const { layers, maps } = arranged([ofDisk, await publishChunks(ram, publishing)]);
  const [map = [], memoryMap = []] = maps;
  const state = layers.length;
  return {
    layers: [...layers, await publishState(repository, memory.state, options.signal)],
    layouts: {
      'dev.berth.disk': { version: 1, virtualSize, chunkSize, map },
      [MEMORY_KEY]: {
        version: 1,
        ...imageMemorySchema.parse(memory),
        chunkSize: CHUNK_BYTES,
        map: memoryMap,
        state,
        stateBytes,
      },
    },
  };
}

type ChunkMap = DiskConfig['dev.berth.disk']['map'];

/** Publishes the files of a machine beside its disk. Only the disk counts as progress. */
async function withMachine(
  disk: Omit<DiskConfig['dev.berth.disk'], 'map'>,
  ofDisk: ReadonlyMap<number, Layer>,
  files: MachineFiles,
  publishing: Publishing,
): Promise<PublishedLayers> {
  const machine = await readMachine(files);
  const variables = { path: files.variables, bytes: machine.variablesBytes, chunkSize: CHUNK_BYTES };
  const uncounted = { ...publishing, options: { ...publishing.options, onBytes: () => undefined } };
  const { layers, maps } = arranged([ofDisk, await publishChunks(variables, uncounted)]);
  const [map = [], machineMap = []] = maps;
  return {
    layers,
    layouts: {
      'dev.berth.disk': { ...disk, map },
      [MACHINE_KEY]: { ...machine, chunkSize: CHUNK_BYTES, map: machineMap },
    },
  };
}

/**
 * Returns the layers in the order of their first chunk in the files, and for each file the map from chunks to layers. With this fixed order,
 * equal disks become equal artifacts.
 */
function arranged(files: readonly ReadonlyMap<number, Layer>[]): { layers: Layer[]; maps: ChunkMap[] } {
  const indexes = new Map<string, number>();
  const layers: Layer[] = [];
  const maps = files.map((places) =>
    [...places]
      .sort(([a], [b]) => a - b)
      .map(([chunk, layer]): [number, number] => {
        const index = indexes.get(layer.rawDigest) ?? layers.length;
        if (index === layers.length) {
          indexes.set(layer.rawDigest, index);
          layers.push(layer);
        }
        return [chunk, index];
      }),
  );
  return { layers, maps };
}

async function publishConfig(
  repository: Repository,
  bytes: Buffer,
  signal: AbortSignal,
): Promise<Descriptor> {
  const digest = await digestOf(bytes);
  await repository.upload({ digest, size: bytes.length, content: () => bytes }, signal);
  return { mediaType: CONFIG_TYPE, digest, size: bytes.length };
}

/** Work that the disk and the memory of an artifact have in common. */
interface Publishing {
  repository: Repository;
  /**
   * Layers that are already published, or whose upload is under way. The key is the digest of the layer's uncompressed content. Thus
   * content that two chunks share is sent only once, even if both chunks are processed at the same time.
   */
  layers: Map<string, Promise<Layer>>;
  /** Largest number of layers with chunks. */
  layerLimit: number;
  /** Number of chunks with data. */
  chunks: number;
  options: PublishOptions;
}

/** Publishes the chunks of a file that are not zeros. Returns a map from the index of each such chunk to its layer. */
async function publishChunks(
  { path, bytes: virtualSize, chunkSize }: { path: string; bytes: number; chunkSize: number },
  publishing: Publishing,
): Promise<Map<number, Layer>> {
  const { layers, layerLimit, options } = publishing;
  const { signal, onBytes } = options;
  const indexes = await chunksWithData(path, chunkSize, virtualSize, signal);
  const workers = Math.min(CHUNKS_AT_ONCE, chunksAtOnce(chunkSize));
  const rooms: Room[] = [];
  const places = new Map<number, Layer>();
  let reported = 0;
  const file = await open(path, 'r');
  try {
    await inParallel(indexes, workers, signal, async (index, signal, worker) => {
      const offset = index * chunkSize;
      const length = Math.min(chunkSize, virtualSize - offset);
      const room = (rooms[worker] ??= new Room(Math.min(chunkSize, virtualSize)));
      const bytes = room.raw.subarray(0, length);
      await readAll(file, bytes, offset);
      if (!isZero(bytes)) {
        const rawDigest = await digestOf(bytes);
        const layer = layers.get(rawDigest) ?? publishChunk(publishing, { room, bytes, rawDigest }, signal);
        layers.set(rawDigest, layer);
        places.set(index, await layer);
        publishing.chunks += 1;
        if (layers.size > layerLimit || publishing.chunks > CHUNK_LIMIT) {
          const limit = layers.size > layerLimit ? layerLimit : CHUNK_LIMIT;
          throw new ReasonedError(
            'ImageInvalid',
            `A disk with more than ${limit * chunkSize} bytes of data cannot be published, because its manifest or configuration would be too large`,
          );
        }
      }
      reported += length;
      onBytes(length);
    });
  } finally {
    await file.close();
  }
  onBytes(virtualSize - reported);
  return places;
}

/**
 * Buffers in which one worker reads and compresses a chunk. The worker uses the same buffers for all its chunks. If each chunk had new
 * buffers, several old buffers would be in memory until the garbage collector frees them.
 */
class Room {
  readonly raw: Buffer;
  readonly compressed: Buffer;

  constructor(length: number) {
    this.raw = Buffer.allocUnsafe(length);
    this.compressed = Buffer.allocUnsafe(compressedLimit(length));
  }
}

async function chunksWithData(
  path: string,
  chunkSize: number,
  virtualSize: number,
  signal: AbortSignal,
): Promise<Set<number>> {
  const indexes = new Set<number>();
  for await (const { start, length } of dataExtents(path, signal)) {
    const end = Math.min(start + length, virtualSize);
    for (let index = Math.floor(start / chunkSize); index * chunkSize < end; index += 1) {
      indexes.add(index);
    }
  }
  return indexes;
}

/** Publishes the state of the devices as one layer. Its content is compressed twice, because it can be too large for the agent's memory. */
async function publishState(repository: Repository, path: string, signal: AbortSignal): Promise<Layer> {
  const content = (): Readable =>
    pipeline(
      createReadStream(path, { highWaterMark: UPLOAD_BYTES }),
      createZstdCompress(COMPRESSION),
      () => undefined,
    );
  const hash = createHash('sha256');
  let size = 0;
  for await (const bytes of content() as AsyncIterable<Buffer>) {
    signal.throwIfAborted();
    hash.update(bytes);
    size += bytes.length;
  }
  const digest = `sha256:${hash.digest('hex')}`;
  const rawDigest = `sha256:${await fileDigest(path, signal)}`;
  await repository.upload({ digest, size, content }, signal);
  return { rawDigest, digest, size };
}

async function publishChunk(
  { repository }: Publishing,
  { room, bytes, rawDigest }: { room: Room; bytes: Buffer; rawDigest: string },
  signal: AbortSignal,
): Promise<Layer> {
  const content = await compress(bytes, room.compressed);
  const size = content.length;
  const digest = await digestOf(content);
  await repository.upload({ digest, size, content: () => Readable.from(pieces(content)) }, signal);
  return { rawDigest, digest, size };
}

/** Compresses `bytes` into `into` and returns the part of `into` that was written. */
async function compress(bytes: Buffer, into: Buffer): Promise<Buffer> {
  const encoder = createZstdCompress(COMPRESSION);
  encoder.end(bytes);
  let length = 0;
  for await (const piece of encoder as AsyncIterable<Buffer>) {
    length += piece.copy(into, length);
    freeBuffer(piece);
  }
  return into.subarray(0, length);
}

/**
 * Yields the bytes in pieces. If the connection received all bytes at once, it would encrypt them at once. The encryption would then need
 * twice their size in additional memory.
 */
function* pieces(bytes: Buffer): Generator<Buffer, void, undefined> {
  for (let at = 0; at < bytes.length; at += UPLOAD_BYTES) {
    yield bytes.subarray(at, at + UPLOAD_BYTES);
  }
}
