/** One layer of a container image, and the disk in it. */
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

/** How much is decoded at a time; hashing it takes less than a millisecond. */
const PIECE_BYTES = 1024 * 1024;
/** How much is written at a time. */
const WRITE_BYTES = 1024 * 1024;
/**
 * A small blob may become a large disk, as most of a disk is empty; one that does not become larger than this is nobody's harm.
 * Beyond, no more than so many times itself: compressed desktop systems are at 2 to 30.
 */
const EXPANSION_FREE_BYTES = 8 * 1024 ** 3;
const EXPANSION_LIMIT = 400;
/** How many entries a layer may have. Disks come with a handful; each takes some 30 µs, and almost no room when packed. */
const ENTRIES_LIMIT = 200_000;
/** Names that one image takes away from below /disk: there is one file to take away. */
const HIDDEN_LIMIT = 64;

const WHITEOUT = '.wh.';
const OPAQUE = '.wh..wh..opq';

export interface Layer {
  /** Bytes of the blob. */
  size: number;
  encoding: LayerEncoding;
  /** `sha256:<hex>` of the archive when it is not compressed; unknown where the image does not say it. */
  diffId: string | undefined;
}

/** The files of lower layers that the layers above hide. */
export interface Covering {
  /** Names directly below /disk that are taken away. */
  hidden: Set<string>;
  /** Nothing of the layers below is seen. */
  opaque: boolean;
}

/**
 * Writes the only file below /disk of a layer to `disk`, sparse; false when it has none that the layers above let through.
 * Adds to `covering` what this layer takes away.
 *
 * @throws ReasonedError
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
  /** Names that this layer hides in the layers below it. */
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
    // Before it is decoded, which takes its time.
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

  /** Whether the disk is in this layer; what it hides is now hidden. */
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

/** A compressed file would be taken for a raw disk. */
async function refuseCompressed(path: string): Promise<void> {
  const compression = await compressionOf(path);
  if (compression !== undefined) {
    throw invalid(`the file in /disk is compressed (${compression}); it must be a qcow2 or raw disk`);
  }
}

function tooLarge(limit: number): string {
  return `it expands to more than ${limit} bytes, which its compressed size does not warrant`;
}

/** The decoders' own errors; others (a full disk) are not the image's fault. */
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
