/**
 * Berth's own layout of a disk in a registry. The disk is cut into chunks of the same size. A chunk that contains only zeros is not stored.
 * Every other chunk is stored as a layer, which consists of one zstd frame. Chunks with the same content share a layer. The configuration
 * has the format of an image configuration, so that tools for images can read it. In container images, `rootfs.diff_ids` contains the
 * digests of the uncompressed archives. Here it contains the digests of the uncompressed chunks. Fields that only a disk has are below the
 * key `dev.berth.disk`.
 */
import * as z from 'zod';
import { isSha256 } from '../../../api/v1alpha1/reference.ts';
import { ReasonedError } from '../../../api/v1alpha1/reasons.ts';
import { DISK_LIMIT_BYTES, SECTOR_BYTES } from '../../disks/disk.ts';
import { listOf, type Manifest, printable } from '../oci/manifests.ts';

export const ARTIFACT_TYPE = 'application/vnd.berth.disk.v1';
export const CONFIG_TYPE = 'application/vnd.oci.image.config.v1+json';
export const CHUNK_TYPE = 'application/vnd.berth.disk.chunk.v1+zstd';
export const MANIFEST_TYPE = 'application/vnd.oci.image.manifest.v1+json';

const MIB = 1024 * 1024;
const GIB = 1024 * MIB;
/** Size of a chunk in bytes. Larger chunks do not compress better. Smaller chunks need more requests and larger manifests. */
const CHUNK_BYTES = 16 * MIB;
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
 * Largest number of chunks with data of a published disk. Each chunk takes three items in the configuration, and each layer one. All
 * together fit into the limit of a configuration (artifact.ts).
 */
export const CHUNK_LIMIT = 36_000;
/** Limits of the chunks that are in memory at the same time: their total size in bytes, and their number. */
const MEMORY_BYTES = 128 * MIB;
const CHUNKS_AT_ONCE = 4;

const count = z.number().int().nonnegative();
const layoutSchema = z.object({
  version: z.literal(1),
  /** Size of the disk in bytes. All sizes in this schema are in bytes. */
  virtualSize: z.number().int().positive().max(DISK_LIMIT_BYTES).multipleOf(SECTOR_BYTES),
  chunkSize: z.number().int().min(SECTOR_BYTES).max(LARGE_CHUNK_BYTES).multipleOf(SECTOR_BYTES),
  /**
   * Pairs of two indexes. The first index names a chunk of the disk. The second index names the layer with the content of this chunk. The
   * pairs are in ascending order of chunks. A chunk without a pair contains only zeros.
   */
  map: listOf(z.tuple([count, count]), CHUNK_LIMIT),
});
type DiskLayout = z.infer<typeof layoutSchema>;

export const diskConfigSchema = z.object({
  architecture: z.string(),
  /** Operating system of the guest, or `unknown` when it was not specified. */
  os: z.string(),
  rootfs: z.object({ type: z.literal('layers'), diff_ids: listOf(z.string().refine(isSha256), LAYER_LIMIT) }),
  'dev.berth.disk': layoutSchema,
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

interface DiskChunk {
  /** Index of the chunk on the disk, from 0. */
  index: number;
  offset: number;
  length: number;
  layer: number;
}

/**
 * Returns the chunks that the `map` of a disk lists, with their offsets and lengths on the disk in bytes. All other chunks contain only
 * zeros. `layers` is the number of layers in the manifest.
 *
 * @throws ReasonedError `ImageInvalid` when the map breaks a rule of the layout.
 */
export function chunksOf({ virtualSize, chunkSize, map }: DiskLayout, layers: number): DiskChunk[] {
  const last = Math.ceil(virtualSize / chunkSize) - 1;
  let before = -1;
  return map.map(([index, layer]) => {
    if (index <= before || index > last) {
      throw invalid(`chunk ${index} is out of order or beyond the end of the disk`);
    }
    if (layer >= layers) {
      throw invalid(`chunk ${index} names layer ${layer}, but there are only ${layers} layers`);
    }
    before = index;
    const offset = index * chunkSize;
    return { index, offset, length: Math.min(chunkSize, virtualSize - offset), layer };
  });
}

/**
 * Checks the number, types and sizes of the layers.
 *
 * @throws ReasonedError `ImageInvalid` when there are too many layers, their number differs from the number of digests, or a layer has the
 * wrong type or is too large.
 */
export function checkLayers({ layers }: Manifest, config: DiskConfig): void {
  const digests = config.rootfs.diff_ids.length;
  if (layers.length > LAYER_LIMIT) {
    throw invalid(`it has ${layers.length} layers, more than the allowed ${LAYER_LIMIT}`);
  }
  if (layers.length !== digests) {
    throw invalid(`it has ${layers.length} layers, but digests for ${digests} layers`);
  }
  const limit = compressedLimit(config['dev.berth.disk'].chunkSize);
  for (const [index, { mediaType, size }] of layers.entries()) {
    if (mediaType !== CHUNK_TYPE) {
      throw invalid(`layer ${index} has the media type ${printable(mediaType)} instead of ${CHUNK_TYPE}`);
    }
    if (size > limit) {
      throw invalid(`layer ${index} has ${size} bytes, more than the allowed ${limit}`);
    }
  }
}

export function invalid(what: string): ReasonedError {
  return new ReasonedError('ImageInvalid', `The disk artifact cannot be used: ${what}`);
}
