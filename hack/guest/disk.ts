/** The guest's disk: a boot loader, kernel and first file system, and behind them a place for the guest's record. */
import { cp, mkdir, open, readdir, truncate, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { Packages } from './packages.ts';
import { run } from './run.ts';

/** The guest writes its record at 60 MiB (`init.sh`); everything that boots lies before. */
const BOOT_LIMIT_BYTES = 60 * 1024 * 1024;
const DISK_BYTES = 64 * 1024 * 1024;
/** Making an image takes a second; a shared machine can be much slower. */
const TOOL_TIMEOUT_MILLISECONDS = 120_000;
/** With this variable, the tools write the same times into every image. */
const ENVIRONMENT = { SOURCE_DATE_EPOCH: '1700000000' };

/** Folder of the boot loader on a disk for BIOS. */
const LOADER_FOLDER = 'isolinux';

export interface BootFiles {
  kernel: string;
  initramfs: Buffer;
}

/**
 * Returns the parameters of the kernel. With loglevel 6, the kernel writes its first line, which shows that it has started. It leaves out
 * most other lines, because a serial console is slow.
 */
function kernelParameters(console: string): string {
  return `console=${console} loglevel=6 panic=5`;
}

/**
 * A hybrid image for BIOS: boots as a disk and as an ISO alike. Its loader is ISOLINUX, because GRUB copies what it reads byte by byte. An
 * emulated processor needs more than a second for this, a third of the time until the guest is up.
 */
export async function makeBiosDisk(files: BootFiles, packages: Packages, work: string): Promise<string> {
  const root = join(work, 'root');
  const [boot, loader] = [join(root, 'boot'), join(root, LOADER_FOLDER)];
  await Promise.all([boot, loader].map((folder) => mkdir(folder, { recursive: true })));
  await cp(files.kernel, join(boot, 'kernel'));
  await writeFile(join(boot, 'initramfs'), files.initramfs);
  const isolinux = join(await packages.unpack('isolinux'), 'usr', 'lib', 'ISOLINUX');
  const modules = join(await packages.unpack('syslinux-common'), 'usr', 'lib', 'syslinux', 'modules', 'bios');
  await cp(join(isolinux, 'isolinux.bin'), join(loader, 'isolinux.bin'));
  await cp(join(modules, 'ldlinux.c32'), join(loader, 'ldlinux.c32'));
  const configuration = [
    'DEFAULT guest',
    'LABEL guest',
    'KERNEL /boot/kernel',
    'INITRD /boot/initramfs',
    `APPEND ${kernelParameters('ttyS0')}`,
    '',
  ];
  await writeFile(join(loader, 'isolinux.cfg'), configuration.join('\n'));
  const disk = join(work, 'disk.raw');
  const asDisk = ['-isohybrid-mbr', join(isolinux, 'isohdpfx.bin')];
  const asIso = ['-b', `${LOADER_FOLDER}/isolinux.bin`, '-c', `${LOADER_FOLDER}/boot.cat`, '-no-emul-boot'];
  const read = ['-boot-load-size', '4', '-boot-info-table'];
  await run('xorriso', ['-as', 'mkisofs', '-quiet', '-o', disk, ...asDisk, ...asIso, ...read, root], {
    environment: ENVIRONMENT,
    timeoutMilliseconds: TOOL_TIMEOUT_MILLISECONDS,
  });
  await grow(disk);
  return disk;
}

/** One FAT file system over the boot part of the disk, with the loader at the path that UEFI tries by itself. */
export async function makeUefiDisk(files: BootFiles, packages: Packages, work: string): Promise<string> {
  const configuration = join(work, 'grub.cfg');
  const lines = [
    // The disk that the loader itself was read from; to search the disks would try every file system.
    'insmod fat',
    'insmod regexp',
    `regexp --set=1:root '^\\(([^)]*)\\)' "$cmdpath"`,
    'set timeout=0',
    `linux /boot/kernel ${kernelParameters('ttyAMA0')}`,
    'initrd /boot/initramfs',
    'boot',
    '',
  ];
  await writeFile(configuration, lines.join('\n'));
  const modules = join(await packages.unpack('grub-efi-arm64-bin'), 'usr', 'lib', 'grub', 'arm64-efi');
  const loader = join(work, 'BOOTAA64.EFI');
  await run(
    'grub-mkstandalone',
    [
      '-O',
      'arm64-efi',
      '-d',
      modules,
      '-o',
      loader,
      '--install-modules=linux fat regexp normal boot minicmd',
      `boot/grub/grub.cfg=${configuration}`,
    ],
    { environment: ENVIRONMENT, timeoutMilliseconds: TOOL_TIMEOUT_MILLISECONDS },
  );
  const initramfs = join(work, 'initramfs');
  await writeFile(initramfs, files.initramfs);
  const disk = join(work, 'disk.raw');
  await writeFile(disk, '');
  await truncate(disk, BOOT_LIMIT_BYTES);
  const mtools = async (program: string, ...parameters: string[]) =>
    await run(program, ['-i', disk, ...parameters], {
      environment: ENVIRONMENT,
      timeoutMilliseconds: TOOL_TIMEOUT_MILLISECONDS,
    });
  await mtools('mformat', '-F', '-N', '0', '::');
  await mtools('mmd', '::/EFI', '::/EFI/BOOT', '::/boot');
  await mtools('mcopy', loader, '::/EFI/BOOT/BOOTAA64.EFI');
  await mtools('mcopy', files.kernel, '::/boot/kernel');
  await mtools('mcopy', initramfs, '::/boot/initramfs');
  await grow(disk);
  return disk;
}

/** The raw disk as qcow2 at `target`. */
export async function convertToQcow2(disk: string, target: string): Promise<void> {
  await run('qemu-img', ['convert', '-f', 'raw', '-O', 'qcow2', disk, target], {
    timeoutMilliseconds: TOOL_TIMEOUT_MILLISECONDS,
  });
}

/** The one folder below a package's modules: a kernel's release. */
export async function onlyEntry(folder: string, prefix = ''): Promise<string> {
  const entries = (await readdir(folder)).filter((entry) => entry.startsWith(prefix));
  const [entry] = entries;
  if (entry === undefined || entries.length > 1) {
    throw new Error(`expected one "${prefix}*" in ${folder}, found: ${entries.join(', ') || 'none'}`);
  }
  return join(folder, entry);
}

async function grow(disk: string): Promise<void> {
  const file = await open(disk, 'r+');
  try {
    const { size } = await file.stat();
    if (size > BOOT_LIMIT_BYTES) {
      throw new Error(`the boot part of ${disk} is ${size} bytes, over the record`);
    }
    await file.truncate(DISK_BYTES);
  } finally {
    await file.close();
  }
}
