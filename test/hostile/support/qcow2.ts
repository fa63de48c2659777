/** qcow2 files, byte by byte: QEMU's own programs refuse to make most of what a stranger may publish. */

const CLUSTER_BITS = 16;
const CLUSTER_BYTES = 2 ** CLUSTER_BITS;
const ENTRY_BYTES = 8;

export const EXTENSION = { backingFormat: 0xe2792aca, dataFile: 0x44415441, encryption: 0x0537be77 };

/** Fields of the header that differ from those of an empty disk of 1 MiB. */
export interface Qcow2Fields {
  version?: number;
  clusterBits?: number;
  size?: bigint;
  encryption?: number;
  l1Entries?: number;
  l1Offset?: bigint;
  refcountOffset?: bigint;
  refcountClusters?: number;
  snapshots?: number;
  snapshotsOffset?: bigint;
  incompatible?: bigint;
  autoclear?: bigint;
  refcountOrder?: number;
  headerLength?: number;
  compression?: number;
  /** Its offset follows from the extensions. */
  backing?: string;
  extensions?: readonly (readonly [type: number, content: Buffer])[];
}

/** A whole file: header, table of reference counts, one block of them, and the first table; without data. */
export function qcow2File(fields: Qcow2Fields = {}): Buffer {
  const file = Buffer.alloc(4 * CLUSTER_BYTES);
  file.write('QFI\xfb', 'latin1');
  file.writeUInt32BE(fields.version ?? 3, 4);
  file.writeUInt32BE(fields.clusterBits ?? CLUSTER_BITS, 20);
  file.writeBigUInt64BE(fields.size ?? 1024n ** 2n, 24);
  file.writeUInt32BE(fields.encryption ?? 0, 32);
  file.writeUInt32BE(fields.l1Entries ?? 1, 36);
  file.writeBigUInt64BE(fields.l1Offset ?? BigInt(3 * CLUSTER_BYTES), 40);
  file.writeBigUInt64BE(fields.refcountOffset ?? BigInt(CLUSTER_BYTES), 48);
  file.writeUInt32BE(fields.refcountClusters ?? 1, 56);
  file.writeUInt32BE(fields.snapshots ?? 0, 60);
  file.writeBigUInt64BE(fields.snapshotsOffset ?? 0n, 64);
  file.writeBigUInt64BE(fields.incompatible ?? 0n, 72);
  file.writeBigUInt64BE(fields.autoclear ?? 0n, 88);
  file.writeUInt32BE(fields.refcountOrder ?? 4, 96);
  file.writeUInt32BE(fields.headerLength ?? 112, 100);
  file.writeUInt8(fields.compression ?? 0, 104);
  const end = writeExtensions(file, fields.extensions ?? []);
  if (fields.backing !== undefined) {
    file.writeBigUInt64BE(BigInt(end), 8);
    file.writeUInt32BE(Buffer.byteLength(fields.backing), 16);
    file.write(fields.backing, end);
  }
  file.writeBigUInt64BE(BigInt(2 * CLUSTER_BYTES), CLUSTER_BYTES);
  // Each of the four clusters is used once.
  for (let cluster = 0; cluster < 4; cluster += 1) {
    file.writeUInt16BE(1, 2 * CLUSTER_BYTES + 2 * cluster);
  }
  return file;
}

/** Where they end. */
function writeExtensions(file: Buffer, extensions: readonly (readonly [number, Buffer])[]): number {
  let at = 112;
  for (const [type, content] of extensions) {
    file.writeUInt32BE(type, at);
    file.writeUInt32BE(content.length, at + 4);
    content.copy(file, at + ENTRY_BYTES);
    at += ENTRY_BYTES + Math.ceil(content.length / 8) * 8;
  }
  return at + ENTRY_BYTES;
}
