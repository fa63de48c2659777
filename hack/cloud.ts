/**
 * Makes a cloud image for amd64 from Debian's packages, for the tests: with the real cloud-init, QEMU's guest agent and OpenSSH. It boots by
 * BIOS, and its kernel has a display. Root must make it on a machine with amd64, because its files have several owners and its packages are
 * configured there.
 *
 *     node hack/cloud.ts [OUT.qcow2]
 *
 * An image is made once and kept in the user's cache folder; OUT is a copy. Without OUT its path is printed.
 */
import { copyFile, mkdir } from 'node:fs/promises';
import { join } from 'node:path';
import { makeCloudDisk } from './guest/cloud/disk.ts';
import { makeRoot } from './guest/cloud/root.ts';
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
  sources: [
    'cloud.ts',
    'guest/cloud/init.sh',
    'guest/cloud/root.ts',
    'guest/cloud/disk.ts',
    'guest/kernel.ts',
    'guest/cpio.ts',
  ].map((path) => new URL(path, import.meta.url)),
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
