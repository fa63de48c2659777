/** Extracts the disk from a layer of a container image. */
import { createHash } from 'node:crypto';
import { open } from 'node:fs/promises';
import { Readable } from 'node:stream';
import { ReasonedError } from '../../../api/v1alpha1/reasons.ts';
import { DirectFile, gathered } from '../../disks/diskio.ts';
import { type SparseFile, writeSparse } from '../../disks/sparse.ts';
import { ENTRIES_LIMIT, readTar, shown, type TarEntry } from '../../disks/tar.ts';
import { decode, tooLarge } from '../../disks/unpack.ts';

export type LayerEncoding = 'none' | 'gzip' | 'zstd';

/** Number of bytes that are written at a time. */
const WRITE_BYTES = 1024 * 1024;
/** Largest number of files below /disk that one layer may hide in lower layers. A correct image has only one file below /disk. */
const HIDDEN_LIMIT = 64;

const WHITEOUT = '.wh.';
const OPAQUE = '.wh..wh..opq';

export interface Layer {
  encoding: LayerEncoding;
  /** Digest of the uncompressed archive, `sha256:<hex>`. Undefined when the image does not state this digest. */
  diffId: string | undefined;
}

/** Files that upper layers hide in the lower layers. */
export interface Covering {
  /** Names of files directly below /disk that upper layers hide. */
  hidden: Set<string>;
  /** True when all files below /disk in the lower layers are hidden. */
  opaque: boolean;
}

/** Largest number of unpacked bytes that all layers of an image may have together. */
export interface Allowance {
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
