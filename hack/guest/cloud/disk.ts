/** The disk of the cloud guest: a boot loader, and one file system behind it. No loop device and no other machine's loader is needed. */
import { copyFile, mkdir, open, readFile, truncate, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { Architecture } from '../../../agent/drivers/driver.ts';
import { run } from '../run.ts';

const SECTOR_BYTES = 512;
const MEBIBYTE = 1024 * 1024;
/** Start of the first partition, where partitioning programs put it. */
const FIRST_PARTITION_BYTE = MEBIBYTE;
/** Size of the partition for UEFI, which has only the loader of less than a mebibyte. */
const UEFI_BYTES = 8 * MEBIBYTE;
const DISK_BYTES = 1280 * MEBIBYTE;
/** Bytes of a boot record that are code. The table of partitions follows. */
const CODE_BYTES = 440;
const TABLE_BYTE = 446;
const ENTRY_BYTES = 16;
const LINUX_PARTITION = 0x83;
const UEFI_PARTITION = 0xef;
const BOOTABLE = 0x80;
/** Time limit of each program. They write a gigabyte. */
const TOOL_TIMEOUT_MILLISECONDS = 300_000;

export interface CloudParts {
  architecture: Architecture;
  /** Folder of the root file system. Kernel and first file system are added to it. */
  root: string;
  kernel: string;
  initramfs: Buffer;
  /** Folder of GRUB's modules for the firmware of the architecture. */
  grubModules: string;
}

interface Partition {
  type: number;
  bytes: number;
}

interface Firmware {
  console: string;
  /**
   * Ending of GRUB's commands that load the kernel. The commands for BIOS alone leave the kernel where it was read to. The other ones move
   * it byte by byte, for which an emulated processor needs two seconds.
   */
  protocol: '' | '16';
  /** GRUB's name for the partition of the root file system. */
  rootPartition: string;
  /** Partitions in front of the root file system. */
  partitions: readonly Partition[];
  /** Returns the bytes before the root file system. */
  makeLoader: (modules: string, configuration: string, work: string) => Promise<Buffer>;
}

const FIRMWARE: Readonly<Record<Architecture, Firmware>> = {
  amd64: {
    console: 'ttyS0',
    protocol: '16',
    rootPartition: 'msdos1',
    partitions: [],
    makeLoader: makeBiosLoader,
  },
  arm64: {
    console: 'ttyAMA0',
    protocol: '',
    rootPartition: 'msdos2',
    partitions: [{ type: UEFI_PARTITION, bytes: UEFI_BYTES }],
    makeLoader: makeUefiLoader,
  },
};

/** Writes the raw disk to `disk`. */
export async function makeCloudDisk(parts: CloudParts, work: string, disk: string): Promise<void> {
  const firmware = FIRMWARE[parts.architecture];
  await mkdir(join(parts.root, 'boot'), { recursive: true });
  await copyFile(parts.kernel, join(parts.root, 'boot', 'kernel'));
  await writeFile(join(parts.root, 'boot', 'initramfs'), parts.initramfs);
  const start = firmware.partitions.reduce((sum, { bytes }) => sum + bytes, FIRST_PARTITION_BYTE);
  const size = `${(DISK_BYTES - start) / 1024}k`;
  const options = ['-q', '-t', 'ext4', '-L', 'root', '-m', '0', '-E', `offset=${start}`];
  await runTool('mke2fs', ...options, '-d', parts.root, disk, size);
  const configuration = join(work, 'grub.cfg');
  await writeFile(configuration, grubConfiguration(firmware));
  const loader = await firmware.makeLoader(parts.grubModules, configuration, work);
  if (loader.length > start) {
    throw new Error(`GRUB has ${loader.length} bytes, which do not fit before the file system`);
  }
  writeTable(loader, [...firmware.partitions, { type: LINUX_PARTITION, bytes: DISK_BYTES - start }]);
  const file = await open(disk, 'r+');
  try {
    await file.write(loader, 0, loader.length, 0);
    await file.truncate(DISK_BYTES);
  } finally {
    await file.close();
  }
}

/**
 * GRUB runs these lines by itself. The kernel's messages go to the screen and to the serial console, which is the last one. With UEFI,
 * the number of a disk says nothing, so that the label is searched.
 */
function grubConfiguration({ console, protocol, rootPartition }: Firmware): string {
  return [
    `set root=(hd0,${rootPartition})`,
    'search.fs_label root root',
    `linux${protocol} /boot/kernel root=LABEL=root rw console=tty0 console=${console}`,
    `initrd${protocol} /boot/initramfs`,
    'boot',
    '',
  ].join('\n');
}

/** Returns the code of the boot record, and GRUB, which the record reads from the next sector on. */
async function makeBiosLoader(modules: string, configuration: string, work: string): Promise<Buffer> {
  const core = join(work, 'core.img');
  const wanted = ['biosdisk', 'part_msdos', 'ext2', 'search_label', 'linux16', 'boot'];
  const names = ['-O', 'i386-pc', '-d', modules, '-p', '(hd0,msdos1)/boot/grub', '-c', configuration];
  await runTool('grub-mkimage', ...names, '-o', core, ...wanted);
  const record = Buffer.alloc(SECTOR_BYTES);
  (await readFile(join(modules, 'boot.img'))).copy(record, 0, 0, CODE_BYTES);
  return Buffer.concat([record, await readFile(core)]);
}

/** Returns an empty boot record, and a partition with GRUB at the path that UEFI tries by itself. */
async function makeUefiLoader(modules: string, configuration: string, work: string): Promise<Buffer> {
  const loader = join(work, 'BOOTAA64.EFI');
  const wanted = ['part_msdos', 'ext2', 'search_label', 'linux', 'boot'];
  const names = ['-O', 'arm64-efi', '-d', modules, '-p', '/boot/grub', '-c', configuration];
  await runTool('grub-mkimage', ...names, '-o', loader, ...wanted);
  const partition = join(work, 'uefi.img');
  await writeFile(partition, '');
  await truncate(partition, UEFI_BYTES);
  await runTool('mformat', '-i', partition, '::');
  await runTool('mmd', '-i', partition, '::/EFI', '::/EFI/BOOT');
  await runTool('mcopy', '-i', partition, loader, '::/EFI/BOOT/BOOTAA64.EFI');
  return Buffer.concat([Buffer.alloc(FIRST_PARTITION_BYTE), await readFile(partition)]);
}

/** Writes the table of partitions into a boot record. The last partition is the bootable one. */
function writeTable(record: Buffer, partitions: readonly Partition[]): void {
  let start = FIRST_PARTITION_BYTE;
  for (const [index, { type, bytes }] of partitions.entries()) {
    const entry = TABLE_BYTE + index * ENTRY_BYTES;
    record[entry] = index === partitions.length - 1 ? BOOTABLE : 0;
    record[entry + 4] = type;
    record.writeUInt32LE(start / SECTOR_BYTES, entry + 8);
    record.writeUInt32LE(bytes / SECTOR_BYTES, entry + 12);
    start += bytes;
  }
  record.writeUInt16LE(0xaa55, SECTOR_BYTES - 2);
}

async function runTool(program: string, ...parameters: string[]): Promise<void> {
  await run(program, parameters, { timeoutMilliseconds: TOOL_TIMEOUT_MILLISECONDS });
}
