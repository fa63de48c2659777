/** The disk of the cloud guest: a boot loader, and one file system behind it. No loop device and no other machine's loader is needed. */
import { copyFile, mkdir, open, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { run } from '../run.ts';

const SECTOR_BYTES = 512;
const MEBIBYTE = 1024 * 1024;
/** Start of the partition, where partitioning programs put it. */
const PARTITION_BYTE = MEBIBYTE;
const DISK_BYTES = 1280 * MEBIBYTE;
/** Bytes of a boot record that are code. The table of partitions follows. */
const CODE_BYTES = 440;
const TABLE_BYTE = 446;
const LINUX_PARTITION = 0x83;
const BOOTABLE = 0x80;
/** Time limit of each program. They write a gigabyte. */
const TOOL_TIMEOUT_MILLISECONDS = 300_000;
/**
 * GRUB runs these lines by itself. The kernel's messages go to the screen and to the serial console, which is the last one. The commands for
 * BIOS alone leave the kernel where it was read to. The other ones move it byte by byte, for which an emulated processor needs two seconds.
 */
const GRUB_CONFIGURATION = `set root=(hd0,msdos1)
search.fs_label root root
linux16 /boot/kernel root=LABEL=root rw console=tty0 console=ttyS0
initrd16 /boot/initramfs
boot
`;

export interface CloudParts {
  /** Folder of the root file system. Kernel and first file system are added to it. */
  root: string;
  kernel: string;
  initramfs: Buffer;
  /** Folder of GRUB's modules. */
  grubModules: string;
}

/** Writes the raw disk to `disk`. */
export async function makeCloudDisk(parts: CloudParts, work: string, disk: string): Promise<void> {
  await mkdir(join(parts.root, 'boot'), { recursive: true });
  await copyFile(parts.kernel, join(parts.root, 'boot', 'kernel'));
  await writeFile(join(parts.root, 'boot', 'initramfs'), parts.initramfs);
  const size = `${(DISK_BYTES - PARTITION_BYTE) / 1024}k`;
  const options = ['-q', '-t', 'ext4', '-L', 'root', '-m', '0', '-E', `offset=${PARTITION_BYTE}`];
  await runTool('mke2fs', ...options, '-d', parts.root, disk, size);
  const loader = await makeLoader(parts.grubModules, work);
  if (loader.length > PARTITION_BYTE) {
    throw new Error(`GRUB has ${loader.length} bytes, which do not fit before the file system`);
  }
  writeTable(loader);
  const file = await open(disk, 'r+');
  try {
    await file.write(loader, 0, loader.length, 0);
    await file.truncate(DISK_BYTES);
  } finally {
    await file.close();
  }
}

/** Returns the code of the boot record, and GRUB, which the record reads from the next sector on. */
async function makeLoader(modules: string, work: string): Promise<Buffer> {
  const configuration = join(work, 'grub.cfg');
  await writeFile(configuration, GRUB_CONFIGURATION);
  const core = join(work, 'core.img');
  const wanted = ['biosdisk', 'part_msdos', 'ext2', 'search_label', 'linux16', 'boot'];
  const names = ['-O', 'i386-pc', '-d', modules, '-p', '(hd0,msdos1)/boot/grub', '-c', configuration];
  await runTool('grub-mkimage', ...names, '-o', core, ...wanted);
  const record = Buffer.alloc(SECTOR_BYTES);
  (await readFile(join(modules, 'boot.img'))).copy(record, 0, 0, CODE_BYTES);
  return Buffer.concat([record, await readFile(core)]);
}

/** Writes the table with the one partition into a boot record. */
function writeTable(record: Buffer): void {
  record[TABLE_BYTE] = BOOTABLE;
  record[TABLE_BYTE + 4] = LINUX_PARTITION;
  record.writeUInt32LE(PARTITION_BYTE / SECTOR_BYTES, TABLE_BYTE + 8);
  record.writeUInt32LE((DISK_BYTES - PARTITION_BYTE) / SECTOR_BYTES, TABLE_BYTE + 12);
  record.writeUInt16LE(0xaa55, SECTOR_BYTES - 2);
}

async function runTool(program: string, ...parameters: string[]): Promise<void> {
  await run(program, parameters, { timeoutMilliseconds: TOOL_TIMEOUT_MILLISECONDS });
}
