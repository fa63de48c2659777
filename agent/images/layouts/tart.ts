/**
 * Pulls VM images that Tart published. The disk is cut into layers. Each of these layers is one LZ4 stream, and its annotations contain the
 * size and the digest of its uncompressed content. Two other layers contain the configuration and the NVRAM of the machine. The pull saves
 * the configuration as `config.json` and the NVRAM as `nvram.bin`.
 */
import { createHash } from 'node:crypto';
import { constants, open, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { setImmediate as nextCycle } from 'node:timers/promises';
import * as z from 'zod';
import type { Repository } from '../oci/repository.ts';
import { type Descriptor, type Manifest, optionalText, printable, readDocument } from '../oci/manifests.ts';
import { saveBlob } from './blob.ts';
import { copyLocal, type RemoteChunk, writeChunkTable } from './chunks.ts';
import { checkDigest, checkArchitecture, type PlanPull, type PullOptions, type PullTarget } from './pull.ts';
import { type Journal, makeDisk, unfinished } from './journal.ts';
import { isSha256 } from '../../../api/v1alpha1/reference.ts';
import { ReasonedError } from '../../../api/v1alpha1/reasons.ts';
import { DISK_LIMIT_BYTES, DiskError, SECTOR_BYTES, TART_FILES } from '../../disks/disk.ts';
import { AppleLz4Decoder } from '../../disks/lz4.ts';
import { inParallel } from '../../../base/concurrency.ts';
import type { JsonLimits } from '../../../base/json.ts';
import { type SparseFile, writeSparse } from '../../disks/sparse.ts';

const TYPE = 'application/vnd.cirruslabs.tart.';
/** Types of the layers: the configuration of the machine, a piece of the disk, and the variables of the firmware. */
export const TART_TYPES = {
  config: `${TYPE}config.v1`,
  disk: `${TYPE}disk.v2`,
  variables: `${TYPE}nvram.v1`,
} as const;
const { config: CONFIG_TYPE, disk: DISK_TYPE, variables: NVRAM_TYPE } = TART_TYPES;
const OLD_DISK_TYPE = `${TYPE}disk.v1`;
const NOTE = 'org.cirruslabs.tart.';
/** Annotations of layers and manifest, and the label of the configuration. */
export const TART_NOTES = {
  size: `${NOTE}uncompressed-size`,
  digest: `${NOTE}uncompressed-content-digest`,
  diskSize: `${NOTE}uncompressed-disk-size`,
  uploadTime: `${NOTE}upload-time`,
  format: `${NOTE}disk.format`,
} as const;
const { size: SIZE, digest: DIGEST, diskSize: DISK_SIZE } = TART_NOTES;
/** The only format of a disk that Berth reads and writes. */
export const DISK_FORMAT = 'raw';

/**
 * Number of layers that are fetched at the same time. Tart uses the same number. For each of these layers, the decoder needs memory for a
 * window of 64 KiB and a piece of 1 MiB.
 */
const LAYERS_AT_ONCE = 4;
/** Limits of a machine's configuration. It has a few dozen fields. */
const CONFIG_LIMITS: JsonLimits = { bytes: 1024 * 1024, items: 8_192 };
/** Size limit of the NVRAM in bytes. Apple's machines have an NVRAM of about 33 MiB. */
const NVRAM_LIMIT_BYTES = 256 * 1024 * 1024;

/** Fields of the configuration that Berth uses. Old versions of Tart ran only arm64 and did not write `arch`, so arm64 is the default. */
const configSchema = z.object({
  arch: optionalText.transform((arch) => arch ?? 'arm64'),
  diskFormat: optionalText,
});

export const planTart: PlanPull = async (repository, { manifest, digest, architecture }, signal) => {
  if (!manifest.layers.some(({ mediaType }) => mediaType.startsWith(TYPE))) {
    return undefined;
  }
  const { config, nvram, layers, size } = partsOf(manifest);
  const configBytes = await repository.blob(config, CONFIG_LIMITS.bytes, signal);
  // The check of the architecture uses the configuration that Tart stores in a layer. The manifest names another configuration in its field
  // `config`. That other configuration is useless here, because Tart always writes arm64 into it.
  checkArchitecture(repository.name, readConfig(configBytes).arch, architecture);
  const diskBytes = layers.reduce((sum, layer) => sum + layer.size, 0);
  return {
    downloadBytes: diskBytes + nvram.size,
    roomBytes: size + nvram.size + config.size,
    run: async (target, options) => {
      await makeDisk(target, digest, async (journal) => {
        await writeFile(join(target.folder, TART_FILES.config), configBytes, { mode: 0o600, flush: true });
        await saveBlob({ repository, blob: nvram }, join(target.folder, TART_FILES.variables), options);
        await pullDisk({ repository, layers, size }, { target, journal }, options);
        await writeChunkTable(target, layers);
      });
    },
  };
};

function partsOf(manifest: Manifest): {
  config: Descriptor;
  nvram: Descriptor;
  layers: RemoteChunk[];
  size: number;
} {
  const layers: RemoteChunk[] = [];
  let offset = 0;
  for (const descriptor of manifest.layers) {
    if (descriptor.mediaType === OLD_DISK_TYPE) {
      throw invalid(
        `its disk has the old layout ${OLD_DISK_TYPE}; push the image again with a newer version of tart`,
      );
    }
    if (descriptor.mediaType !== DISK_TYPE) {
      continue;
    }
    const layer = diskLayer(descriptor, layers.length, offset);
    layers.push(layer);
    offset += layer.length;
  }
  const [config, nvram] = [onlyLayer(manifest, CONFIG_TYPE), onlyLayer(manifest, NVRAM_TYPE)];
  if (nvram.size > NVRAM_LIMIT_BYTES) {
    throw invalid(`its NVRAM has ${nvram.size} bytes, more than the allowed ${NVRAM_LIMIT_BYTES}`);
  }
  checkSize(offset, manifest.annotations?.[DISK_SIZE]);
  return { config, nvram, layers, size: offset };
}

function onlyLayer({ layers }: Manifest, type: string): Descriptor {
  const found = layers.filter(({ mediaType }) => mediaType === type);
  if (found.length !== 1 || found[0] === undefined) {
    throw invalid(`it has ${found.length} layers of type ${type} instead of one`);
  }
  return found[0];
}

function diskLayer(descriptor: Descriptor, index: number, offset: number): RemoteChunk {
  const { annotations = {}, digest, size } = descriptor;
  const { [SIZE]: unpacked = '', [DIGEST]: rawDigest = '' } = annotations;
  const length = Number(unpacked);
  if (!/^\d+$/.test(unpacked) || !Number.isSafeInteger(length) || length === 0) {
    throw invalid(`a layer of its disk lacks a valid annotation ${SIZE}`);
  }
  if (!isSha256(rawDigest)) {
    throw invalid(`a layer of its disk lacks a valid annotation ${DIGEST}`);
  }
  return { index, offset, length, rawDigest, digest, size };
}

function checkSize(size: number, said: string | undefined): void {
  if (said !== undefined && said !== String(size)) {
    throw invalid(`its manifest states a disk of ${printable(said)} bytes, but its layers have ${size}`);
  }
  if (size === 0 || size % SECTOR_BYTES !== 0 || size > DISK_LIMIT_BYTES) {
    throw invalid(
      `its disk has ${size} bytes, which is too large or not a positive multiple of ${SECTOR_BYTES}`,
    );
  }
}

function readConfig(bytes: Buffer): z.infer<typeof configSchema> {
  const config = readDocument(configSchema, bytes, CONFIG_LIMITS, 'The configuration of the Tart image');
  if (config.diskFormat !== undefined && config.diskFormat !== DISK_FORMAT) {
    throw invalid(`its disk has the format ${printable(config.diskFormat)}; only raw disks can be read`);
  }
  return config;
}

interface Disk {
  repository: Repository;
  layers: readonly RemoteChunk[];
  size: number;
}

async function pullDisk(
  { repository, layers, size }: Disk,
  { target, journal }: { target: PullTarget; journal: Journal },
  options: PullOptions,
): Promise<void> {
  const file = await open(unfinished(target), constants.O_RDWR | constants.O_CREAT, 0o600);
  try {
    await file.truncate(size);
    await inParallel(layers, LAYERS_AT_ONCE, options.signal, async (layer, signal) => {
      const name = String(layer.index);
      if (journal.has(name)) {
        options.onSpared?.(layer.size);
      } else {
        await pullLayer(repository, layer, { file, fresh: journal.fresh }, { ...options, signal });
        await journal.add(name, file);
      }
    });
  } finally {
    await file.close();
  }
}

async function pullLayer(
  repository: Repository,
  layer: RemoteChunk,
  disk: SparseFile,
  options: PullOptions,
): Promise<void> {
  const local = options.lookup?.(layer);
  const to = { ...disk, position: layer.offset };
  if (local !== undefined && (await copyLocal(local, layer, to, options.signal))) {
    options.onSpared?.(layer.size);
    return;
  }
  const fresh = disk.fresh && local === undefined;
  await decodeLayer(repository, layer, { file: disk.file, fresh }, options);
}

async function decodeLayer(
  repository: Repository,
  layer: RemoteChunk,
  disk: SparseFile,
  { signal, onBytes }: PullOptions,
): Promise<void> {
  const compressed = createHash('sha256');
  const decoding = new LayerDecoding(disk, layer.offset, layer.length);
  let broken: DiskError | undefined;
  for await (const bytes of repository.stream(layer, { start: 0, end: layer.size }, signal)) {
    compressed.update(bytes);
    onBytes(bytes.length);
    // If bytes cannot be decoded, the registry might have sent wrong bytes. Only the digest of the whole layer shows this. So the loop
    // reads the layer to its end, and the error is thrown after the check of the digest.
    if (broken !== undefined) {
      continue;
    }
    try {
      await decoding.push(bytes);
    } catch (error) {
      if (!(error instanceof DiskError)) {
        throw error;
      }
      broken = error;
    }
  }
  checkDigest({ repository, blob: layer }, compressed);
  if (broken !== undefined) {
    throw broken;
  }
  const found = await decoding.end();
  if (found !== layer.rawDigest) {
    throw new ReasonedError(
      'DigestMismatch',
      `The content of a layer of ${repository.name} has the digest ${found} instead of ${layer.rawDigest}`,
    );
  }
}

class LayerDecoding {
  readonly #disk: SparseFile;
  readonly #decoder: AppleLz4Decoder;
  readonly #hash = createHash('sha256');
  #position: number;

  constructor(disk: SparseFile, offset: number, length: number) {
    this.#disk = disk;
    this.#decoder = new AppleLz4Decoder(length);
    this.#position = offset;
  }

  async push(bytes: Buffer): Promise<void> {
    for (const piece of this.#decoder.push(bytes)) {
      await this.#take(piece);
    }
  }

  /** Writes the last bytes of the layer, and returns the digest of the decoded content. */
  async end(): Promise<string> {
    await this.#take(this.#decoder.end());
    return `sha256:${this.#hash.digest('hex')}`;
  }

  async #take(piece: Buffer): Promise<void> {
    this.#hash.update(piece);
    await writeSparse(this.#disk, piece, this.#position);
    this.#position += piece.length;
    // This pause lets other work run. Often, zeros need not be written, so a layer with many zeros can be decoded without any wait for the
    // disk. Without the pause, the decoding of such a layer would block all other work.
    await nextCycle();
  }
}

function invalid(what: string): ReasonedError {
  return new ReasonedError('ImageInvalid', `The Tart image cannot be used: ${what}`);
}
