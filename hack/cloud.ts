/**
 * Makes a cloud image for amd64 from Debian's packages, for the tests: with the real cloud-init, QEMU's guest agent and OpenSSH. It boots by
 * BIOS, and its kernel has a display. Root must make it on a machine with amd64, because its files have several owners and its packages are
 * configured there.
 *
 *     node hack/cloud.ts [OUT.qcow2]
 *
 * An image is made once and kept in the user's cache folder; OUT is a copy. Without OUT its path is printed.
 */
import { copyFile, mkdir, readdir, rm, symlink, writeFile, open, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { onlyEntry } from './guest/disk.ts';
import { firstFileSystem, unpackKernel } from './guest/kernel.ts';
import { cacheFolder, isMade, madeOnce, type Recipe } from './guest/made.ts';
import { Packages } from './guest/packages.ts';
import { run } from './guest/run.ts';
import { runCommand } from './command.ts';

/** The modules that the guest loads. A question mark follows the name of a module that some kernels have built in. */
const MODULES = [
  'virtio_pci',
  'virtio_blk',
  'virtio_net',
  'virtio_console',
  'virtio_gpu',
  'crc32c_generic?',
  'ext4?',
  'isofs',
  'autofs4?',
  'qemu_fw_cfg?',
  'button?',
  'evdev',
];
/** Time limit of a program that reads or writes a gigabyte. */
const COPY_TIMEOUT_MILLISECONDS = 300_000;

const RECIPE: Recipe = {
  name: 'cloud-amd64',
  file: 'cloud.qcow2',
  sources: ['cloud.ts', 'guest/cloud/init.sh', 'guest/kernel.ts', 'guest/cpio.ts'].map(
    (path) => new URL(path, import.meta.url),
  ),
  tools: {
    'apt-get': 'apt',
    'dpkg-deb': 'dpkg',
    mmdebstrap: 'mmdebstrap',
    mke2fs: 'e2fsprogs',
    'grub-mkimage': 'grub-common',
    'qemu-img': 'qemu-utils',
  },
};

/** Returns the path of the cloud image (qcow2). The first call makes the image, which takes some minutes. */
export async function cloudImage(progress: (text: string) => void): Promise<string> {
  return await madeOnce(RECIPE, async (work, result) => {
    const packages = new Packages(join(cacheFolder(), 'packages', 'amd64'), {
      architecture: 'amd64',
      progress,
    });
    progress('making a root file system of Debian');
    const root = join(work, 'root');
    await mkdir(root);
    await makeRoot(root);
    const kernelFiles = await unpackKernel(packages, 'linux-image-amd64');
    const busybox = join(await packages.unpack('busybox-static'), 'bin', 'busybox');
    progress('making the disk');
    const init = new URL('guest/cloud/init.sh', import.meta.url);
    const parts = {
      root,
      kernel: await onlyEntry(join(kernelFiles, 'boot'), 'vmlinuz-'),
      initramfs: await firstFileSystem({ kernelFiles, busybox, init, modules: MODULES }),
      grubModules: join(await packages.unpack('grub-pc-bin'), 'usr', 'lib', 'grub', 'i386-pc'),
    };
    const disk = join(work, 'disk.raw');
    await makeCloudDisk(parts, work, disk);
    await run('qemu-img', ['convert', '-c', '-f', 'raw', '-O', 'qcow2', disk, result], {
      timeoutMilliseconds: COPY_TIMEOUT_MILLISECONDS,
    });
    progress('made the image');
  });
}

/** Returns whether `cloudImage` finds its image in the cache, so that it needs none of its tools. */
export async function isCloudMade(): Promise<boolean> {
  return await isMade(RECIPE);
}

const SUITE = 'bookworm';
const PACKAGES = [
  'systemd-sysv',
  'udev',
  'dbus',
  'kmod',
  'cloud-init',
  'qemu-guest-agent',
  'openssh-server',
  'isc-dhcp-client',
  'ifupdown',
  'iproute2',
];
/** Files that nobody reads in a test. */
const LEFT_OUT = ['/usr/share/doc/*', '/usr/share/man/*', '/usr/share/locale/*', '/usr/share/info/*'];
/** Time limit of mmdebstrap: 250 packages over a slow connection, on a busy machine. It usually takes a minute. */
const BOOTSTRAP_TIMEOUT_MILLISECONDS = 900_000;

const FILES: Readonly<Record<string, string>> = {
  // Without this line, systemd leaves the root file system read-only.
  'etc/fstab': 'LABEL=root / ext4 defaults 0 1\n',
  // An empty file gives each machine an id at its first boot.
  'etc/machine-id': '',
  'etc/cloud/cloud.cfg.d/90-image.cfg': [
    'datasource_list: [NoCloud, None]',
    // The image has no locales, and setting one would fail.
    'locale: false',
    // One kind of key is faster to make than four.
    'ssh_genkeytypes: [ed25519]',
    '',
  ].join('\n'),
};
/** The machine's own files, which the bootstrap leaves in the root, and files that differ in each machine. */
const REMOVED = ['etc/hostname', 'etc/resolv.conf', 'var/lib/apt/lists', 'var/cache/apt'];
/** Units that would slow the boot of a machine that lives for minutes. */
const MASKED = [
  'apt-daily.timer',
  'apt-daily-upgrade.timer',
  'dpkg-db-backup.timer',
  'e2scrub_all.timer',
  'e2scrub_reap.service',
  'fstrim.timer',
  // The kernel has no module for it.
  'proc-sys-fs-binfmt_misc.automount',
  'systemd-binfmt.service',
];

/**
 * Makes the root file system in the folder: Debian's packages with cloud-init and the guest agent, as an image for clouds has them. Needs
 * root, because its files have several owners.
 */
async function makeRoot(root: string): Promise<void> {
  await run(
    'mmdebstrap',
    [
      '--mode=root',
      '--format=directory',
      '--variant=minbase',
      // This skips syncs to the disk. After a crash, the file system is made again.
      '--dpkgopt=force-unsafe-io',
      ...LEFT_OUT.map((path) => `--dpkgopt=path-exclude=${path}`),
      `--include=${PACKAGES.join(',')}`,
      SUITE,
      root,
    ],
    { timeoutMilliseconds: BOOTSTRAP_TIMEOUT_MILLISECONDS },
  );
  const keys = (await readdir(join(root, 'etc', 'ssh'))).filter((name) => name.startsWith('ssh_host_'));
  for (const path of [...REMOVED, ...keys.map((name) => `etc/ssh/${name}`)]) {
    await rm(join(root, path), { recursive: true, force: true });
  }
  for (const [path, text] of Object.entries(FILES)) {
    await writeFile(join(root, path), text);
  }
  const units = join(root, 'etc', 'systemd', 'system');
  await mkdir(units, { recursive: true });
  for (const unit of MASKED) {
    await rm(join(units, unit), { force: true });
    await symlink('/dev/null', join(units, unit));
  }
}

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

interface CloudParts {
  /** Folder of the root file system. Kernel and first file system are added to it. */
  root: string;
  kernel: string;
  initramfs: Buffer;
  /** Folder of GRUB's modules. */
  grubModules: string;
}

/**
 * Writes the raw disk to `disk`: a boot loader, and one file system behind it. No loop device and no other machine's loader is needed.
 */
async function makeCloudDisk(parts: CloudParts, work: string, disk: string): Promise<void> {
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

async function main(): Promise<void> {
  const [out] = process.argv.slice(2);
  const image = await cloudImage((text) => process.stderr.write(`cloud image: ${text}\n`));
  if (out === undefined) {
    process.stdout.write(`${image}\n`);
  } else {
    await copyFile(image, out);
  }
}

if (import.meta.main) {
  await runCommand(main);
}
