/** Publishes a disk as Berth's own artifact. Does not send blobs that the registry already has. */
import { open } from 'node:fs/promises';
import { Readable } from 'node:stream';
import { constants, createZstdCompress } from 'node:zlib';
import { ReasonedError } from '../../../api/v1alpha1/reasons.ts';
import type { Descriptor } from '../oci/manifests.ts';
import type { Repository } from '../oci/repository.ts';
import {
  ARTIFACT_TYPE,
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
import type { Chunk } from './chunks.ts';
import type { MemoryFiles } from '../../disks/disk.ts';
import { freeBuffer } from '../../disks/diskio.ts';
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
}

export interface DiskToPublish extends RawDisk {
  repository: Repository;
  tag: string;
  /** Annotations of the manifest. */
  annotations?: Readonly<Record<string, string>> | undefined;
}

interface PublishOptions {
  signal: AbortSignal;
  /**
   * Called with the number of bytes of the disk, including holes, that were processed since the last call. The sum of all calls is
   * `virtualSizeBytes`.
   */
  onBytes: (count: number) => void;
}

interface PublishedDisk {
  /** Digest of the manifest. */
  digest: string;
  /** Number of bytes that the artifact takes in the registry if no other artifact shares its chunks. */
  storageBytes: number;
}

/** Value for an architecture or operating system that was not specified. Every machine accepts an image with this value. */
const UNKNOWN = 'unknown';

/**
 * Uploads the chunks, the configuration and the manifest of a disk.
 *
 * @throws ReasonedError when the upload fails or the disk has too much data.
 */
export async function publishDisk(disk: DiskToPublish, options: PublishOptions): Promise<PublishedDisk> {
  const { repository, tag, virtualSizeBytes: virtualSize, architecture = UNKNOWN, os = UNKNOWN } = disk;
  const { signal } = options;
  const chunkSize = chunkSizeFor(virtualSize);
  const { layers, map } = arranged(await publishChunks(disk, chunkSize, options));
  const config: DiskConfig = {
    architecture,
    os,
    rootfs: { type: 'layers', diff_ids: layers.map(({ rawDigest }) => rawDigest) },
    'dev.berth.disk': { version: 1, virtualSize, chunkSize, map },
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

/**
 * Returns the layers in the order of their first chunk on the disk, and the map from chunks to layers. With this fixed order, equal disks
 * become equal artifacts.
 */
function arranged(places: ReadonlyMap<number, Layer>): {
  layers: Layer[];
  map: DiskConfig['dev.berth.disk']['map'];
} {
  const indexes = new Map<string, number>();
  const layers: Layer[] = [];
  const map: DiskConfig['dev.berth.disk']['map'] = [];
  for (const [chunk, layer] of [...places].sort(([a], [b]) => a - b)) {
    const index = indexes.get(layer.rawDigest) ?? layers.length;
    map.push([chunk, index]);
    if (index < layers.length) {
      continue;
    }
    indexes.set(layer.rawDigest, index);
    layers.push(layer);
  }
  return { layers, map };
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

/** Publishes the chunks that are not zeros. Returns a map from the index of each such chunk to its layer. */
async function publishChunks(
  disk: DiskToPublish,
  chunkSize: number,
  { signal, onBytes }: PublishOptions,
): Promise<Map<number, Layer>> {
  const { path, virtualSizeBytes: virtualSize } = disk;
  const indexes = await chunksWithData(path, chunkSize, virtualSize, signal);
  const workers = Math.min(CHUNKS_AT_ONCE, chunksAtOnce(chunkSize));
  const rooms: Room[] = [];
  const places = new Map<number, Layer>();
  /**
   * Layers that are already published, or whose upload is under way. The key is the digest of the layer's uncompressed content. Thus
   * content that two chunks share is sent only once, even if both chunks are processed at the same time.
   */
  const layers = new Map<string, Promise<Layer>>();
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
        const layer = layers.get(rawDigest) ?? publishChunk(disk, { room, bytes, rawDigest }, signal);
        layers.set(rawDigest, layer);
        places.set(index, await layer);
        if (layers.size > LAYER_LIMIT || places.size > CHUNK_LIMIT) {
          const limit = layers.size > LAYER_LIMIT ? LAYER_LIMIT : CHUNK_LIMIT;
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

async function publishChunk(
  { repository }: DiskToPublish,
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
