/**
 * Berth's own layout of a disk in a registry: the disk is cut into chunks of the same size; each chunk that is not all zeros is
 * a layer, one zstd frame; chunks of the same content are one layer. The configuration is that of an image, so that tools for
 * images can look at it: `rootfs.diff_ids` has the digests of the chunks' content, as it has those of archives elsewhere, and
 * what only a disk has is below a key of its own.
 */
import * as z from 'zod';
import { isSha256 } from '../../../api/v1alpha1/reference.ts';
import { ReasonedError } from '../../../api/v1alpha1/reasons.ts';
import type { Manifest } from '../oci/types.ts';

export const ARTIFACT_TYPE = 'application/vnd.berth.disk.v1';
export const CONFIG_TYPE = 'application/vnd.oci.image.config.v1+json';
export const CHUNK_TYPE = 'application/vnd.berth.disk.chunk.v1+zstd';
export const MANIFEST_TYPE = 'application/vnd.oci.image.manifest.v1+json';

const MIB = 1024 * 1024;
const GIB = 1024 * MIB;
/** Larger ones compress no better, smaller ones make more requests and larger manifests. */
const CHUNK_BYTES = 16 * MIB;
/** Above so much a manifest of such chunks would come near the 4 MiB that registries take. */
const CHUNK_DISK_LIMIT_BYTES = 128 * GIB;
const LARGE_CHUNK_BYTES = 64 * MIB;
/** About 160 bytes each, in a manifest of at most 4 MiB. */
export const LAYER_LIMIT = 20_000;
const DISK_LIMIT_BYTES = 64 * 1024 * GIB;
const SECTOR_BYTES = 512;
/** Chunks that may be in memory, and how many at once where they are small. */
const MEMORY_BYTES = 128 * MIB;
const CHUNKS_AT_ONCE = 4;

const count = z.number().int().nonnegative();
const layoutSchema = z.object({
  version: z.literal(1),
  /** In bytes, as all sizes here. */
  virtualSize: z.number().int().positive().max(DISK_LIMIT_BYTES).multipleOf(SECTOR_BYTES),
  chunkSize: z.number().int().min(SECTOR_BYTES).max(LARGE_CHUNK_BYTES).multipleOf(SECTOR_BYTES),
  /** Index of a chunk on the disk, index of the layer with its content; ascending by chunk. Chunks not named are zeros. */
  map: z.array(z.tuple([count, count])),
});
type DiskLayout = z.infer<typeof layoutSchema>;

export const diskConfigSchema = z.object({
  architecture: z.string(),
  /** The guest's operating system; `unknown` where nobody said it. */
  os: z.string(),
  rootfs: z.object({ type: z.literal('layers'), diff_ids: z.array(z.string().refine(isSha256)) }),
  'dev.berth.disk': layoutSchema,
});
export type DiskConfig = z.infer<typeof diskConfigSchema>;

export function chunkSizeFor(virtualSize: number): number {
  return virtualSize <= CHUNK_DISK_LIMIT_BYTES ? CHUNK_BYTES : LARGE_CHUNK_BYTES;
}

/** How many chunks may be worked on at the same time, that memory stays bounded. */
export function chunksAtOnce(chunkSize: number): number {
  return Math.max(1, Math.min(CHUNKS_AT_ONCE, Math.floor(MEMORY_BYTES / chunkSize)));
}

/** The most that zstd makes of so many bytes (its own bound, rounded up). */
export function compressedLimit(length: number): number {
  return length + Math.ceil(length / 256) + 1024;
}

interface DiskChunk {
  /** On the disk, in chunks. */
  index: number;
  offset: number;
  length: number;
  layer: number;
}

/** Where the chunks that are not zeros lie. @throws ReasonedError `ImageInvalid` for a map that breaks a rule of the layout. */
export function chunksOf({ virtualSize, chunkSize, map }: DiskLayout, layers: number): DiskChunk[] {
  const last = Math.ceil(virtualSize / chunkSize) - 1;
  let before = -1;
  return map.map(([index, layer]) => {
    if (index <= before || index > last) {
      throw invalid(`chunk ${index} is out of order or beyond the disk's end`);
    }
    if (layer >= layers) {
      throw invalid(`chunk ${index} is in layer ${layer}, and there are ${layers}`);
    }
    before = index;
    const offset = index * chunkSize;
    return { index, offset, length: Math.min(chunkSize, virtualSize - offset), layer };
  });
}

/** @throws ReasonedError `ImageInvalid` when a layer is not a chunk, or nothing is said of its content. */
export function checkLayers({ layers }: Manifest, config: DiskConfig): void {
  const digests = config.rootfs.diff_ids.length;
  if (layers.length > LAYER_LIMIT) {
    throw invalid(`it has ${layers.length} layers`);
  }
  if (layers.length !== digests) {
    throw invalid(`it has ${layers.length} layers, and the digests of ${digests}`);
  }
  const limit = compressedLimit(config['dev.berth.disk'].chunkSize);
  for (const [index, { mediaType, size }] of layers.entries()) {
    if (mediaType !== CHUNK_TYPE) {
      throw invalid(`layer ${index} is ${mediaType}, not ${CHUNK_TYPE}`);
    }
    if (size > limit) {
      throw invalid(`layer ${index} has ${size} bytes`);
    }
  }
}

export function invalid(what: string): ReasonedError {
  return new ReasonedError('ImageInvalid', `the disk artifact cannot be used: ${what}`);
}
