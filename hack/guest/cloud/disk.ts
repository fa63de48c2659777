/** The disk of the cloud guest: a boot record, GRUB behind it, and one file system. No loop device and no other machine's loader is needed. */
import { copyFile, mkdir, open, readFile, stat, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { run } from '../run.ts';

const SECTOR_BYTES = 512;
const MEBIBYTE = 1024 * 1024;
/** Start of the file system, where partitioning programs put it. GRUB is in the sectors before it. */
const START_BYTES = MEBIBYTE;
const DISK_BYTES = 1280 * MEBIBYTE;
/** Bytes of a boot record that are code. The table of partitions follows. */
const CODE_BYTES = 440;
const TABLE_BYTE = 446;
const LINUX_PARTITION = 0x83;
const BOOTABLE = 0x80;
/** Time limit of each program. They write a gigabyte. */
const TOOL_TIMEOUT_MILLISECONDS = 300_000;

export interface CloudParts {
  /** Folder of the root file system. Kernel and first file system are added to it. */
  root: string;
  kernel: string;
  initramfs: Buffer;
  /** Folder of GRUB's modules for BIOS. */
  grubModules: string;
}

/** GRUB runs these lines by itself. The kernel's messages go to the screen and to the serial console, which is the last one. */
const GRUB_CONFIGURATION = [
  'set root=(hd0,msdos1)',
  'linux /boot/kernel root=LABEL=root rw console=tty0 console=ttyS0',
  'initrd /boot/initramfs',
  'boot',
  '',
].join('\n');

/** Writes the raw disk to `disk`. */
export async function makeCloudDisk(parts: CloudParts, work: string, disk: string): Promise<void> {
  await mkdir(join(parts.root, 'boot'), { recursive: true });
  await copyFile(parts.kernel, join(parts.root, 'boot', 'kernel'));
  await writeFile(join(parts.root, 'boot', 'initramfs'), parts.initramfs);
  const size = `${(DISK_BYTES - START_BYTES) / 1024}k`;
  const options = ['-q', '-t', 'ext4', '-L', 'root', '-m', '0', '-E', `offset=${START_BYTES}`];
  await run('mke2fs', [...options, '-d', parts.root, disk, size], {
    timeoutMilliseconds: TOOL_TIMEOUT_MILLISECONDS,
  });
  const loader = await makeLoader(parts.grubModules, work);
  const file = await open(disk, 'r+');
  try {
    await file.write(loader, 0, loader.length, 0);
    await file.truncate(DISK_BYTES);
  } finally {
    await file.close();
  }
}

/** Returns the boot record with the table of partitions, and GRUB, which the record reads from the next sector on. */
async function makeLoader(modules: string, work: string): Promise<Buffer> {
  const configuration = join(work, 'grub.cfg');
  await writeFile(configuration, GRUB_CONFIGURATION);
  const core = join(work, 'core.img');
  const wanted = ['biosdisk', 'part_msdos', 'ext2', 'linux', 'boot'];
  const names = ['-O', 'i386-pc', '-d', modules, '-p', '(hd0,msdos1)/boot/grub', '-c', configuration];
  await run('grub-mkimage', [...names, '-o', core, ...wanted], {
    timeoutMilliseconds: TOOL_TIMEOUT_MILLISECONDS,
  });
  const { size } = await stat(core);
  if (SECTOR_BYTES + size > START_BYTES) {
    throw new Error(`GRUB has ${size} bytes, which do not fit before the file system`);
  }
  const record = Buffer.alloc(SECTOR_BYTES);
  (await readFile(join(modules, 'boot.img'))).copy(record, 0, 0, CODE_BYTES);
  record[TABLE_BYTE] = BOOTABLE;
  record[TABLE_BYTE + 4] = LINUX_PARTITION;
  record.writeUInt32LE(START_BYTES / SECTOR_BYTES, TABLE_BYTE + 8);
  record.writeUInt32LE((DISK_BYTES - START_BYTES) / SECTOR_BYTES, TABLE_BYTE + 12);
  record.writeUInt16LE(0xaa55, SECTOR_BYTES - 2);
  return Buffer.concat([record, await readFile(core)]);
}
