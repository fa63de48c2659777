/**
 * Makes the small Linux guest of the demo and the tests from distribution packages: a kernel, busybox, dropbear, QEMU's
 * guest agent and a boot loader. It says `berth-guest: ready` on its serial console, gets an address by DHCP, serves a page on port 80,
 * lets `root` log in with the keys of its seed, counts its boots on its disk, and powers off when its power button is pressed.
 *
 * The guest of the demo also has a picture on its screen, the guest agent running, and the host name of its VM.
 *
 *     node hack/guest.ts amd64|arm64 [OUT.qcow2]
 *
 * The image is made once and kept in the user's cache folder; OUT is a copy. Without OUT its path is printed.
 */
import { copyFile, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { type CpioEntry, FILE_MODE } from './guest/cpio.ts';
import { convertToQcow2, makeBiosDisk, makeUefiDisk, onlyEntry } from './guest/disk.ts';
import { firstFileSystem, unpackKernel } from './guest/kernel.ts';
import { cacheFolder, isMade, madeOnce, type Recipe } from './guest/made.ts';
import { Packages } from './guest/packages.ts';
import { programEntries } from './guest/programs.ts';
import { runCommand } from './command.ts';

export type GuestArchitecture = 'amd64' | 'arm64';

/** Who uses the guest. The guest of the tests has no driver for its screen and is started more often, so it starts faster. */
export type GuestUse = 'tests' | 'demo';

/** The modules that the guest loads. A question mark follows the name of a module that some kernels have built in. */
const MODULES = [
  'virtio_pci',
  'virtio_blk',
  'virtio_net',
  'virtio_console',
  'isofs',
  'qemu_fw_cfg',
  'button?',
  'evdev',
];

/** Drivers of the screen, the keyboard and the mouse. Debian's kernels for clouds have none of them. */
const DESKTOP_MODULES = ['virtio_gpu', 'xhci_pci?', 'hid_generic', 'usbhid'];

/** Programs and the Debian packages they come from. */
const TOOLS: Record<string, string> = {
  'apt-get': 'apt',
  'dpkg-deb': 'dpkg',
  'qemu-img': 'qemu-utils',
  'grub-mkstandalone': 'grub-common',
  xorriso: 'xorriso',
  mformat: 'mtools',
};

const SOURCES = [
  'guest.ts',
  'guest/init.sh',
  'guest/demo.sh',
  'guest/programs.ts',
  'guest/kernel.ts',
  'guest/disk.ts',
  'guest/cpio.ts',
];

/** Path of the guest image (qcow2) for an architecture; made at the first call. */
export async function guestImage(
  architecture: GuestArchitecture,
  progress: (text: string) => void,
  use: GuestUse = 'tests',
): Promise<string> {
  return await madeOnce(recipeOf(architecture, use), async (work, result) => {
    const packages = new Packages(join(cacheFolder(), 'packages', architecture), { architecture, progress });
    await convertToQcow2(await buildDisk({ architecture, use }, packages, { work, progress }), result);
    progress('made the image');
  });
}

/** Whether `guestImage` finds its image in the cache, so that it needs none of the tools that make one. */
export async function isGuestMade(architecture: GuestArchitecture, use: GuestUse): Promise<boolean> {
  return await isMade(recipeOf(architecture, use));
}

function recipeOf(architecture: GuestArchitecture, use: GuestUse): Recipe {
  const sources = SOURCES.map((path) => new URL(path, import.meta.url));
  return {
    name: use === 'demo' ? `demo-${architecture}` : architecture,
    file: 'guest.qcow2',
    sources,
    tools: TOOLS,
  };
}

async function buildDisk(
  { architecture, use }: { architecture: GuestArchitecture; use: GuestUse },
  packages: Packages,
  { work, progress }: { work: string; progress: (text: string) => void },
): Promise<string> {
  const isDemo = use === 'demo';
  const kernelFiles = await unpackKernel(packages, `linux-image-${isDemo ? '' : 'cloud-'}${architecture}`);
  const busyboxFiles = await packages.unpack('busybox-static');
  const entries = await programEntries(packages, architecture);
  progress('making the disk');
  const files = {
    kernel: await onlyEntry(join(kernelFiles, 'boot'), 'vmlinuz-'),
    initramfs: await firstFileSystem({
      kernelFiles,
      busybox: join(busyboxFiles, 'bin', 'busybox'),
      init: new URL('guest/init.sh', import.meta.url),
      modules: isDemo ? [...MODULES, ...DESKTOP_MODULES] : MODULES,
      entries: isDemo ? [...entries, await demoEntry()] : entries,
    }),
  };
  const make = architecture === 'amd64' ? makeBiosDisk : makeUefiDisk;
  return await make(files, packages, work);
}

async function demoEntry(): Promise<CpioEntry> {
  const content = await readFile(new URL('guest/demo.sh', import.meta.url));
  return { path: 'etc/demo.sh', mode: FILE_MODE, content };
}

async function main(): Promise<void> {
  const [architecture, out] = process.argv.slice(2);
  if (architecture !== 'amd64' && architecture !== 'arm64') {
    throw new Error('usage: node hack/guest.ts amd64|arm64 [OUT.qcow2]');
  }
  const image = await guestImage(architecture, (text) => process.stderr.write(`guest image: ${text}\n`));
  if (out === undefined) {
    process.stdout.write(`${image}\n`);
  } else {
    await copyFile(image, out);
  }
}

if (import.meta.main) {
  await runCommand(main);
}
