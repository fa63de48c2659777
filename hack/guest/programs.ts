/** Debian's QEMU guest agent, SSH server and bash with the libraries that they need, for the guest's first file system. */
import { readdir, readFile } from 'node:fs/promises';
import { basename, join } from 'node:path';
import { type CpioEntry, EXECUTABLE_MODE } from './cpio.ts';
import type { Packages } from './packages.ts';

/** Programs in `bin` of the guest, each with its package and its path in the package. */
const PROGRAMS = {
  bash: { package: 'bash', path: 'bin/bash' },
  'qemu-ga': { package: 'qemu-guest-agent', path: 'usr/sbin/qemu-ga' },
  dropbear: { package: 'dropbear-bin', path: 'usr/sbin/dropbear' },
};
/** All libraries that the programs and these libraries themselves are linked with. */
const LIBRARIES = [
  'libc.so.6',
  'libcrypt.so.1',
  'libglib-2.0.so.0',
  'libgmodule-2.0.so.0',
  'libgmp.so.10',
  'libm.so.6',
  'libnuma.so.1',
  'libpcre2-8.so.0',
  'libtinfo.so.6',
  'libtomcrypt.so.1',
  'libtommath.so.1',
  'libudev.so.1',
  'liburing.so.2',
  'libz.so.1',
];
/** Paths at which programs of each architecture look for the loader of their libraries. */
const LOADERS = { amd64: 'lib64/ld-linux-x86-64.so.2', arm64: 'lib/ld-linux-aarch64.so.1' };

/**
 * Returns entries for the programs in `bin`, their loader, and their libraries in `lib`. The caller makes these folders.
 * @throws Error if a library is in none of the packages that Debian names.
 */
export async function programEntries(
  packages: Packages,
  architecture: keyof typeof LOADERS,
): Promise<CpioEntry[]> {
  const paths = await libraryPaths(packages);
  const loader = LOADERS[architecture];
  const entry = async (path: string, file: string): Promise<CpioEntry> => ({
    path,
    mode: EXECUTABLE_MODE,
    content: await readFile(file),
  });
  const library = async (path: string): Promise<CpioEntry> => {
    const file = paths.get(basename(path));
    if (file === undefined) {
      throw new Error(`no package that the programs of the guest depend on has ${basename(path)}`);
    }
    return await entry(path, file);
  };
  return await Promise.all([
    ...Object.entries(PROGRAMS).map(
      async ([name, { package: packageName, path }]) =>
        await entry(`bin/${name}`, join(await packages.unpack(packageName), path)),
    ),
    library(loader),
    ...LIBRARIES.map(async (name) => await library(`lib/${name}`)),
  ]);
}

/** Returns the files of all libraries that the packages of the programs depend on, by their names. */
async function libraryPaths(packages: Packages): Promise<Map<string, string>> {
  const names = new Set<string>();
  let added = Object.values(PROGRAMS).map((program) => program.package);
  while (added.length > 0) {
    added.forEach((name) => names.add(name));
    const dependencies = new Set(await packages.dependencies(added));
    added = [...dependencies].filter((other) => /^(lib|zlib)/.test(other) && !names.has(other));
  }
  const paths = new Map<string, string>();
  for (const name of names) {
    const folder = await packages.unpack(name);
    const files = await readdir(folder, { recursive: true });
    // A link below lib64 names the machine's own loader, so only the folders of libraries count.
    const libraries = files.filter((path) => /^(usr\/)?lib\/[^/]+-linux-gnu\/[^/]+$/.test(path));
    for (const path of libraries) {
      paths.set(basename(path), join(folder, path));
    }
  }
  return paths;
}
