/** A disk for tests of copies: the guest image, a file system for what the guest writes, and enough data to take a second. */

import { execFile } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { open, stat } from 'node:fs/promises';
import { promisify } from 'node:util';
import type { BaseImage } from '../../agent/images/local/types.ts';

const execute = promisify(execFile);

const MEBIBYTE = 1024 * 1024;
const SECTOR_BYTES = 512;
/** Behind the guest image. */
const DATA_OFFSET_BYTES = 64 * MEBIBYTE;
const DATA_BYTES = 64 * MEBIBYTE;
const NOISE_OFFSET_BYTES = DATA_OFFSET_BYTES + DATA_BYTES;
const NOISE_PIECE_BYTES = 16 * MEBIBYTE;
const NOISE_PIECES = 12;
export const COPY_DISK_BYTES = 1024 * MEBIBYTE;
/** What is not a hole, in the image and in every copy. */
export const COPY_DATA_LIMIT_BYTES = 350 * MEBIBYTE;
/** Second entry of a DOS partition table. */
const PARTITION_OFFSET_BYTES = 446 + 16;
const LINUX_PARTITION = 0x83;
/** Where the guest keeps its record (`init.sh`). */
const RECORD_OFFSET_BYTES = 60 * MEBIBYTE;

/** At `path`, raw. */
export async function makeCopyDisk(guest: string, path: string): Promise<BaseImage> {
  await execute('qemu-img', ['convert', '-f', 'qcow2', '-O', 'raw', guest, path]);
  const disk = await open(path, 'r+');
  try {
    const entry = Buffer.alloc(16);
    entry[4] = LINUX_PARTITION;
    entry.writeUInt32LE(DATA_OFFSET_BYTES / SECTOR_BYTES, 8);
    entry.writeUInt32LE(DATA_BYTES / SECTOR_BYTES, 12);
    await disk.write(entry, 0, entry.length, PARTITION_OFFSET_BYTES);
    await disk.truncate(COPY_DISK_BYTES);
    const noise = randomBytes(NOISE_PIECE_BYTES);
    for (let piece = 0; piece < NOISE_PIECES; piece += 1) {
      await disk.write(noise, 0, noise.length, NOISE_OFFSET_BYTES + piece * NOISE_PIECE_BYTES);
    }
  } finally {
    await disk.close();
  }
  const size = `${DATA_BYTES / 1024}k`;
  await execute('mkfs.ext4', ['-q', '-F', '-E', `offset=${DATA_OFFSET_BYTES}`, path, size]);
  return { path, digest: 'sha256:unused', format: 'raw', virtualSizeBytes: COPY_DISK_BYTES };
}

/** The guest's marker, as the disk has it. */
export async function markerOn(path: string): Promise<string | undefined> {
  const disk = await open(path, 'r');
  try {
    const { buffer } = await disk.read(Buffer.alloc(SECTOR_BYTES), 0, SECTOR_BYTES, RECORD_OFFSET_BYTES);
    return buffer.toString('latin1').split(':')[2];
  } finally {
    await disk.close();
  }
}

/** Whether the data's file system needs no repair, and nothing is left in its journal. */
export async function isClean(path: string): Promise<boolean> {
  const { stdout } = await execute('dumpe2fs', ['-h', `${path}?offset=${DATA_OFFSET_BYTES}`]);
  if (stdout.includes('needs_recovery')) {
    return false;
  }
  await execute('e2fsck', ['-f', '-n', `${path}?offset=${DATA_OFFSET_BYTES}`]);
  return true;
}

export async function bytesOnDisk(path: string): Promise<number> {
  return (await stat(path)).blocks * SECTOR_BYTES;
}
