/**
 * Makes a small Linux guest with Debian's real `adbd` from distribution packages, for tests of emulators: a kernel and a first file
 * system that QEMU boots directly. The kernel's package is that of the other guest (`guest.ts`).
 *
 *     node hack/adbd.ts amd64|arm64
 *
 * Both files are made once and kept in the user's cache folder. Their paths are printed.
 */
import { copyFile, rename, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { runCommand } from './command.ts';
import { onlyEntry } from './guest/disk.ts';
import { firstFileSystem, unpackKernel } from './guest/kernel.ts';
import { cacheFolder, madeOnce, type Recipe } from './guest/made.ts';
import { Packages } from './guest/packages.ts';
import { adbdEntries } from './guest/programs.ts';
import type { GuestArchitecture } from './guest.ts';

/** The modules that the guest loads. */
const MODULES = ['virtio_pci', 'virtio_net'];
/** adbd is in the backports only. Its libraries come from the same suites, because those of other suites do not fit it. */
const SUITES = ['bookworm-backports', 'bookworm'] as const;

const SOURCES = ['adbd.ts', 'guest/adbd/init.sh', 'guest/programs.ts', 'guest/kernel.ts', 'guest/cpio.ts'];

/** Paths of the two files from which QEMU boots the guest. */
export interface AdbdGuest {
  kernel: string;
  initramfs: string;
}

/** Returns the guest for an architecture. The first call makes it. */
export async function adbdGuest(
  architecture: GuestArchitecture,
  progress: (text: string) => void,
): Promise<AdbdGuest> {
  const initramfs = await madeOnce(recipeOf(architecture), async (work, result) => {
    const packages = new Packages(join(cacheFolder(), 'packages', architecture), { architecture, progress });
    const kernelFiles = await unpackKernel(packages, `linux-image-cloud-${architecture}`);
    const busybox = join(await packages.unpack('busybox-static'), 'bin', 'busybox');
    const backports = new Packages(join(cacheFolder(), 'packages', `${architecture}-backports`), {
      architecture,
      suites: SUITES,
      progress,
    });
    const entries = await adbdEntries(await backports.unpackWithDependencies('adbd'), architecture);
    const init = new URL('guest/adbd/init.sh', import.meta.url);
    await writeFile(result, await firstFileSystem({ kernelFiles, busybox, init, modules: MODULES, entries }));
    const kernel = join(work, 'kernel');
    await copyFile(await onlyEntry(join(kernelFiles, 'boot'), 'vmlinuz-'), kernel);
    // The kernel is in its place before the file that shows that the guest is made.
    await rename(kernel, join(dirname(work), 'kernel'));
    progress('made the guest with adbd');
  });
  return { kernel: join(dirname(initramfs), 'kernel'), initramfs };
}

function recipeOf(architecture: GuestArchitecture): Recipe {
  const sources = SOURCES.map((path) => new URL(path, import.meta.url));
  const tools = { 'apt-get': 'apt', 'dpkg-deb': 'dpkg' };
  return { name: `adbd-${architecture}`, file: 'initramfs', sources, tools };
}

async function main(): Promise<void> {
  const [architecture] = process.argv.slice(2);
  if (architecture !== 'amd64' && architecture !== 'arm64') {
    throw new Error('usage: node hack/adbd.ts amd64|arm64');
  }
  const guest = await adbdGuest(architecture, (text) => process.stderr.write(`guest with adbd: ${text}\n`));
  process.stdout.write(`${guest.kernel}\n${guest.initramfs}\n`);
}

if (import.meta.main) {
  await runCommand(main);
}
