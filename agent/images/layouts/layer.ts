/** Extracts the disk from a layer of a container image. */
import { createHash } from 'node:crypto';
import { open } from 'node:fs/promises';
import { Readable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { createGunzip } from 'node:zlib';
import { ReasonedError } from '../../../api/v1alpha1/reasons.ts';
import { codeOf } from '../../../base/errors.ts';
import { DirectFile } from '../../disks/diskio.ts';
import { type SparseFile, writeSparse } from '../../disks/sparse.ts';
import { readTar, shown, type TarEntry } from '../../disks/tar.ts';
import { compressionOf } from '../../disks/unpack.ts';
import { zstdDecoder, ZstdFrames } from '../../disks/zstdframes.ts';

export type LayerEncoding = 'none' | 'gzip' | 'zstd';

/** Bytes that are decoded at a time. Hashing them takes less than a millisecond. */
const PIECE_BYTES = 1024 * 1024;
/** Bytes that are written at a time. */
const WRITE_BYTES = 1024 * 1024;
/**
 * Limits of the size that a layer may expand to. Most of a disk is empty, so a small blob may become a large disk. Every layer
 * may expand to 8 GiB, because this does no harm. Beyond that, a layer may expand to 400 times its blob. Compressed desktop
 * systems expand 2 to 30 times.
 */
const EXPANSION_FREE_BYTES = 8 * 1024 ** 3;
const EXPANSION_LIMIT = 400;
/**
 * Limit of the entries of a layer. Layers with disks have a handful of entries. Reading an entry takes some 30 µs, and an
 * entry takes almost no room when compressed.
 */
const ENTRIES_LIMIT = 200_000;
/** Limit of the names below /disk that one layer may hide. An image has only one file there to hide. */
const HIDDEN_LIMIT = 64;

const WHITEOUT = '.wh.';
const OPAQUE = '.wh..wh..opq';

export interface Layer {
  /** Size of the blob in bytes. */
  size: number;
  encoding: LayerEncoding;
  /** Digest of the uncompressed archive, `sha256:<hex>`; undefined when the image does not state it. */
  diffId: string | undefined;
}

/** Files of lower layers that the upper layers hide. */
export interface Covering {
  /** Names directly below /disk that are hidden. */
  hidden: Set<string>;
  /** True when all files of the lower layers are hidden. */
  opaque: boolean;
}

/**
 * Writes the only file below /disk of a layer to the sparse file `disk`. Adds the names that this layer hides to `covering`.
 * Returns false when the layer has no such file, or the upper layers hide it.
 *
 * @throws ReasonedError or DiskError when the layer cannot be used.
 */
export async function extractDisk(
  layer: Layer,
  blob: AsyncIterable<Buffer>,
  { disk, covering }: { disk: string; covering: Covering },
  signal: AbortSignal,
): Promise<boolean> {
  const limit = Math.max(EXPANSION_FREE_BYTES, EXPANSION_LIMIT * layer.size);
  const hash = createHash('sha256');
  const file = await open(disk, 'w+', 0o600);
  let direct: DirectFile | undefined;
  try {
    direct = await DirectFile.open(disk, { count: 1, bytes: WRITE_BYTES });
    const walk = new Walk({ file, fresh: true, direct }, covering, limit);
    await decoded(blob, layer.encoding, signal, async (content) => {
      const bytes = measured(content, (piece) => void hash.update(piece), limit);
      for await (const entry of readTar(bytes)) {
        await walk.entry(entry);
      }
    });
    const diffId = `sha256:${hash.digest('hex')}`;
    if (layer.diffId !== undefined && layer.diffId !== diffId) {
      throw invalid(`its content is ${diffId}, and ${layer.diffId} for the image's configuration`);
    }
    await refuseCompressed(disk);
    return walk.finish();
  } catch (error) {
    throw asInvalid(error, layer.encoding);
  } finally {
    await direct?.close();
    await file.close();
  }
}

async function decoded(
  blob: AsyncIterable<Buffer>,
  encoding: LayerEncoding,
  signal: AbortSignal,
  read: (content: AsyncIterable<Buffer>) => Promise<void>,
): Promise<void> {
  const source = Readable.from(blob, { objectMode: false });
  if (encoding === 'none') {
    await pipeline(source, read, { signal });
  } else if (encoding === 'gzip') {
    await pipeline(source, createGunzip({ chunkSize: PIECE_BYTES }), read, { signal });
  } else {
    await pipeline(source, new ZstdFrames(), zstdDecoder(PIECE_BYTES), read, {
      signal,
    });
  }
}

async function* measured(
  content: AsyncIterable<Buffer>,
  update: (bytes: Buffer) => void,
  limit: number,
): AsyncGenerator<Buffer, void, undefined> {
  let length = 0;
  for await (const bytes of content) {
    length += bytes.length;
    if (length > limit) {
      throw invalid(tooLarge(limit));
    }
    update(bytes);
    yield bytes;
  }
}

class Walk {
  readonly #disk: SparseFile;
  readonly #covering: Covering;
  readonly #limit: number;
  /** Names that this layer hides in lower layers. */
  readonly #hides = new Set<string>();
  #opaque = false;
  #entries = 0;
  #length = 0;
  #found: string | undefined;

  constructor(disk: SparseFile, covering: Covering, limit: number) {
    this.#disk = disk;
    this.#covering = covering;
    this.#limit = limit;
  }

  async entry(entry: TarEntry): Promise<void> {
    const { path } = entry;
    this.#entries += 1;
    if (this.#entries > ENTRIES_LIMIT) {
      throw invalid(`it has more than ${ENTRIES_LIMIT} entries`);
    }
    // This check comes before the content is decoded, because decoding takes time.
    this.#length += entry.size;
    if (this.#length > this.#limit) {
      throw invalid(tooLarge(this.#limit));
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

  /** Returns whether this layer has the disk. Adds the names that the layer hides to `covering`. */
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
        throw invalid(`it takes more than ${HIDDEN_LIMIT} files away`);
      }
      return;
    }
    if (entry.type === 'folder') {
      return;
    }
    if (entry.type === 'sparse') {
      throw invalid(`/disk/${shown(name)} is a sparse entry, which is not read`);
    }
    if (entry.type !== 'file') {
      throw invalid(`/disk/${shown(name)} is a ${entry.type}, not a file`);
    }
    if (name.includes('/')) {
      throw invalid(`${shown(name)} lies deeper than /disk`);
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
    const room = this.#disk.direct?.rooms[0] ?? Buffer.allocUnsafe(WRITE_BYTES);
    let position = 0;
    let filled = 0;
    const flush = async (): Promise<void> => {
      await writeSparse(this.#disk, room.subarray(0, filled), position);
      position += filled;
      filled = 0;
    };
    for await (const bytes of entry.content()) {
      for (let at = 0; at < bytes.length; ) {
        const copied = bytes.copy(room, filled, at);
        at += copied;
        filled += copied;
        if (filled === room.length) {
          await flush();
        }
      }
    }
    await flush();
  }
}

/** Refuses a compressed file, because it would be read as a raw disk. */
async function refuseCompressed(path: string): Promise<void> {
  const compression = await compressionOf(path);
  if (compression !== undefined) {
    throw invalid(`the file in /disk is compressed (${compression}); it must be a qcow2 or raw disk`);
  }
}

function tooLarge(limit: number): string {
  return `it expands to more than ${limit} bytes, which its compressed size does not warrant`;
}

/**
 * Returns an error of a decoder as ReasonedError. Returns other errors (a full disk) unchanged, because the image did not
 * cause them.
 */
function asInvalid(error: unknown, encoding: LayerEncoding): unknown {
  const code = codeOf(error) ?? '';
  if (!/^Z(STD)?_/.test(code)) {
    return error;
  }
  return new ReasonedError(
    'ImageInvalid',
    `the ${encoding} content of the layer is broken: ${String(error)}`,
    {
      cause: error,
    },
  );
}

function invalid(what: string): ReasonedError {
  return new ReasonedError('ImageInvalid', `the layer with the disk cannot be used: ${what}`);
}
