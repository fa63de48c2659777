/** The guest's disk: a boot loader, kernel and first file system, and behind them a place for the guest's record. */
import { cp, mkdir, open, readdir, truncate, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { run } from './run.ts';

/** The guest writes its record at 60 MiB (`init.sh`); everything that boots lies before. */
const BOOT_LIMIT_BYTES = 60 * 1024 * 1024;
const DISK_BYTES = 64 * 1024 * 1024;
/** Making an image takes a second; a shared machine can be much slower. */
const TOOL_TIMEOUT_MILLISECONDS = 120_000;
/** With this variable, the tools write the same times into every image. */
const ENVIRONMENT = { SOURCE_DATE_EPOCH: '1700000000' };

export interface BootFiles {
  kernel: string;
  initramfs: Buffer;
  /** Folder of the boot loader's modules, from its package. */
  grubModules: string;
}

/**
 * Returns the configuration of the boot loader. `protocol` is the ending of its commands that load the kernel. With loglevel 6, the kernel
 * writes its first line, which shows that it has started. It leaves out most other lines, because a serial console is slow.
 */
function grubConfiguration(console: string, protocol: '' | '16'): string {
  return [
    'set timeout=0',
    `linux${protocol} /boot/kernel console=${console} loglevel=6 panic=5`,
    `initrd${protocol} /boot/initramfs`,
    'boot',
    '',
  ].join('\n');
}

/**
 * A hybrid image for BIOS: boots as a disk and as an ISO alike. Its kernel starts with the boot protocol for BIOS. With the newer protocol,
 * GRUB would move the kernel in memory byte by byte. An emulated processor needs two seconds for this.
 */
export async function makeBiosDisk(files: BootFiles, work: string): Promise<string> {
  const root = join(work, 'root');
  await mkdir(join(root, 'boot', 'grub'), { recursive: true });
  await cp(files.kernel, join(root, 'boot', 'kernel'));
  await writeFile(join(root, 'boot', 'initramfs'), files.initramfs);
  await writeFile(join(root, 'boot', 'grub', 'grub.cfg'), grubConfiguration('ttyS0', '16'));
  const disk = join(work, 'disk.raw');
  await run('grub-mkrescue', ['-d', files.grubModules, '-o', disk, root], {
    environment: ENVIRONMENT,
    timeoutMilliseconds: TOOL_TIMEOUT_MILLISECONDS,
  });
  await grow(disk);
  return disk;
}

/** One FAT file system over the boot part of the disk, with the loader at the path that UEFI tries by itself. */
export async function makeUefiDisk(files: BootFiles, work: string): Promise<string> {
  const configuration = join(work, 'grub.cfg');
  await writeFile(
    configuration,
    // The disk that the loader itself was read from; to search the disks would try every file system.
    `insmod fat\ninsmod regexp\nregexp --set=1:root '^\\(([^)]*)\\)' "$cmdpath"\n${grubConfiguration('ttyAMA0', '')}`,
  );
  const loader = join(work, 'BOOTAA64.EFI');
  await run(
    'grub-mkstandalone',
    [
      '-O',
      'arm64-efi',
      '-d',
      files.grubModules,
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
