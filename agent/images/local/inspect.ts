/**
 * Inspects an untrusted disk image: determines its format and size, and refuses an image that cannot be used. It also recognizes files that
 * are surely no disk that Berth can read, for example archives and disks of other hypervisors.
 */
import { type FileHandle, open } from 'node:fs/promises';
import * as z from 'zod';
import type { MachineImageSource } from '../../../api/v1alpha1/source.ts';
import { ReasonedError } from '../../../api/v1alpha1/reasons.ts';
import { readQcow2 } from '../../disks/qcow2.ts';
import { ProgramError, type RunAs } from '../../../base/exec.ts';
import { JsonError, type JsonLimits, parseJson } from '../../../base/json.ts';
import { qcow2Info } from '../../disks/qemuimg.ts';
import { type DiskFormat, SECTOR_BYTES } from '../../disks/disk.ts';

/**
 * Format of an image, as the user specifies it. With `Auto`, the content determines the format. `ISO` is for content that a guest gets as a
 * read-only drive: it is used as it is, but it must not be a file of another format. `IPSW` is for a file from which macOS is installed.
 */
export type ImageFormat = 'Auto' | 'Raw' | 'QCOW2' | 'ISO' | 'IPSW';

/**
 * Magic bytes at the beginning of a qcow2 file, "QFI\xfb". A guest can write these bytes to the beginning of its raw disk. If this disk
 * becomes an image with the format `Auto`, Berth treats it as a qcow2 file. Berth refuses the image if it is not a usable qcow2 file.
 */
const QCOW2_MAGIC = Buffer.from([0x51, 0x46, 0x49, 0xfb]);
const ZIP_MAGIC = Buffer.from('PK\x03\x04', 'latin1');
/** A qcow2 disk in place of an ISO. */
const QCOW2: ForeignFormat = { name: 'a qcow2 disk', advice: 'convert it with qemu-img convert -O raw' };
/** Exit code of qemu-img when it cannot use an image. */
const REFUSED_EXIT_CODE = 1;
/**
 * Signals that end a program because the program itself failed, for example because it read a wrong address. The kernel sends SIGXCPU to a
 * program that reached its limit of CPU time. If one of these signals ends qemu-img, the content of the image is the cause.
 */
const CRASHES: ReadonlySet<string | undefined> = new Set([
  'SIGABRT',
  'SIGTRAP',
  'SIGSEGV',
  'SIGBUS',
  'SIGFPE',
  'SIGXCPU',
]);

/**
 * Output of `qemu-img info`. The schema is a second check: like Berth's own check of the header, it refuses features such as a backing
 * file.
 */
const infoSchema = z.object({
  'virtual-size': z.number(),
  'backing-filename': z.never().optional(),
  'full-backing-filename': z.never().optional(),
  encrypted: z.literal(false).optional(),
  snapshots: z.array(z.unknown()).max(0).optional(),
  'format-specific': z
    .object({
      data: z.object({ 'data-file': z.never().optional(), corrupt: z.literal(false).optional() }).optional(),
    })
    .optional(),
});

interface InspectedImage {
  format: DiskFormat;
  virtualSizeBytes: number;
}

/**
 * Returns the format to expect of a source. `stated` is the format that the user states for the source of an Image. It does not apply to
 * content of the cluster's image storage. The agent stores content of any format there as a qcow2 file, or as an artifact with a raw disk.
 */
export function formatOf({ type }: MachineImageSource, stated: ImageFormat = 'Auto'): ImageFormat {
  return FORMATS[type] ?? stated;
}

/** Formats of content whose source determines them. */
const FORMATS: Readonly<Partial<Record<MachineImageSource['type'], ImageFormat>>> = {
  storedFile: 'QCOW2',
  storedArtifact: 'Raw',
  ipsw: 'IPSW',
};

/**
 * Checks an image and returns its format and virtual size. `expected` is the format that the Image states. If the agent runs as
 * root, programs read the image as the user `reader`.
 *
 * @throws ReasonedError `ImageInvalid` with the cause when the image cannot be used; ProgramError when this host cannot run qemu-img.
 */
export async function inspectImage(
  path: string,
  expected: ImageFormat = 'Auto',
  reader?: RunAs,
): Promise<InspectedImage> {
  const file = await open(path, 'r');
  try {
    const { size } = await file.stat();
    if (expected === 'IPSW') {
      return await readInstaller(file, size);
    }
    const isQcow2 = await isQcow2File(file);
    if (isQcow2 && (expected === 'Auto' || expected === 'QCOW2')) {
      return { format: 'qcow2', virtualSizeBytes: await readVirtualSize({ file, path }, reader) };
    }
    if (expected !== 'Raw') {
      refuseForeign(isQcow2 ? QCOW2 : await readForeignFormat(file, size), expected);
    }
    if (size === 0 || size % SECTOR_BYTES !== 0) {
      throw new ReasonedError(
        'ImageInvalid',
        `The image is neither qcow2 nor a raw disk: its size of ${size} bytes is not a positive multiple of ${SECTOR_BYTES}`,
      );
    }
    return { format: 'raw', virtualSizeBytes: size };
  } finally {
    await file.close();
  }
}

/** Checks that a file can be an IPSW, which is a zip archive. Only the installation itself shows whether the host can use it. */
async function readInstaller(file: FileHandle, size: number): Promise<InspectedImage> {
  const head = await piece(file, 0, ZIP_MAGIC.length);
  if (!head.equals(ZIP_MAGIC)) {
    throw new ReasonedError('ImageInvalid', 'The file is no IPSW: it is not a zip archive');
  }
  return { format: 'raw', virtualSizeBytes: size };
}

async function isQcow2File(file: FileHandle): Promise<boolean> {
  const { length } = QCOW2_MAGIC;
  const { buffer } = await file.read(Buffer.alloc(length), 0, length, 0);
  return buffer.equals(QCOW2_MAGIC);
}

/** Refuses a file that is no qcow2 disk, if it is of a format that Berth does not read or if the user states qcow2. */
function refuseForeign(foreign: ForeignFormat | undefined, expected: 'Auto' | 'QCOW2' | 'ISO'): void {
  if (expected === 'QCOW2') {
    const name = foreign === undefined ? '' : `: it is ${foreign.name}. Instead, ${foreign.advice}`;
    throw new ReasonedError('ImageInvalid', `The image is not a qcow2 file${name}`);
  }
  if (foreign === undefined) {
    return;
  }
  throw new ReasonedError(
    'ImageInvalid',
    expected === 'ISO'
      ? `The file is ${foreign.name}, which is not an ISO: ${foreign.advice}`
      : `The image is ${foreign.name}, but Berth reads only raw and qcow2 disks: ${foreign.advice}. If it is a raw disk, state the format Raw`,
  );
}

/**
 * Returns the virtual size of a qcow2 image in bytes. Berth checks the header first. qemu-img reads the file only if the header passes this
 * check.
 */
async function readVirtualSize(
  { file, path }: { file: FileHandle; path: string },
  reader: RunAs | undefined,
): Promise<number> {
  const verdict = await readQcow2(file);
  if ('refusal' in verdict) {
    throw new ReasonedError('ImageInvalid', `The qcow2 image ${verdict.refusal}`);
  }
  const info = await readInfo({ file, path }, reader);
  if (info['virtual-size'] !== verdict.virtualSizeBytes) {
    throw new ReasonedError(
      'ImageInvalid',
      `The header of the qcow2 image states ${verdict.virtualSizeBytes} bytes, but qemu-img reports ${info['virtual-size']}`,
    );
  }
  return verdict.virtualSizeBytes;
}

/** Limits of the output of `qemu-img info`. A qcow2 image without snapshots and without a backing file has about 30 items. */
const INFO_LIMITS: JsonLimits = { bytes: 64 * 1024, items: 1_024 };

async function readInfo(
  image: { file: FileHandle; path: string },
  reader: RunAs | undefined,
): Promise<z.infer<typeof infoSchema>> {
  try {
    return infoSchema.parse(parseJson(await qcow2Info(image, reader), INFO_LIMITS));
  } catch (error) {
    if (!(isRefusal(error) || error instanceof z.ZodError || error instanceof JsonError)) {
      throw error;
    }
    throw new ReasonedError('ImageInvalid', `The qcow2 image cannot be used: ${error.message}`, {
      cause: error,
    });
  }
}

/**
 * Returns whether the image caused the failure of qemu-img. qemu-img refuses an unusable image. A hostile image can also make qemu-img
 * crash, run forever, or write without end. All other failures are failures of this host. For example, qemu-img is not installed, the host
 * had too little memory and killed it, or the host was too busy to run it.
 */
function isRefusal(error: unknown): error is ProgramError {
  return (
    error instanceof ProgramError &&
    (error.exitCode === REFUSED_EXIT_CODE || error.exceeded === 'output' || CRASHES.has(error.killedBy))
  );
}

/** A file format that Berth does not read. */
interface ForeignFormat {
  /** Name of the format with its article. In a message, it follows "The image is". */
  name: string;
  /** Instruction for the user. */
  advice: string;
}

interface Signature extends ForeignFormat {
  /** Position of the magic bytes from the beginning of the file. A negative position counts from the end of the file. */
  at?: number;
  /** Magic bytes. Each character stands for the byte with its code. */
  magic: string;
}

const UNPACK = 'unpack it and use the disk that it contains';
const CONVERT = 'convert it with qemu-img convert -O qcow2';
const DECRYPT = 'decrypt the disk before its use as an image';
const RESTORE = 'restore the disk with the program that made this file';
const NO_DISK = 'use a disk with this content instead';

/** Length of the head that the checks need, in bytes. The header of a tar entry has 512 bytes. A PE header begins further back. */
const HEAD_BYTES = 4096;
/** Mark of an ISO 9660 file system and its position. The bytes before it are free for boot loaders, and can look like another format. */
const ISO_MARK = Buffer.from('CD001');
const ISO_MARK_AT = 32_769;

/**
 * Magic bytes of formats. Without this list, a file of such a format whose size is a multiple of 512 bytes would count as a raw disk, and its
 * VMs would find no system to boot. No boot sector, partition table or file system with a boot loader begins with such bytes.
 */
const SIGNATURES: readonly Signature[] = [
  { name: 'a VMDK disk', advice: CONVERT, magic: 'KDMV' },
  { name: 'a VMDK disk of ESX', advice: CONVERT, magic: 'COWD' },
  { name: 'a VMDK disk of ESX', advice: CONVERT, magic: '\0\0\0\0\xbe\xba\xfe\xca' },
  {
    name: 'the descriptor of a VMDK disk, without its data',
    advice: 'convert the descriptor together with its data files with qemu-img convert -O qcow2',
    magic: '# Disk DescriptorFile',
  },
  { name: 'a VHDX disk', advice: CONVERT, magic: 'vhdxfile' },
  { name: 'a VHD disk', advice: CONVERT, magic: 'conectix' },
  { name: 'a VHD disk of a fixed size', advice: CONVERT, at: -SECTOR_BYTES, magic: 'conectix' },
  // Virtual PC of before 2004 writes a footer of 511 bytes.
  { name: 'a VHD disk of a fixed size', advice: CONVERT, at: 1 - SECTOR_BYTES, magic: 'conectix' },
  { name: 'a VDI disk', advice: CONVERT, at: 64, magic: '\x7f\x10\xda\xbe' },
  { name: 'a QED disk', advice: CONVERT, magic: 'QED\0' },
  { name: 'a Parallels disk', advice: CONVERT, magic: 'WithoutFreeSpace' },
  { name: 'a Parallels disk', advice: CONVERT, magic: 'WithouFreSpacExt' },
  { name: 'a Bochs disk', advice: CONVERT, magic: 'Bochs Virtual HD Image' },
  { name: 'a cloop disk', advice: CONVERT, magic: '#!/bin/sh\n#V2.0 Format' },
  { name: 'a DMG disk', advice: CONVERT, at: -SECTOR_BYTES, magic: 'koly' },
  { name: 'an encrypted DMG disk', advice: DECRYPT, magic: 'encrcdsa' },
  { name: 'an encrypted DMG disk', advice: DECRYPT, at: -8, magic: 'cdsaencr' },
  { name: 'a sparse disk image of macOS', advice: 'convert it with hdiutil to a raw disk', magic: 'sprs' },
  { name: 'an ASIF disk', advice: 'convert it with diskutil image to a raw disk', magic: 'shdw' },
  { name: 'a disk that is encrypted with LUKS', advice: DECRYPT, magic: 'LUKS\xba\xbe' },
  {
    name: 'a sparse image of Android',
    advice: 'convert it with simg2img to a raw disk',
    magic: ':\xff&\xed',
  },
  { name: 'a boot image of Android', advice: NO_DISK, magic: 'ANDROID!' },
  { name: 'a backup of Proxmox (VMA)', advice: 'unpack it with vma extract', magic: 'VMA\0' },
  { name: 'a backup of Partclone', advice: RESTORE, magic: 'partclone-image' },
  { name: 'a backup of ntfsclone', advice: RESTORE, magic: '\0ntfsclone-image' },
  { name: 'an image of EnCase (EWF)', advice: RESTORE, magic: 'EVF\t\r\n\xff\0' },
  { name: 'a saved state of QEMU', advice: NO_DISK, magic: 'QEVM' },
  { name: 'a CD in raw sectors (BIN)', advice: 'convert it to an ISO', magic: `\0${'\xff'.repeat(10)}\0` },
  { name: 'a compressed CD (CISO)', advice: 'convert it to an ISO', magic: 'CISO' },
  { name: 'a compressed CD (CHD)', advice: 'convert it to an ISO', magic: 'MComprHD' },
  { name: 'a CD of Nero (NRG)', advice: 'convert it to an ISO', at: -12, magic: 'NER5' },
  { name: 'packed with gzip', advice: UNPACK, magic: '\x1f\x8b\b' },
  { name: 'packed with xz', advice: UNPACK, magic: '\xfd7zXZ\0' },
  { name: 'packed with zstd', advice: UNPACK, magic: '(\xb5/\xfd' },
  { name: 'packed with lzip', advice: UNPACK, magic: 'LZIP' },
  { name: 'packed with lzop', advice: UNPACK, magic: '\x89LZO\0\r\n\x1a\n' },
  { name: 'packed with lz4', advice: UNPACK, magic: '\x04"M\x18' },
  { name: 'packed with lz4', advice: UNPACK, magic: '\x02!L\x18' },
  { name: 'packed with lrzip', advice: UNPACK, magic: 'LRZI' },
  { name: 'packed with snappy', advice: UNPACK, magic: '\xff\x06\0\0sNaPpY' },
  { name: 'packed with compress', advice: UNPACK, magic: '\x1f\x9d\x90' },
  { name: 'packed with pbzx', advice: UNPACK, magic: 'pbzx' },
  { name: 'packed with lzfse', advice: UNPACK, magic: 'bvx2' },
  { name: 'packed with lzfse', advice: UNPACK, magic: 'bvx-' },
  { name: 'an Apple archive', advice: UNPACK, magic: 'AA01' },
  { name: 'an Apple archive', advice: UNPACK, magic: 'YAA1' },
  { name: 'a 7z archive', advice: UNPACK, magic: "7z\xbc\xaf'\x1c" },
  { name: 'a zip archive', advice: UNPACK, magic: 'PK\x03\x04' },
  { name: 'a zip archive without files', advice: NO_DISK, magic: 'PK\x05\x06' },
  { name: 'a part of a zip archive', advice: UNPACK, magic: 'PK\x07\x08' },
  { name: 'a rar archive', advice: UNPACK, magic: 'Rar!\x1a\x07' },
  { name: 'a cab archive', advice: UNPACK, magic: 'MSCF\0\0\0\0' },
  {
    name: 'a WIM archive of Windows',
    advice: 'apply it to a disk, or use the ISO of Windows',
    magic: 'MSWIM\0\0\0',
  },
  {
    name: 'a WIM archive of Windows',
    advice: 'apply it to a disk, or use the ISO of Windows',
    magic: 'WLPWM\0\0\0',
  },
  { name: 'an xar archive', advice: UNPACK, magic: 'xar!' },
  { name: 'a cpio archive', advice: UNPACK, magic: '070701' },
  { name: 'a cpio archive', advice: UNPACK, magic: '070702' },
  { name: 'a cpio archive', advice: UNPACK, magic: '070707' },
  { name: 'an ar archive', advice: UNPACK, magic: '!<arch>\n' },
  { name: 'an rpm package', advice: UNPACK, magic: '\xed\xab\xee\xdb' },
  { name: 'a squashfs file system', advice: 'use the disk image of the same system', magic: 'hsqs' },
  { name: 'a program (ELF)', advice: NO_DISK, magic: '\x7fELF' },
  { name: 'a kernel of U-Boot', advice: NO_DISK, magic: "'\x05\x19V" },
  {
    name: 'an XML document, for example an OVF descriptor',
    advice: 'use the disk that belongs to it',
    magic: '<?xml',
  },
];

/** Checks that need more than fixed bytes at a fixed place. */
const CHECKS: readonly (ForeignFormat & { fits: (head: Buffer) => boolean })[] = [
  {
    name: 'a tar archive, for example an OVA',
    advice: 'unpack it, and convert the disk that it contains with qemu-img convert -O qcow2 if necessary',
    fits: isTar,
  },
  { name: 'packed with bzip2', advice: UNPACK, fits: isBzip2 },
  { name: 'packed with lzma', advice: UNPACK, fits: isLzma },
  { name: 'packed with zstd or lz4', advice: UNPACK, fits: isSkippableFrame },
  { name: 'a program for Windows or UEFI (PE)', advice: NO_DISK, fits: isProgram },
  { name: 'a web page (HTML), perhaps an error page of a server', advice: 'check the URL', fits: isWebPage },
];

/** Returns the format of a file of `size` bytes if it is a format that Berth does not read, and undefined otherwise. */
async function readForeignFormat(
  file: Pick<FileHandle, 'read'>,
  size: number,
): Promise<ForeignFormat | undefined> {
  if ((await piece(file, ISO_MARK_AT, ISO_MARK.length)).equals(ISO_MARK)) {
    return undefined;
  }
  const head = await piece(file, 0, HEAD_BYTES);
  const tailAt = Math.max(0, size - SECTOR_BYTES);
  const tail = await piece(file, tailAt, SECTOR_BYTES);
  const found = SIGNATURES.find(({ at = 0, magic }) => {
    const bytes = Buffer.from(magic, 'latin1');
    const place = at < 0 ? size + at - tailAt : at;
    return place >= 0 && (at < 0 ? tail : head).subarray(place, place + bytes.length).equals(bytes);
  });
  return found ?? CHECKS.find(({ fits }) => fits(head));
}

async function piece(file: Pick<FileHandle, 'read'>, at: number, length: number): Promise<Buffer> {
  const { buffer, bytesRead } = await file.read(Buffer.alloc(length), 0, length, at);
  return buffer.subarray(0, bytesRead);
}

/**
 * Returns whether a file begins with the header of a tar entry. The sum of its bytes stands in the header, with spaces in place of the sum
 * itself. Tools of before 1988 write no magic bytes. Some tools add the bytes as signed numbers.
 */
function isTar(head: Buffer): boolean {
  if (head.length < SECTOR_BYTES || head[0] === 0) {
    return false;
  }
  if (head.toString('latin1', 257, 262) === 'ustar') {
    return true;
  }
  const stated = /^ *([0-7]{1,7})[ \0]/.exec(head.toString('latin1', 148, 156))?.[1];
  const header = Buffer.from(head.subarray(0, SECTOR_BYTES)).fill(' ', 148, 156);
  const sum = header.reduce((total, byte) => total + byte, 0);
  const signed = new Int8Array(header).reduce((total, byte) => total + byte, 0);
  return stated !== undefined && [sum, signed].includes(Number.parseInt(stated, 8));
}

/** Returns whether a file is of bzip2. The mark of the first block, or of the end, follows the digit with the size of the blocks. */
function isBzip2(head: Buffer): boolean {
  return (
    /^BZh[1-9]$/.test(head.toString('latin1', 0, 4)) &&
    ['1AY&SY', '\x17rE8P\x90'].includes(head.toString('latin1', 4, 10))
  );
}

/** Returns whether a file begins like the output of the program lzma. Its format has no magic bytes, but few values are usual. */
function isLzma(head: Buffer): boolean {
  return (
    head.length >= 13 &&
    head.subarray(0, 3).equals(Buffer.from([0x5d, 0, 0])) &&
    head.subarray(5, 13).equals(Buffer.alloc(8, 0xff))
  );
}

/** Returns whether a file begins with a frame of metadata, which decoders of zstd and lz4 skip. */
function isSkippableFrame(head: Buffer): boolean {
  return head.length >= 4 && head.readUInt32LE(0) >>> 4 === 0x1_84_d2_a5;
}

/** Returns whether a file is a program for Windows or UEFI. The boot sector of a disk can begin with `MZ` too, but has no header of PE. */
function isProgram(head: Buffer): boolean {
  if (head.length < 64 || head.toString('latin1', 0, 2) !== 'MZ') {
    return false;
  }
  const at = head.readUInt32LE(60);
  return head.subarray(at, at + 4).equals(Buffer.from('PE\0\0'));
}

function isWebPage(head: Buffer): boolean {
  return /^\s*<(!doctype html|html)[\s>]/i.test(head.toString('latin1', 0, 64));
}
