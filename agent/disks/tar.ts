/** Reads untrusted tar archives (ustar, GNU and PAX) as a stream, with the checks that safe extraction needs. */
import { ByteReader } from '../../base/bytereader.ts';
import { DiskError } from './disk.ts';

const BLOCK_BYTES = 512;
/**
 * Largest number of entries in the archive of a layer. Layers with disks have only a few entries. Without the limit, a small hostile layer
 * could keep the agent busy for a long time: a compressed entry takes almost no space, but the agent needs about 30 µs to read it.
 */
export const ENTRIES_LIMIT = 200_000;
/**
 * Largest number of headers in an archive. A header with attributes of an entry costs as much time as the entry itself. An entry rarely has
 * more than one header with attributes.
 */
const HEADERS_LIMIT = 2 * ENTRIES_LIMIT;
/** Size limit, in bytes, of one long name or of the PAX attributes of one entry. In real archives, neither is longer than a path. */
const EXTENSION_LIMIT_BYTES = 64 * 1024;
/** Largest number of PAX attributes in one header. Real headers have fewer than 20, and a hostile one could have 16,000. */
const ATTRIBUTES_LIMIT = 128;

type EntryType = 'file' | 'folder' | 'link' | 'device' | 'sparse' | 'other';

export interface TarEntry {
  /** Path without `./` at the start and without `/` at the end. The path is never absolute and never contains `..`. */
  path: string;
  type: EntryType;
  size: number;
  /**
   * Yields the content of the entry. When the caller asks for the next entry, the reader skips the bytes of this entry that the caller has
   * not read.
   */
  content(): AsyncGenerator<Buffer, void, undefined>;
}

/** Attributes of an entry. PAX and GNU archives store these attributes in a separate entry before the entry itself. */
interface Extension {
  path?: string;
  size?: number;
  sparse?: boolean;
}

const TYPES: Record<string, EntryType> = {
  '0': 'file',
  '\0': 'file',
  '7': 'file',
  '5': 'folder',
  '1': 'link',
  '2': 'link',
  '3': 'device',
  '4': 'device',
  '6': 'device',
  S: 'sparse',
};

/**
 * Yields the entries of an archive. Reads `source` to its end, even after the last entry, so that the caller can hash all bytes.
 *
 * @throws DiskError when the archive is broken or has too many headers, or when the path of an entry is absolute or contains `..`.
 */
export async function* readTar(source: AsyncIterable<Buffer>): AsyncGenerator<TarEntry, void, undefined> {
  const reader = new ByteReader(source);
  let extension: Extension = {};
  let headers = 0;
  for (;;) {
    const block = await reader.read(BLOCK_BYTES);
    if (block.length < BLOCK_BYTES) {
      throw invalid('it is cut off');
    }
    if (isEnd(block)) {
      break;
    }
    headers += 1;
    if (headers > HEADERS_LIMIT) {
      throw invalid(`it has more than ${HEADERS_LIMIT} headers`);
    }
    const header = parseHeader(block);
    if (EXTENSIONS.has(header.type)) {
      Object.assign(extension, await readExtension(reader, header));
      continue;
    }
    const { path, type, size } = describe(header, extension);
    extension = {};
    const content = new Content(reader, size);
    yield { path, type, size, content: () => content.bytes() };
    await content.pass();
  }
  await reader.drain();
}

function describe(header: Header, extension: Extension): Omit<TarEntry, 'content'> {
  const path = safePath(extension.path ?? header.path);
  const type = extension.sparse === true ? 'sparse' : (TYPES[header.type] ?? 'other');
  // Links, folders and devices have no content, even if their header contains a size.
  const empty = type === 'link' || type === 'folder' || type === 'device';
  return { path, type, size: empty ? 0 : (extension.size ?? header.size) };
}

class Content {
  readonly #reader: ByteReader;
  readonly #padding: number;
  #left: number;

  constructor(reader: ByteReader, length: number) {
    this.#reader = reader;
    this.#left = length;
    this.#padding = (BLOCK_BYTES - (length % BLOCK_BYTES)) % BLOCK_BYTES;
  }

  async *bytes(): AsyncGenerator<Buffer, void, undefined> {
    while (this.#left > 0) {
      const bytes = await this.#reader.some(this.#left);
      if (bytes.length === 0) {
        throw invalid(`it is cut off, and ${this.#left} bytes of a file are missing`);
      }
      this.#left -= bytes.length;
      yield bytes;
    }
  }

  async pass(): Promise<void> {
    for await (const _bytes of this.bytes()) {
      // These bytes are dropped, because the caller did not read them.
    }
    const padding = await this.#reader.read(this.#padding);
    if (padding.length < this.#padding) {
      throw invalid('it is cut off');
    }
  }
}

interface Header {
  path: string;
  size: number;
  type: string;
}

/**
 * Types of entries that contain attributes of other entries. `x` contains PAX attributes of the next entry, and `g` contains PAX
 * attributes of all entries. The GNU types `L` and `K` contain the long name and the long link target of the next entry.
 */
const EXTENSIONS = new Set(['x', 'g', 'L', 'K']);

function parseHeader(block: Buffer): Header {
  if (checksum(block) !== number(block.subarray(148, 156))) {
    throw invalid('a header has a wrong checksum');
  }
  const name = text(block.subarray(0, 100));
  const ustar = block.toString('latin1', 257, 263) === 'ustar\0';
  const prefix = ustar ? text(block.subarray(345, 500)) : '';
  const type = block.toString('latin1', 156, 157);
  return { path: prefix === '' ? name : `${prefix}/${name}`, size: number(block.subarray(124, 136)), type };
}

function isEnd(block: Buffer): boolean {
  return block.every((byte) => byte === 0);
}

/** Computes the checksum of a header, which is the sum of its bytes. Each of the 8 bytes of the checksum field counts as a space. */
function checksum(block: Buffer): number {
  let sum = 8 * 0x20;
  for (const [at, byte] of block.entries()) {
    if (at < 148 || at >= 156) {
      sum += byte;
    }
  }
  return sum;
}

/** Parses a number in a header: octal digits or, if the first bit is set, a big-endian number after the first byte. */
function number(field: Buffer): number {
  if (((field[0] ?? 0) & 0x80) === 0) {
    const digits = text(field).trim();
    if (!/^[0-7]*$/.test(digits)) {
      throw invalid('a number in a header is not octal');
    }
    return digits === '' ? 0 : Number.parseInt(digits, 8);
  }
  const value = field.subarray(1).reduce((sum, byte) => sum * 256 + byte, 0);
  if (field[0] !== 0x80 || !Number.isSafeInteger(value)) {
    throw invalid('a number in a header is out of range');
  }
  return value;
}

function text(field: Buffer): string {
  const end = field.indexOf(0);
  return field.toString('utf8', 0, end < 0 ? field.length : end);
}

async function readExtension(reader: ByteReader, { type, size }: Header): Promise<Extension> {
  if (size > EXTENSION_LIMIT_BYTES) {
    throw invalid(`a name or attribute has ${size} bytes, more than the allowed ${EXTENSION_LIMIT_BYTES}`);
  }
  const padded = Math.ceil(size / BLOCK_BYTES) * BLOCK_BYTES;
  const bytes = await reader.read(padded);
  if (bytes.length < padded) {
    throw invalid('it is cut off');
  }
  const content = bytes.subarray(0, size);
  if (type === 'L') {
    return { path: text(content) };
  }
  if (type === 'K') {
    return {};
  }
  const extension = paxExtension(content);
  // Attributes in an entry of type `g` apply to all entries. No name or size is accepted there, because these differ for each entry.
  if (type === 'g' && Object.keys(extension).length > 0) {
    throw invalid('a global header (type g) sets a name or a size');
  }
  return extension;
}

/** Parses PAX attributes: records of the form `length key=value\n`. `length` counts all bytes of the record, including its own digits. */
function paxExtension(content: Buffer): Extension {
  const extension: Extension = {};
  let attributes = 0;
  for (let at = 0; at < content.length; ) {
    attributes += 1;
    if (attributes > ATTRIBUTES_LIMIT) {
      throw invalid(`a header has more than ${ATTRIBUTES_LIMIT} PAX attributes`);
    }
    const space = content.indexOf(0x20, at);
    const length = Number(content.toString('latin1', at, space));
    const end = at + length;
    if (space < 0 || !Number.isInteger(length) || end <= space + 1 || end > content.length) {
      throw invalid('its PAX attributes cannot be read');
    }
    const record = content.toString('utf8', space + 1, end - 1);
    const equals = record.indexOf('=');
    Object.assign(extension, paxAttribute(record.slice(0, equals), record.slice(equals + 1)));
    at = end;
  }
  return extension;
}

function paxAttribute(key: string, value: string): Extension {
  if (key === 'path') {
    return { path: value };
  }
  if (key.startsWith('GNU.sparse.')) {
    return { sparse: true };
  }
  if (key !== 'size') {
    return {};
  }
  const size = Number(value);
  if (!/^\d+$/.test(value) || !Number.isSafeInteger(size)) {
    throw invalid('a size in its PAX attributes is invalid');
  }
  return { size };
}

function safePath(path: string): string {
  if (path.includes('\0')) {
    throw invalid('the name of an entry contains a NUL byte');
  }
  if (path.startsWith('/')) {
    throw invalid(`the name of an entry is absolute (${shown(path)})`);
  }
  const parts = path.split('/').filter((part) => part !== '' && part !== '.');
  if (parts.includes('..')) {
    throw invalid(`the name of an entry leads out of its folder (${shown(path)})`);
  }
  return parts.join('/');
}

/** Quotes an untrusted name for a message, and cuts the name after 200 characters. */
export function shown(path: string): string {
  return JSON.stringify(path.slice(0, 200));
}

function invalid(what: string): DiskError {
  return new DiskError('invalid', `The layer is not a usable tar archive: ${what}`);
}
