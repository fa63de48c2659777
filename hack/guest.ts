/**
 * Makes the small Linux guest of the demo and the tests from distribution packages: a kernel, busybox, QEMU's
 * guest agent and a boot loader. It says `berth-guest: ready` on its serial console, gets an address by DHCP, serves a page on port 80,
 * counts its boots on its disk, and powers off when its power button is pressed.
 *
 *     node hack/guest.ts amd64|arm64 [OUT.qcow2]
 *
 * The image is made once and kept in the user's cache folder; OUT is a copy. Without OUT its path is printed.
 */
import { createHash } from 'node:crypto';
import { copyFile, mkdir, mkdtemp, readdir, readFile, rename, rm, stat } from 'node:fs/promises';
import { homedir } from 'node:os';
import { delimiter, join } from 'node:path';
import { gzipSync } from 'node:zlib';
import { guestAgentEntries } from './guest/agent.ts';
import { type CpioEntry, cpioArchive, DIRECTORY_MODE, EXECUTABLE_MODE, FILE_MODE } from './guest/cpio.ts';
import { convertToQcow2, makeBiosDisk, makeUefiDisk, onlyEntry } from './guest/disk.ts';
import { Packages } from './guest/packages.ts';
import { codeOf } from '../base/errors.ts';
import { runCommand } from './command.ts';

export type GuestArchitecture = 'amd64' | 'arm64';

/** In the order in which they must be loaded; `?`: not there where the kernel has it built in. */
const MODULES = [
  'virtio_ring',
  'virtio',
  'virtio_pci_legacy_dev',
  'virtio_pci_modern_dev',
  'virtio_pci',
  'virtio_blk',
  'failover',
  'net_failover',
  'virtio_net',
  'virtio_console',
  'cdrom',
  'isofs',
  'qemu_fw_cfg',
  'button?',
  'evdev',
];

/** Programs and the Debian packages they come from. */
const TOOLS: Record<string, string> = {
  'apt-get': 'apt',
  'dpkg-deb': 'dpkg',
  'qemu-img': 'qemu-utils',
  'grub-mkrescue': 'grub-common',
  'grub-mkstandalone': 'grub-common',
  xorriso: 'xorriso',
  mformat: 'mtools',
};

const INIT_PATH = new URL('./guest/init.sh', import.meta.url);
const IMAGE = 'guest.qcow2';
const SOURCES = ['./guest.ts', './guest/init.sh', './guest/agent.ts', './guest/disk.ts', './guest/cpio.ts'];

/** Path of the guest image (qcow2) for an architecture; made at the first call. */
export async function guestImage(
  architecture: GuestArchitecture,
  progress: (text: string) => void,
): Promise<string> {
  const folder = await folderOf(architecture);
  const image = join(folder, IMAGE);
  if (await isFile(image)) {
    return image;
  }
  await requireTools();
  await mkdir(folder, { recursive: true });
  const packages = new Packages(join(cacheFolder(), 'packages', architecture), { architecture, progress });
  const work = await mkdtemp(join(folder, 'work-'));
  try {
    const disk = await buildDisk(architecture, packages, { work, progress });
    const partial = join(work, IMAGE);
    await convertToQcow2(disk, partial);
    await rename(partial, image);
  } finally {
    await rm(work, { recursive: true, force: true });
  }
  progress(`made ${image}`);
  return image;
}

/** Whether `guestImage` finds its image in the cache, so that it needs none of the tools that make one. */
export async function isGuestMade(architecture: GuestArchitecture): Promise<boolean> {
  return await isFile(join(await folderOf(architecture), IMAGE));
}

function cacheFolder(): string {
  return join(process.env['XDG_CACHE_HOME'] ?? join(homedir(), '.cache'), 'berth', 'guest');
}

async function folderOf(architecture: GuestArchitecture): Promise<string> {
  return join(cacheFolder(), `${architecture}-${await recipeHash()}`);
}

async function buildDisk(
  architecture: GuestArchitecture,
  packages: Packages,
  { work, progress }: { work: string; progress: (text: string) => void },
): Promise<string> {
  const dependencies = await packages.dependencies(`linux-image-cloud-${architecture}`);
  const kernelPackage = dependencies.find((name) => name.startsWith('linux-image-'));
  if (kernelPackage === undefined) {
    throw new Error(`no kernel package for ${architecture} in the package lists`);
  }
  const kernelFiles = await packages.unpack(kernelPackage);
  const busyboxFiles = await packages.unpack('busybox-static');
  const grub = architecture === 'amd64' ? 'grub-pc-bin' : 'grub-efi-arm64-bin';
  const platform = architecture === 'amd64' ? 'i386-pc' : 'arm64-efi';
  const grubModules = join(await packages.unpack(grub), 'usr', 'lib', 'grub', platform);
  const agent = await guestAgentEntries(packages, architecture);
  progress('making the disk');
  const files = {
    kernel: await onlyEntry(join(kernelFiles, 'boot'), 'vmlinuz-'),
    initramfs: await initramfs(kernelFiles, join(busyboxFiles, 'bin', 'busybox'), agent),
    grubModules,
  };
  return architecture === 'amd64' ? await makeBiosDisk(files, work) : await makeUefiDisk(files, work);
}

async function initramfs(kernelFiles: string, busybox: string, agent: CpioEntry[]): Promise<Buffer> {
  const entries: CpioEntry[] = [
    ...['bin', 'lib', 'lib64', 'modules', 'etc'].map((path) => ({ path, mode: DIRECTORY_MODE })),
    { path: 'init', mode: EXECUTABLE_MODE, content: await readFile(INIT_PATH) },
    { path: 'bin/busybox', mode: EXECUTABLE_MODE, content: await readFile(busybox) },
    ...agent,
  ];
  const modules = await onlyEntry(join(kernelFiles, 'lib', 'modules'));
  const paths = new Map(
    (await readdir(modules, { recursive: true }))
      .filter((path) => path.endsWith('.ko'))
      .map((path) => [moduleName(path), path]),
  );
  const order: string[] = [];
  for (const wanted of MODULES) {
    const name = wanted.replace('?', '');
    const path = paths.get(name);
    if (path === undefined) {
      if (wanted !== name) {
        continue;
      }
      throw new Error(`the kernel package has no module ${name}`);
    }
    order.push(`${name}.ko`);
    entries.push({
      path: `modules/${name}.ko`,
      mode: FILE_MODE,
      content: await readFile(join(modules, path)),
    });
  }
  entries.push({ path: 'modules/order', mode: FILE_MODE, content: Buffer.from(`${order.join('\n')}\n`) });
  return gzipSync(cpioArchive(entries));
}

function moduleName(path: string): string {
  return path
    .slice(path.lastIndexOf('/') + 1)
    .replace(/\.ko$/, '')
    .replaceAll('-', '_');
}

/** Changes with everything the image is made from but the packages' versions. */
async function recipeHash(): Promise<string> {
  const hash = createHash('sha256');
  for (const source of SOURCES) {
    hash.update(await readFile(new URL(source, import.meta.url)));
  }
  return hash.digest('hex').slice(0, 16);
}

async function requireTools(): Promise<void> {
  const folders = [...(process.env['PATH'] ?? '').split(delimiter), '/usr/sbin', '/sbin'];
  const missing: string[] = [];
  for (const [program, packageName] of Object.entries(TOOLS)) {
    const found = await Promise.all(folders.map((folder) => isFile(join(folder, program))));
    if (!found.includes(true)) {
      missing.push(packageName);
    }
  }
  if (missing.length > 0) {
    throw new Error(
      `the guest image is made with Debian's tools; install: ${[...new Set(missing)].join(' ')} (apt-get install …)`,
    );
  }
}

async function isFile(path: string): Promise<boolean> {
  try {
    return (await stat(path)).isFile();
  } catch (error) {
    const code = codeOf(error);
    if (code === 'ENOENT' || code === 'ENOTDIR') {
      return false;
    }
    throw error;
  }
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
