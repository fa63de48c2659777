/**
 * Makes a cloud image from Debian's packages, for the tests: with the real cloud-init, QEMU's guest agent and OpenSSH. For amd64
 * it boots by BIOS and its kernel has a display. For arm64 it boots by UEFI. Root must make it on a machine with amd64, because its
 * files have several owners and its packages are configured there. No program for arm64 runs on the machine.
 *
 *     node hack/cloud.ts amd64|arm64 [OUT.qcow2]
 *
 * An image is made once and kept in the user's cache folder; OUT is a copy. Without OUT its path is printed.
 */
import { copyFile, mkdir } from 'node:fs/promises';
import { join } from 'node:path';
import { makeCloudDisk } from './guest/cloud/disk.ts';
import { exchangePrograms } from './guest/cloud/exchange.ts';
import { LEFT_OUT, makeRoot } from './guest/cloud/root.ts';
import { onlyEntry } from './guest/disk.ts';
import { firstFileSystem, unpackKernel } from './guest/kernel.ts';
import { cacheFolder, isMade, madeOnce, type Recipe } from './guest/made.ts';
import { Packages } from './guest/packages.ts';
import { run } from './guest/run.ts';
import { runCommand } from './command.ts';
import type { GuestArchitecture } from './guest.ts';

/** The modules that the guest loads. A question mark follows the name of a module that some kernels have built in. */
const MODULES = [
  'virtio_pci',
  'virtio_blk',
  'virtio_net',
  'virtio_console',
  'crc32c_generic?',
  'ext4?',
  'isofs',
  'autofs4?',
  'qemu_fw_cfg?',
  'button?',
  'evdev',
];
/** Further modules of a kernel that has a display. */
const DISPLAY_MODULES = ['virtio_gpu'];
/** Architecture of the machine that configures the packages. */
const CONFIGURED = 'amd64';
/** Time limit of a program that reads or writes a gigabyte. */
const COPY_TIMEOUT_MILLISECONDS = 300_000;

const SOURCES = [
  'cloud.ts',
  'guest/cloud/init.sh',
  'guest/cloud/root.ts',
  'guest/cloud/exchange.ts',
  'guest/cloud/disk.ts',
  'guest/kernel.ts',
  'guest/cpio.ts',
];
const TOOLS = {
  'apt-get': 'apt',
  'dpkg-deb': 'dpkg',
  mmdebstrap: 'mmdebstrap',
  mke2fs: 'e2fsprogs',
  'grub-mkimage': 'grub-common',
  mformat: 'mtools',
  'qemu-img': 'qemu-utils',
};
/** The root file system of amd64, from which the one of arm64 is made too. */
const ROOT_RECIPE: Recipe = {
  name: 'cloud-root',
  file: 'root.tar',
  sources: urls('guest/cloud/root.ts'),
  tools: { mmdebstrap: 'mmdebstrap', tar: 'tar' },
};

/** What differs between the architectures. The kernel for clouds has no display. */
const ARCHITECTURES = {
  amd64: { kernel: 'linux-image-amd64', grub: 'grub-pc-bin', firmware: 'i386-pc', modules: DISPLAY_MODULES },
  arm64: {
    kernel: 'linux-image-cloud-arm64',
    grub: 'grub-efi-arm64-bin',
    firmware: 'arm64-efi',
    modules: [],
  },
};

/** Returns the path of the cloud image (qcow2). The first call makes the image, which takes some minutes. */
export async function cloudImage(
  architecture: GuestArchitecture,
  progress: (text: string) => void,
): Promise<string> {
  return await madeOnce(recipeOf(architecture), async (work, result) => {
    const { kernel, grub, firmware, modules } = ARCHITECTURES[architecture];
    const packages = new Packages(join(cacheFolder(), 'packages', architecture), { architecture, progress });
    const root = await unpackRoot(work, progress);
    if (architecture !== CONFIGURED) {
      progress(`exchanging the programs for ${architecture}`);
      const archives = join(work, 'archives');
      await mkdir(archives);
      const exchange = { from: CONFIGURED, to: architecture, packages, leftOut: LEFT_OUT };
      await exchangePrograms(root, archives, exchange);
    }
    const kernelFiles = await unpackKernel(packages, kernel);
    const busybox = join(await packages.unpack('busybox-static'), 'bin', 'busybox');
    const grubModules = join(await packages.unpack(grub), 'usr', 'lib', 'grub', firmware);
    progress('making the disk');
    const init = new URL('guest/cloud/init.sh', import.meta.url);
    const parts = {
      architecture,
      root,
      kernel: await onlyEntry(join(kernelFiles, 'boot'), 'vmlinuz-'),
      initramfs: await firstFileSystem({ kernelFiles, busybox, init, modules: [...MODULES, ...modules] }),
      grubModules,
    };
    const disk = join(work, 'disk.raw');
    await makeCloudDisk(parts, work, disk);
    await copyTool('qemu-img', 'convert', '-c', '-f', 'raw', '-O', 'qcow2', disk, result);
    progress('made the image');
  });
}

/** Returns whether `cloudImage` finds its image in the cache, so that it needs none of its tools. */
export async function isCloudMade(architecture: GuestArchitecture): Promise<boolean> {
  return await isMade(recipeOf(architecture));
}

function recipeOf(architecture: GuestArchitecture): Recipe {
  const name = `cloud-${architecture}`;
  return { name, file: 'cloud.qcow2', sources: urls(...SOURCES), tools: TOOLS };
}

function urls(...paths: string[]): URL[] {
  return paths.map((path) => new URL(path, import.meta.url));
}

/** Returns a new folder with the root file system of amd64. */
async function unpackRoot(work: string, progress: (text: string) => void): Promise<string> {
  const archive = await madeOnce(ROOT_RECIPE, async (rootWork, result) => {
    progress('making a root file system of Debian');
    const made = join(rootWork, 'root');
    await mkdir(made);
    await makeRoot(made);
    await copyTool('tar', '-C', made, '-cf', result, '.');
  });
  const root = join(work, 'root');
  await mkdir(root);
  await copyTool('tar', '-C', root, '--numeric-owner', '-xpf', archive);
  return root;
}

async function copyTool(program: string, ...parameters: string[]): Promise<void> {
  await run(program, parameters, { timeoutMilliseconds: COPY_TIMEOUT_MILLISECONDS });
}

async function main(): Promise<void> {
  const [architecture, out] = process.argv.slice(2);
  if (architecture !== 'amd64' && architecture !== 'arm64') {
    throw new Error('usage: node hack/cloud.ts amd64|arm64 [OUT.qcow2]');
  }
  const image = await cloudImage(architecture, (text) => process.stderr.write(`cloud image: ${text}\n`));
  if (out === undefined) {
    process.stdout.write(`${image}\n`);
  } else {
    await copyFile(image, out);
  }
}

if (import.meta.main) {
  await runCommand(main);
}
