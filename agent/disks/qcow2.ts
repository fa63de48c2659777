/**
 * Checks the header of a qcow2 file before any program of QEMU reads the file. Refuses invalid values, names of other files, and
 * features that a plain disk does not need. The format is in QEMU's docs/interop/qcow2.txt.
 */
import type { FileHandle } from 'node:fs/promises';
import { DISK_LIMIT_BYTES, SECTOR_BYTES } from './disk.ts';

/** Magic number at the start of the file, "QFI\xfb". */
const MAGIC = 0x514649fb;
/** Length of the header in version 2 of the qcow2 format. */
const SHORT_HEADER_BYTES = 72;
/** Shortest length of the header in version 3 of the qcow2 format. QEMU itself writes longer headers, of 112 bytes. */
const LONG_HEADER_BYTES = 104;
const COMPRESSION_TYPE_AT = 104;
/** Exponents of the smallest and the largest cluster size that QEMU reads: 2^9 (512 bytes) and 2^21 (2 MiB). */
const CLUSTER_BITS = { least: 9, most: 21 };
const TABLE_ENTRY_BYTES = 8;
/**
 * Largest accepted sizes of the L1 table and of the refcount table, in bytes. QEMU has the same limits (QCOW_MAX_L1_SIZE,
 * QCOW_MAX_REFTABLE_SIZE), because it reads both whole tables into memory.
 */
const L1_LIMIT_BYTES = 32 * 1024 ** 2;
const REFCOUNT_TABLE_LIMIT_BYTES = 8 * 1024 ** 2;
const LARGEST_REFCOUNT_ORDER = 6;
/** A message shows at most this number of bytes of the name of a backing file. */
const NAME_LIMIT_BYTES = 1023;

const INCOMPATIBLE = { dirty: 1n, corrupt: 2n, dataFile: 4n, compression: 8n, extendedL2: 16n };
const KNOWN_INCOMPATIBLE = INCOMPATIBLE.dirty | INCOMPATIBLE.compression | INCOMPATIBLE.extendedL2;

const EXTENSION = { end: 0, dataFile: 0x44415441, encryption: 0x0537be77 };
const EXTENSION_HEADER_BYTES = 8;

/**
 * Result of the check of a header: the size of the disk in bytes as the header states it, or the reason for a refusal. The reason completes
 * a sentence that begins with "The qcow2 image".
 */
export type Qcow2Verdict = { virtualSizeBytes: number } | { refusal: string };

export interface Qcow2Rules {
  /**
   * True if the check accepts a header that names a backing file. If so, the caller must ensure that all programs that read the disk ignore
   * this name.
   */
  backingIgnored?: boolean;
}

/** Reads and checks only the header of a qcow2 file. The function does not open the files that the header names. */
export async function readQcow2(file: FileHandle, rules: Qcow2Rules = {}): Promise<Qcow2Verdict> {
  const { size } = await file.stat();
  const { buffer, bytesRead } = await file.read(Buffer.alloc(2 ** CLUSTER_BITS.most), 0, undefined, 0);
  return judgeQcow2(buffer.subarray(0, bytesRead), size, rules);
}

/**
 * Checks the header of a qcow2 file. `head` is the beginning of the file: at least its first cluster, or the whole file if the file is
 * shorter. `fileBytes` is the length of the file in bytes.
 */
export function judgeQcow2(head: Buffer, fileBytes: number, rules: Qcow2Rules = {}): Qcow2Verdict {
  if (head.length < SHORT_HEADER_BYTES) {
    return { refusal: 'ends within its header' };
  }
  const header = fieldsOf(head);
  const refusal =
    refusalOfForm(head, header) ??
    refusalOfNames(head, header, rules) ??
    refusalOfTables(header, fileBytes) ??
    refusalOfExtensions(head, header);
  return refusal === undefined ? { virtualSizeBytes: Number(header.size) } : { refusal };
}

type Header = ReturnType<typeof fieldsOf>;

function fieldsOf(head: Buffer) {
  const version = head.readUInt32BE(4);
  const isLong = version === 3 && head.length >= LONG_HEADER_BYTES;
  return {
    magic: head.readUInt32BE(0),
    version,
    isLong,
    backingOffset: head.readBigUInt64BE(8),
    backingSize: head.readUInt32BE(16),
    clusterBits: head.readUInt32BE(20),
    size: head.readBigUInt64BE(24),
    encryption: head.readUInt32BE(32),
    l1Entries: head.readUInt32BE(36),
    l1Offset: head.readBigUInt64BE(40),
    refcountOffset: head.readBigUInt64BE(48),
    refcountClusters: head.readUInt32BE(56),
    snapshots: head.readUInt32BE(60),
    incompatible: isLong ? head.readBigUInt64BE(72) : 0n,
    refcountOrder: isLong ? head.readUInt32BE(96) : 4,
    length: isLong ? head.readUInt32BE(100) : SHORT_HEADER_BYTES,
  };
}

/** Returns the text of the first refusal whose condition is true, or undefined if all conditions are false. */
function firstOf(refusals: readonly [boolean, string][]): string | undefined {
  return refusals.find(([holds]) => holds)?.[1];
}

function refusalOfForm(head: Buffer, header: Header): string | undefined {
  const { clusterBits, length } = header;
  const hasType = header.isLong && length > COMPRESSION_TYPE_AT && head.length > COMPRESSION_TYPE_AT;
  const compression = hasType ? head.readUInt8(COMPRESSION_TYPE_AT) : 0;
  const expected = (header.incompatible & INCOMPATIBLE.compression) === 0n ? 0 : 1;
  return firstOf([
    [header.magic !== MAGIC, 'does not begin with the magic number of qcow2'],
    [header.version !== 2 && header.version !== 3, `has version ${header.version} instead of 2 or 3`],
    [header.version === 3 && !header.isLong, 'ends within its header'],
    [
      clusterBits < CLUSTER_BITS.least || clusterBits > CLUSTER_BITS.most,
      `claims clusters of 2^${clusterBits} bytes; 2^${CLUSTER_BITS.least} to 2^${CLUSTER_BITS.most} are allowed`,
    ],
    [header.isLong && length < LONG_HEADER_BYTES, `claims an invalid header length of ${length} bytes`],
    [length > 2 ** clusterBits || length % 8 !== 0, `claims an invalid header length of ${length} bytes`],
    [
      header.refcountOrder > LARGEST_REFCOUNT_ORDER,
      `claims reference counts of 2^${header.refcountOrder} bits; at most 2^${LARGEST_REFCOUNT_ORDER} are allowed`,
    ],
    [
      compression !== expected,
      `claims compression type ${compression}, but its features require type ${expected}`,
    ],
  ]);
}

/**
 * Refuses a header that names another file to read (a backing file or a data file). Also refuses a header that shows encryption, snapshots,
 * corruption or unknown features.
 */
function refusalOfNames(head: Buffer, header: Header, { backingIgnored }: Qcow2Rules): string | undefined {
  const { incompatible } = header;
  const names = header.backingOffset !== 0n || header.backingSize !== 0;
  const unknown = incompatible & ~(KNOWN_INCOMPATIBLE | INCOMPATIBLE.dataFile | INCOMPATIBLE.corrupt);
  return firstOf([
    [names && backingIgnored !== true, `names a backing file (${backingName(head, header)})`],
    [(incompatible & INCOMPATIBLE.dataFile) !== 0n, 'names a data file'],
    [header.encryption !== 0, 'is encrypted'],
    [header.snapshots !== 0, 'contains snapshots'],
    [(incompatible & INCOMPATIBLE.corrupt) !== 0n, 'is marked as corrupt'],
    [unknown !== 0n, `needs unknown features (0x${unknown.toString(16)})`],
  ]);
}

function backingName(head: Buffer, { backingOffset, backingSize }: Header): string {
  const start = Number(backingOffset);
  return head.toString('utf8', start, start + Math.min(backingSize, NAME_LIMIT_BYTES));
}

function refusalOfTables(header: Header, fileBytes: number): string | undefined {
  const cluster = 2n ** BigInt(header.clusterBits);
  const l1Bytes = header.l1Entries * TABLE_ENTRY_BYTES;
  const refcountBytes = BigInt(header.refcountClusters) * cluster;
  const isWithin = (offset: bigint, bytes: bigint): boolean =>
    offset % cluster === 0n && offset + bytes <= BigInt(fileBytes);
  return firstOf([
    [
      header.size === 0n ||
        header.size > BigInt(DISK_LIMIT_BYTES) ||
        header.size % BigInt(SECTOR_BYTES) !== 0n,
      `claims a size of ${header.size} bytes, which is too large or not a positive multiple of ${SECTOR_BYTES}`,
    ],
    [
      l1Bytes > L1_LIMIT_BYTES,
      `claims ${header.l1Entries} entries in its L1 table, which is more than QEMU reads`,
    ],
    [
      !isWithin(header.l1Offset, BigInt(l1Bytes)),
      'claims an L1 table that reaches beyond the end of the file',
    ],
    [
      refcountBytes > BigInt(REFCOUNT_TABLE_LIMIT_BYTES),
      `claims ${header.refcountClusters} clusters of reference counts, which is more than QEMU reads`,
    ],
    [
      !isWithin(header.refcountOffset, refcountBytes),
      'has a table of reference counts that reaches beyond the end of the file',
    ],
  ]);
}

/**
 * Checks the header extensions. If the header names a backing file, the extensions end before this name. Otherwise they end at the end of
 * the first cluster.
 */
function refusalOfExtensions(
  head: Buffer,
  { length, clusterBits, backingOffset }: Header,
): string | undefined {
  const cluster = 2 ** clusterBits;
  const end = backingOffset === 0n ? cluster : Number(backingOffset);
  const limit = Math.min(end, cluster, head.length);
  for (let at = length; at + EXTENSION_HEADER_BYTES <= limit; ) {
    const type = head.readUInt32BE(at);
    const bytes = head.readUInt32BE(at + 4);
    const refusal = firstOf([
      [type === EXTENSION.dataFile, 'names a data file'],
      [type === EXTENSION.encryption, 'is encrypted'],
      [
        type !== EXTENSION.end && at + EXTENSION_HEADER_BYTES + bytes > limit,
        'has a header extension that reaches beyond the end of the header',
      ],
    ]);
    if (refusal !== undefined || type === EXTENSION.end) {
      return refusal;
    }
    at += EXTENSION_HEADER_BYTES + Math.ceil(bytes / 8) * 8;
  }
  return undefined;
}
