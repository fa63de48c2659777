/**
 * Reads executables of macOS (Mach-O, 64 bits), and signs them without an identity ("ad hoc"), as linkers do. A Mac with an ARM processor runs no
 * program without a signature. Such a signature proves only that the file is whole, and needs no program of Apple.
 */
import { createHash } from 'node:crypto';

const MAGIC = 0xfeedfacf;
const HEADER_BYTES = 32;
/** Positions in the header: number of load commands, and their size in bytes. */
const HEADER = { count: 16, bytes: 20 };

const SEGMENT = 0x19;
const CODE_SIGNATURE = 0x1d;
/** Names of load commands, by number. Others are shown as numbers. */
const COMMANDS: Readonly<Record<number, string>> = {
  0x2: 'LC_SYMTAB',
  0xb: 'LC_DYSYMTAB',
  0xc: 'LC_LOAD_DYLIB',
  0xe: 'LC_LOAD_DYLINKER',
  [SEGMENT]: 'LC_SEGMENT_64',
  0x1b: 'LC_UUID',
  [CODE_SIGNATURE]: 'LC_CODE_SIGNATURE',
  0x26: 'LC_FUNCTION_STARTS',
  0x29: 'LC_DATA_IN_CODE',
  0x2a: 'LC_SOURCE_VERSION',
  0x32: 'LC_BUILD_VERSION',
  0x80000022: 'LC_DYLD_INFO_ONLY',
  0x80000028: 'LC_MAIN',
  0x80000033: 'LC_DYLD_EXPORTS_TRIE',
  0x80000034: 'LC_DYLD_CHAINED_FIXUPS',
};

export interface LoadCommand {
  readonly name: string;
  /** Position in the file, and size, in bytes. */
  readonly offset: number;
  readonly bytes: number;
}

/** Returns the load commands of an executable. @throws Error when the file is no executable for macOS. */
export function readLoadCommands(file: Buffer): LoadCommand[] {
  if (file.length < HEADER_BYTES || file.readUInt32LE(0) !== MAGIC) {
    throw new Error('the file is no 64-bit executable of macOS');
  }
  const found: LoadCommand[] = [];
  let offset = HEADER_BYTES;
  for (let left = file.readUInt32LE(HEADER.count); left > 0; left -= 1) {
    const [number, bytes] = [file.readUInt32LE(offset), file.readUInt32LE(offset + 4)];
    found.push({ name: COMMANDS[number] ?? `0x${number.toString(16)}`, offset, bytes });
    offset += bytes;
  }
  return found;
}

export interface MachOSegment {
  readonly name: string;
  /** Position of its load command in the file. */
  readonly command: number;
  readonly fileOffset: number;
  readonly fileBytes: number;
  readonly sections: readonly { readonly name: string; readonly fileOffset: number }[];
}

/** Positions in the load command of a segment. */
const FIELDS = { name: 8, memoryBytes: 32, fileOffset: 40, fileBytes: 48, sections: 64, firstSection: 72 };
const SECTION_BYTES = 80;
const SECTION_OFFSET = 48;
const NAME_BYTES = 16;

/** Returns the segments of an executable with their sections. */
export function readSegments(file: Buffer): MachOSegment[] {
  const text = (at: number): string => file.toString('latin1', at, at + NAME_BYTES).replace(/\0.*$/s, '');
  return readLoadCommands(file)
    .filter(({ name }) => name === COMMANDS[SEGMENT])
    .map(({ offset }) => ({
      name: text(offset + FIELDS.name),
      command: offset,
      fileOffset: Number(file.readBigUInt64LE(offset + FIELDS.fileOffset)),
      fileBytes: Number(file.readBigUInt64LE(offset + FIELDS.fileBytes)),
      sections: Array.from({ length: file.readUInt32LE(offset + FIELDS.sections) }, (_, index) => {
        const at = offset + FIELDS.firstSection + index * SECTION_BYTES;
        return { name: text(at), fileOffset: file.readUInt32LE(at + SECTION_OFFSET) };
      }),
    }));
}

/** Returns the libraries that the system loads with the executable. */
export function readLibraries(file: Buffer): string[] {
  return readLoadCommands(file)
    .filter(({ name }) => name === 'LC_LOAD_DYLIB')
    .map(({ offset, bytes }) => {
      const at = offset + file.readUInt32LE(offset + 8);
      return file.toString('utf8', at, offset + bytes).replace(/\0.*$/s, '');
    });
}

/** Magic numbers of a signature and of its part with the hashes. */
const SIGNATURE_MAGIC = 0xfade0cc0;
const DIRECTORY_MAGIC = 0xfade0c02;
const DIRECTORY_VERSION = 0x20400;
/** The signature has no identity, and is from a linker. Signing tools replace such a signature without a question. */
const AD_HOC_OF_LINKER = 0x20002;
/** Size of the head of a signature with one part, and of the head of this part. */
const SIGNATURE_HEAD_BYTES = 20;
const DIRECTORY_HEAD_BYTES = 88;
const HASH_BYTES = 32;
const SHA256 = 2;
/** Each hash covers 2^12 bytes. */
const PAGE_POWER = 12;
const PAGE_BYTES = 2 ** PAGE_POWER;
const MAIN_EXECUTABLE = 1n;
const SIGNATURE_ALIGNMENT = 16;
/** Size of a page of memory of Apple silicon. */
const MEMORY_PAGE_BYTES = 0x4000;
const SIGNATURE_COMMAND_BYTES = 16;

/**
 * Returns the executable with a signature in place of the one that it has. `identifier` is the name of the program in the signature.
 *
 * @throws Error when the file is no executable for macOS, or has no room for the load command.
 */
export function signAdHoc(file: Buffer, identifier: string): Buffer {
  const segments = readSegments(file);
  const [code, links] = ['__TEXT', '__LINKEDIT'].map((name) => segments.find((one) => one.name === name));
  if (code === undefined || links === undefined) {
    throw new Error('the executable has no segments __TEXT and __LINKEDIT');
  }
  const earlier = readLoadCommands(file).find(({ name }) => name === COMMANDS[CODE_SIGNATURE]);
  const codeBytes =
    earlier === undefined ? align(file.length, SIGNATURE_ALIGNMENT) : file.readUInt32LE(earlier.offset + 8);
  const signatureBytes =
    SIGNATURE_HEAD_BYTES +
    DIRECTORY_HEAD_BYTES +
    identifier.length +
    1 +
    Math.ceil(codeBytes / PAGE_BYTES) * HASH_BYTES;
  const signed = Buffer.alloc(codeBytes + signatureBytes);
  file.copy(signed, 0, 0, codeBytes);
  const command = earlier?.offset ?? addSignatureCommand(signed, segments);
  signed.writeUInt32LE(codeBytes, command + 8);
  signed.writeUInt32LE(signatureBytes, command + 12);
  const linkBytes = signed.length - links.fileOffset;
  signed.writeBigUInt64LE(BigInt(linkBytes), links.command + FIELDS.fileBytes);
  const memoryBytes = BigInt(align(linkBytes, MEMORY_PAGE_BYTES));
  signed.writeBigUInt64LE(memoryBytes, links.command + FIELDS.memoryBytes);
  // The hashes cover the load commands, so they come last.
  writeSignature(signed, codeBytes, { identifier, code });
  return signed;
}

/** Adds a load command for the signature to the header. Returns its position. */
function addSignatureCommand(file: Buffer, segments: readonly MachOSegment[]): number {
  const bytes = file.readUInt32LE(HEADER.bytes);
  const at = HEADER_BYTES + bytes;
  const contents = segments.flatMap(({ sections }) => sections.map(({ fileOffset }) => fileOffset));
  if (at + SIGNATURE_COMMAND_BYTES > Math.min(...contents.filter((offset) => offset > 0))) {
    throw new Error('the executable has no room for the load command of a signature');
  }
  file.writeUInt32LE(CODE_SIGNATURE, at);
  file.writeUInt32LE(SIGNATURE_COMMAND_BYTES, at + 4);
  file.writeUInt32LE(file.readUInt32LE(HEADER.count) + 1, HEADER.count);
  file.writeUInt32LE(bytes + SIGNATURE_COMMAND_BYTES, HEADER.bytes);
  return at;
}

interface Signed {
  readonly identifier: string;
  readonly code: MachOSegment;
}

/** Writes the signature of the first `codeBytes` bytes behind them. Signatures are big-endian. */
function writeSignature(file: Buffer, codeBytes: number, { identifier, code }: Signed): void {
  const directory = codeBytes + SIGNATURE_HEAD_BYTES;
  const hashes = DIRECTORY_HEAD_BYTES + identifier.length + 1;
  const pages = Math.ceil(codeBytes / PAGE_BYTES);
  const head = [SIGNATURE_MAGIC, file.length - codeBytes, 1, 0, SIGNATURE_HEAD_BYTES];
  const about = [
    DIRECTORY_MAGIC,
    file.length - directory,
    DIRECTORY_VERSION,
    AD_HOC_OF_LINKER,
    hashes,
    DIRECTORY_HEAD_BYTES,
    0,
    pages,
    codeBytes,
  ];
  const after = [...head, ...about].reduce((at, word) => file.writeUInt32BE(word, at), codeBytes);
  file.set([HASH_BYTES, SHA256, 0, PAGE_POWER], after);
  const executable = directory + DIRECTORY_HEAD_BYTES - 3 * 8;
  [BigInt(code.fileOffset), BigInt(code.fileBytes), MAIN_EXECUTABLE].reduce(
    (at, word) => file.writeBigUInt64BE(word, at),
    executable,
  );
  file.write(identifier, directory + DIRECTORY_HEAD_BYTES, 'latin1');
  for (let page = 0; page < pages; page += 1) {
    const end = Math.min(codeBytes, (page + 1) * PAGE_BYTES);
    const hash = createHash('sha256')
      .update(file.subarray(page * PAGE_BYTES, end))
      .digest();
    hash.copy(file, directory + hashes + page * HASH_BYTES);
  }
}

function align(bytes: number, unit: number): number {
  return Math.ceil(bytes / unit) * unit;
}

export interface Signature {
  readonly identifier: string;
  readonly flags: number;
  readonly pages: number;
  /** Numbers of the pages whose hash is wrong. */
  readonly damaged: readonly number[];
}

/** Reads the signature of an executable, and compares its hashes with the file. @throws Error when it has no signature of this form. */
export function readSignature(file: Buffer): Signature {
  const command = readLoadCommands(file).find(({ name }) => name === COMMANDS[CODE_SIGNATURE]);
  const at = command === undefined ? file.length : file.readUInt32LE(command.offset + 8);
  if (command === undefined || file.readUInt32BE(at) !== SIGNATURE_MAGIC) {
    throw new Error('the executable has no signature');
  }
  const directory = at + file.readUInt32BE(at + 16);
  const word = (index: number): number => file.readUInt32BE(directory + 4 * index);
  const [hashes, pages, limit] = [directory + word(4), word(7), word(8)];
  const name = directory + word(5);
  const damaged = Array.from({ length: pages }, (_, page) => page).filter((page) => {
    const end = Math.min(limit, (page + 1) * PAGE_BYTES);
    const hash = createHash('sha256')
      .update(file.subarray(page * PAGE_BYTES, end))
      .digest();
    const wanted = hashes + page * HASH_BYTES;
    return !hash.equals(file.subarray(wanted, wanted + HASH_BYTES));
  });
  return { identifier: file.toString('latin1', name, file.indexOf(0, name)), flags: word(3), pages, damaged };
}
