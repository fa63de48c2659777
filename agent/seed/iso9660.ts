/**
 * Writes small ISO 9660 images with Joliet names. The agent does not use a program for this, because no such program exists on all hosts.
 * All files are in the root folder. The same files always give the same bytes.
 */

export interface IsoFile {
  /** Name in ASCII, at most 64 characters. Readers of Joliet show the name unchanged, and other readers show a short form. */
  name: string;
  data: Buffer;
}

const SECTOR = 2048;
/** Number of sectors before the first descriptor. The format reserves these sectors for other systems. */
const SYSTEM_SECTORS = 16;
const PRIMARY = 1;
const SUPPLEMENTARY = 2;
const TERMINATOR = 255;
/** Escape sequence which states that names are in UCS-2, level 3 (Joliet). */
const JOLIET_ESCAPE = '%/E';

/**
 * Number of the first sector of each part of an image, in ascending order. Each path table fits into one sector, because it contains only
 * the root folder.
 */
const SECTORS = {
  tables: SYSTEM_SECTORS + 3,
  jolietTables: SYSTEM_SECTORS + 5,
  root: SYSTEM_SECTORS + 7,
  jolietRoot: SYSTEM_SECTORS + 8,
  files: SYSTEM_SECTORS + 9,
} as const;

/** A file with the number of its first sector. */
interface Placed extends IsoFile {
  sector: number;
}

/**
 * Returns an ISO image with the volume label `label` and these files. @throws RangeError when the entries of all files do not fit into the
 * one sector of the root folder.
 */
export function isoImage(label: string, files: readonly IsoFile[]): Buffer {
  let next: number = SECTORS.files;
  const placed = files.map((file) => {
    const sector = next;
    next += sectorsOf(file.data);
    return { ...file, sector };
  });
  const image = Buffer.alloc(next * SECTOR);
  const put = (sector: number, content: Buffer): void => void content.copy(image, sector * SECTOR);
  put(SYSTEM_SECTORS, descriptor(PRIMARY, label, next));
  put(SYSTEM_SECTORS + 1, descriptor(SUPPLEMENTARY, label, next));
  put(SYSTEM_SECTORS + 2, Buffer.from([TERMINATOR, ...Buffer.from('CD001'), 1]));
  put(SECTORS.tables, pathTable(SECTORS.root, 'little'));
  put(SECTORS.tables + 1, pathTable(SECTORS.root, 'big'));
  put(SECTORS.jolietTables, pathTable(SECTORS.jolietRoot, 'little'));
  put(SECTORS.jolietTables + 1, pathTable(SECTORS.jolietRoot, 'big'));
  put(SECTORS.root, folder(SECTORS.root, placed, plainName));
  put(SECTORS.jolietRoot, folder(SECTORS.jolietRoot, placed, ucs2));
  for (const { sector, data } of placed) {
    put(sector, data);
  }
  return image;
}

/**
 * Returns the number of sectors that a file uses. An empty file also uses one sector. Otherwise the first sector of the last file could be
 * beyond the end of the image, and some readers refuse such an image.
 */
function sectorsOf(data: Buffer): number {
  return Math.max(1, Math.ceil(data.length / SECTOR));
}

/** Shortens a name to the form of ISO 9660 level 1: at most eight letters, digits and underscores, in upper case. */
function plainName(name: string): Buffer {
  const short = name
    .toUpperCase()
    .replaceAll(/[^A-Z0-9]/g, '_')
    .slice(0, 8);
  return Buffer.from(`${short}.;1`, 'ascii');
}

/** Returns text in UCS-2 with the high byte first, as Joliet requires. */
function ucs2(text: string): Buffer {
  return Buffer.from(text, 'utf16le').swap16();
}

/** Returns the volume descriptor for readers of Joliet (`SUPPLEMENTARY`), or for readers that do not know Joliet (`PRIMARY`). */
function descriptor(type: typeof PRIMARY | typeof SUPPLEMENTARY, label: string, sectors: number): Buffer {
  const isJoliet = type === SUPPLEMENTARY;
  const sector = Buffer.alloc(SECTOR);
  sector.writeUInt8(type, 0);
  sector.write('CD001', 1, 'ascii');
  sector.writeUInt8(1, 6);
  putTexts(sector, label, isJoliet ? ucs2 : (text) => Buffer.from(text, 'ascii'));
  bothEndian32(sectors).copy(sector, 80);
  if (isJoliet) {
    sector.write(JOLIET_ESCAPE, 88, 'ascii');
  }
  bothEndian16(1).copy(sector, 120);
  bothEndian16(1).copy(sector, 124);
  bothEndian16(SECTOR).copy(sector, 128);
  putFolder(
    sector,
    isJoliet ? SECTORS.jolietTables : SECTORS.tables,
    isJoliet ? SECTORS.jolietRoot : SECTORS.root,
  );
  sector.writeUInt8(1, 881);
  return sector;
}

/** Writes the label into a volume descriptor. All other texts (names of the system, the publisher and some files) become spaces. */
function putTexts(sector: Buffer, label: string, encoded: (text: string) => Buffer): void {
  for (const [from, to] of [
    [8, 72],
    [190, 813],
  ] as const) {
    sector.fill(encoded(' '), from, to);
  }
  encoded(label).copy(sector, 40);
  // A descriptor has four dates of 17 bytes each. 16 digits `0` and the time zone 0 mean that a date is not stated.
  for (const at of [813, 830, 847, 864]) {
    sector.fill('0', at, at + 16, 'ascii');
  }
}

/** Writes the positions of the path tables and of the root folder into a descriptor. `tables` and `root` are sector numbers. */
function putFolder(sector: Buffer, tables: number, root: number): void {
  bothEndian32(pathTable(root, 'little').length).copy(sector, 132);
  sector.writeUInt32LE(tables, 140);
  sector.writeUInt32BE(tables + 1, 148);
  record({ name: Buffer.from([0]), sector: root, bytes: SECTOR, isFolder: true }).copy(sector, 156);
}

/** Returns a path table that contains only the root folder, which begins at the sector `root`. */
function pathTable(root: number, order: 'little' | 'big'): Buffer {
  const table = Buffer.alloc(10);
  table.writeUInt8(1, 0);
  if (order === 'little') {
    table.writeUInt32LE(root, 2);
    table.writeUInt16LE(1, 6);
  } else {
    table.writeUInt32BE(root, 2);
    table.writeUInt16BE(1, 6);
  }
  return table;
}

function folder(sector: number, files: readonly Placed[], nameOf: (name: string) => Buffer): Buffer {
  const own = { sector, bytes: SECTOR, isFolder: true };
  const entries = files
    .map((file) => ({
      name: nameOf(file.name),
      sector: file.sector,
      bytes: file.data.length,
      isFolder: false,
    }))
    .toSorted((a, b) => Buffer.compare(a.name, b.name));
  const content = Buffer.concat([
    record({ ...own, name: Buffer.from([0]) }),
    record({ ...own, name: Buffer.from([1]) }),
    ...entries.map(record),
  ]);
  if (content.length > SECTOR) {
    throw new RangeError(`${files.length} files do not fit into one folder`);
  }
  return content;
}

interface Entry {
  name: Buffer;
  sector: number;
  bytes: number;
  isFolder: boolean;
}

function record({ name, sector, bytes, isFolder }: Entry): Buffer {
  const length = 33 + name.length;
  const entry = Buffer.alloc(length + (length % 2));
  entry.writeUInt8(entry.length, 0);
  bothEndian32(sector).copy(entry, 2);
  bothEndian32(bytes).copy(entry, 10);
  // Each entry has the first moment of the year 2000 as its date. The date cannot stay 0, because some readers refuse the month 0.
  entry.set([100, 1, 1, 0, 0, 0, 0], 18);
  entry.writeUInt8(isFolder ? 2 : 0, 25);
  bothEndian16(1).copy(entry, 28);
  entry.writeUInt8(name.length, 32);
  name.copy(entry, 33);
  return entry;
}

/** Returns a number twice, as the format requires: first in little-endian, then in big-endian byte order. */
function bothEndian32(value: number): Buffer {
  const both = Buffer.alloc(8);
  both.writeUInt32LE(value, 0);
  both.writeUInt32BE(value, 4);
  return both;
}

function bothEndian16(value: number): Buffer {
  const both = Buffer.alloc(4);
  both.writeUInt16LE(value, 0);
  both.writeUInt16BE(value, 2);
  return both;
}
