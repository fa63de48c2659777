/**
 * Pulls disks from container images. In one of its layers, such an image has one file (qcow2 or raw) directly below /disk.
 *
 * The agent reads the layers from the uppermost layer down. The first layer with a file directly below /disk provides the disk, and this
 * file must be the only one there. The agent does not fetch the layers below this layer. A layer can contain a marker that hides files of
 * lower layers: a whiteout of one file or of /disk, or a marker that makes /disk opaque. The agent ignores hidden files.
 */
import { open, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { createHash } from 'node:crypto';
import { Readable } from 'node:stream';
import * as z from 'zod';
import { ReasonedError } from '../../../api/v1alpha1/reasons.ts';
import { decode, tooLarge, unpackedLimit } from '../../disks/unpack.ts';
import type { Repository } from '../oci/repository.ts';
import { type Descriptor, printable, readDocument } from '../oci/manifests.ts';
import { fetchBlob } from './blob.ts';
import {
  asReasonedError,
  checkArchitecture,
  type PlanPull,
  type PullOptions,
  type PullTarget,
} from './pull.ts';
import { type Journal, makeDisk, unfinished } from './journal.ts';
import type { JsonLimits } from '../../../base/json.ts';
import { DirectFile, gathered } from '../../disks/diskio.ts';
import { type SparseFile, writeSparse } from '../../disks/sparse.ts';
import { ENTRIES_LIMIT, readTar, shown, type TarEntry } from '../../disks/tar.ts';

const LAYER_TYPES: Record<string, LayerEncoding> = {
  'application/vnd.oci.image.layer.v1.tar': 'none',
  'application/vnd.oci.image.layer.v1.tar+gzip': 'gzip',
  'application/vnd.oci.image.layer.v1.tar+zstd': 'zstd',
  'application/vnd.docker.image.rootfs.diff.tar': 'none',
  'application/vnd.docker.image.rootfs.diff.tar.gzip': 'gzip',
  'application/vnd.docker.image.rootfs.diff.tar.zstd': 'zstd',
};
const CONFIG_TYPES = new Set([
  'application/vnd.oci.image.config.v1+json',
  'application/vnd.docker.container.image.v1+json',
]);
/** Limits of an image configuration. Even the configurations of very large images have only a few dozen KiB. */
const CONFIG_LIMITS: JsonLimits = { bytes: 1024 * 1024, items: 8_192 };
/**
 * Largest accepted number of layers of an image. The limit exists because each layer costs requests and time. Ordinary images are not
 * affected, because programs that build container images allow fewer layers.
 */
const LAYER_LIMIT = 128;

/**
 * Fields of the image configuration that Berth uses. Missing or malformed fields are read as undefined, because some tools omit
 * them or write them malformed.
 */
const configSchema = z
  .object({
    architecture: z.string().optional().catch(undefined),
    rootfs: z
      .object({ diff_ids: z.array(z.string()) })
      .optional()
      .catch(undefined),
  })
  .optional()
  .catch(undefined);

interface RemoteLayer extends Omit<Layer, 'encoding'> {
  /** Undefined if a layer of this media type cannot be read. */
  encoding: LayerEncoding | undefined;
  descriptor: Descriptor;
}

export const planContainerDisk: PlanPull = async (repository, { manifest, digest, architecture }, signal) => {
  if (!CONFIG_TYPES.has(manifest.config.mediaType) || manifest.layers.length === 0) {
    return undefined;
  }
  const encodings = manifest.layers.map(({ mediaType }) => LAYER_TYPES[mediaType]);
  // A layer of another type does no harm if the disk is in a layer above it. Without any usual layer, this is no container image.
  if (encodings.every((encoding) => encoding === undefined)) {
    return undefined;
  }
  const count = manifest.layers.length;
  if (count > LAYER_LIMIT) {
    throw new ReasonedError(
      'ImageInvalid',
      `${repository.name} has ${count} layers, more than the allowed ${LAYER_LIMIT}`,
    );
  }
  const bytes = await repository.blob(manifest.config, CONFIG_LIMITS.bytes, signal);
  const config = readDocument(configSchema, bytes, CONFIG_LIMITS, 'The configuration of the image');
  checkArchitecture(repository.name, config?.architecture, architecture);
  const diffIds = config?.rootfs?.diff_ids;
  const isComplete = diffIds?.length === count;
  const layers = manifest.layers.map((descriptor, index) => ({
    descriptor,
    encoding: encodings[index],
    // If the number of diff IDs differs from the number of layers, it is unknown which diff ID belongs to which layer. So the agent ignores
    // all diff IDs.
    diffId: isComplete ? diffIds[index] : undefined,
  }));
  const downloadBytes = layers.reduce((sum, { descriptor }) => sum + descriptor.size, 0);
  const largest = Math.max(...layers.map(({ descriptor }) => descriptor.size));
  return {
    downloadBytes,
    roomBytes: downloadBytes + largest,
    run: async (target, options) => {
      try {
        await makeDisk(target, digest, async (journal) => {
          const limitBytes = unpackedLimit(downloadBytes);
          const allowance = { limitBytes, leftBytes: limitBytes };
          await pull(repository, layers, { target, journal, allowance }, options);
        });
        await removeBlobs(target, count);
      } catch (error) {
        // The fetched bytes are not a usable image. They are removed, because every later call that continues with them would also fail.
        if (isLasting(error)) {
          await rm(target.folder, { recursive: true, force: true });
        }
        throw error;
      }
    },
  };
};

async function pull(
  repository: Repository,
  layers: readonly RemoteLayer[],
  { target, journal, allowance }: { target: PullTarget; journal: Journal; allowance: Allowance },
  options: PullOptions,
): Promise<void> {
  const covering: Covering = { hidden: new Set(), opaque: false };
  for (let index = layers.length - 1; index >= 0 && !covering.opaque; index -= 1) {
    const remote = layers[index];
    if (remote === undefined) {
      break;
    }
    const { descriptor, encoding, diffId } = remote;
    if (encoding === undefined) {
      const type = printable(descriptor.mediaType);
      throw new ReasonedError(
        'ImageInvalid',
        `${repository.name} has no disk above its layer ${index}, and layers of the type ${type} cannot be read`,
      );
    }
    const work = { path: blobPath(target, index), journal, name: `layer ${index}` };
    const into = { disk: unfinished(target), covering, allowance };
    const hasDisk = await fetchBlob({ repository, blob: descriptor }, work, options, async (content) => {
      return await extractDisk({ encoding, diffId }, content, into, options.signal);
    });
    if (hasDisk) {
      return;
    }
  }
  throw new ReasonedError(
    'ImageInvalid',
    `${repository.name} has no disk: put one qcow2 or raw file into /disk`,
  );
}

async function removeBlobs(target: PullTarget, count: number): Promise<void> {
  for (let index = 0; index < count; index += 1) {
    await rm(blobPath(target, index), { force: true });
  }
}

function blobPath({ folder }: PullTarget, index: number): string {
  return join(folder, `layer-${index}`);
}

function isLasting(error: unknown): boolean {
  const failure = asReasonedError(error, '');
  return (
    failure instanceof ReasonedError &&
    (failure.reason === 'ImageInvalid' || failure.reason === 'DigestMismatch')
  );
}

type LayerEncoding = 'none' | 'gzip' | 'zstd';

/** Number of bytes that are written at a time. */
const WRITE_BYTES = 1024 * 1024;
/** Largest number of files below /disk that one layer may hide in lower layers. A correct image has only one file below /disk. */
const HIDDEN_LIMIT = 64;

const WHITEOUT = '.wh.';
const OPAQUE = '.wh..wh..opq';

interface Layer {
  encoding: LayerEncoding;
  /** Digest of the uncompressed archive, `sha256:<hex>`. Undefined when the image does not state this digest. */
  diffId: string | undefined;
}

/** Files that upper layers hide in the lower layers. */
interface Covering {
  /** Names of files directly below /disk that upper layers hide. */
  hidden: Set<string>;
  /** True when all files below /disk in the lower layers are hidden. */
  opaque: boolean;
}

/** Largest number of unpacked bytes that all layers of an image may have together. */
interface Allowance {
  readonly limitBytes: number;
  /** Bytes that remain of `limitBytes` for the layers that were not read yet. */
  leftBytes: number;
}

/**
 * Extracts the only file below /disk from a layer, and writes it to the sparse file `disk`. Returns false when the layer has no such file,
 * or when upper layers hide the file. Adds to `covering` the names that this layer hides. Subtracts the unpacked size of the layer from
 * `allowance`.
 *
 * @throws ReasonedError or DiskError when the layer cannot be used.
 */
export async function extractDisk(
  layer: Layer,
  blob: AsyncIterable<Buffer>,
  { disk, covering, allowance }: { disk: string; covering: Covering; allowance: Allowance },
  signal: AbortSignal,
): Promise<boolean> {
  const hash = createHash('sha256');
  const file = await open(disk, 'w+', 0o600);
  let direct: DirectFile | undefined;
  try {
    direct = await DirectFile.open(disk, { count: 1, bytes: WRITE_BYTES });
    const walk = new Walk({ file, fresh: true, direct }, covering, allowance);
    const packed = Readable.from(blob, { objectMode: false });
    const read = async (content: AsyncIterable<Buffer>): Promise<void> => {
      const bytes = measured(content, (piece) => void hash.update(piece), allowance);
      for await (const entry of readTar(bytes)) {
        await walk.entry(entry);
      }
    };
    await decode(layer.encoding, packed, read, signal);
    const diffId = `sha256:${hash.digest('hex')}`;
    if (layer.diffId !== undefined && layer.diffId !== diffId) {
      throw invalid(
        `its content has the digest ${diffId}, but the configuration of the image states ${layer.diffId}`,
      );
    }
    return walk.finish();
  } finally {
    await direct?.close();
    await file.close();
  }
}

async function* measured(
  content: AsyncIterable<Buffer>,
  update: (bytes: Buffer) => void,
  allowance: Allowance,
): AsyncGenerator<Buffer, void, undefined> {
  for await (const bytes of content) {
    allowance.leftBytes -= bytes.length;
    if (allowance.leftBytes < 0) {
      throw tooLarge(allowance.limitBytes);
    }
    update(bytes);
    yield bytes;
  }
}

class Walk {
  readonly #disk: SparseFile;
  readonly #covering: Covering;
  readonly #limitBytes: number;
  /** Names that this layer hides in lower layers. */
  readonly #hides = new Set<string>();
  #opaque = false;
  #entries = 0;
  /** Number of bytes that the remaining entries of the archive may have together. */
  #leftBytes: number;
  #found: string | undefined;

  constructor(disk: SparseFile, covering: Covering, { limitBytes, leftBytes }: Allowance) {
    this.#disk = disk;
    this.#covering = covering;
    this.#limitBytes = limitBytes;
    this.#leftBytes = leftBytes;
  }

  async entry(entry: TarEntry): Promise<void> {
    const { path } = entry;
    this.#entries += 1;
    if (this.#entries > ENTRIES_LIMIT) {
      throw invalid(`it has more than ${ENTRIES_LIMIT} entries`);
    }
    // This check comes before the content of the entry is decoded, because the decoding takes time.
    this.#leftBytes -= entry.size;
    if (this.#leftBytes < 0) {
      throw tooLarge(this.#limitBytes);
    }
    if (path === OPAQUE || path === `${WHITEOUT}disk` || path === `disk/${OPAQUE}`) {
      this.#opaque = true;
    } else if (path === 'disk') {
      if (entry.type !== 'folder') {
        throw invalid('its /disk is not a folder');
      }
    } else if (path.startsWith('disk/')) {
      await this.#below(path.slice('disk/'.length), entry);
    }
  }

  /** Adds to `covering` the names that the layer hides. Returns whether the layer has the disk. */
  finish(): boolean {
    for (const name of this.#hides) {
      this.#covering.hidden.add(name);
    }
    this.#covering.opaque ||= this.#opaque;
    return this.#found !== undefined;
  }

  async #below(name: string, entry: TarEntry): Promise<void> {
    if (name.startsWith(WHITEOUT)) {
      this.#hides.add(name.slice(WHITEOUT.length));
      if (this.#hides.size > HIDDEN_LIMIT) {
        throw invalid(`it hides more than ${HIDDEN_LIMIT} files of other layers`);
      }
      return;
    }
    if (entry.type === 'folder') {
      return;
    }
    if (entry.type === 'sparse') {
      throw invalid(`${shown(name)} in /disk is a sparse tar entry; pack it as a plain file`);
    }
    if (entry.type !== 'file') {
      throw invalid(`${shown(name)} in /disk has the type ${entry.type} instead of file`);
    }
    if (name.includes('/')) {
      throw invalid(`${shown(name)} is in a subfolder of /disk; put it directly into /disk`);
    }
    if (this.#covering.hidden.has(name)) {
      return;
    }
    if (this.#found !== undefined) {
      throw invalid(`/disk has more than one file (${shown(this.#found)} and ${shown(name)})`);
    }
    this.#found = name;
    await this.#write(entry);
  }

  async #write(entry: TarEntry): Promise<void> {
    await this.#disk.file.truncate(entry.size);
    let position = 0;
    const piece = this.#disk.direct?.rooms[0] ?? Buffer.allocUnsafe(WRITE_BYTES);
    for await (const bytes of gathered(entry.content(), piece)) {
      await writeSparse(this.#disk, bytes, position);
      position += bytes.length;
    }
  }
}

function invalid(what: string): ReasonedError {
  return new ReasonedError('ImageInvalid', `The layer with the disk cannot be used: ${what}`);
}
