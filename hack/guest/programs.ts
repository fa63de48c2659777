/** Programs of Debian with the libraries that they need, for the first file systems of guests. */
import { readdir, readFile } from 'node:fs/promises';
import { basename, join } from 'node:path';
import { type CpioEntry, DIRECTORY_MODE, EXECUTABLE_MODE } from './cpio.ts';
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
 * Returns entries for the guest agent, the SSH server and bash in `bin`, their loader, and their libraries in `lib`. The caller makes these
 * folders.
 * @throws Error if a library is in none of the packages that Debian names.
 */
export async function programEntries(
  packages: Packages,
  architecture: keyof typeof LOADERS,
): Promise<CpioEntry[]> {
  const libraries = await libraryEntries(LIBRARIES, architecture, await libraryPaths(packages));
  const programs = Object.entries(PROGRAMS).map(
    async ([name, { package: packageName, path }]) =>
      await executableEntry(`bin/${name}`, join(await packages.unpack(packageName), path)),
  );
  return [...(await Promise.all(programs)), ...libraries];
}

/** Returns entries for the loader, and for libraries in `lib`. `files` has the path of each library by its name. */
async function libraryEntries(
  names: readonly string[],
  architecture: keyof typeof LOADERS,
  files: ReadonlyMap<string, string>,
): Promise<CpioEntry[]> {
  const paths = [LOADERS[architecture], ...names.map((name) => `lib/${name}`)];
  return await Promise.all(
    paths.map(async (path) => {
      const file = files.get(basename(path));
      if (file === undefined) {
        throw new Error(`no package that the programs of the guest depend on has ${basename(path)}`);
      }
      return await executableEntry(path, file);
    }),
  );
}

async function executableEntry(path: string, file: string): Promise<CpioEntry> {
  return { path, mode: EXECUTABLE_MODE, content: await readFile(file) };
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

const ADBD = 'usr/lib/android-sdk/platform-tools/adbd';
/** Folders that a client of ADB expects. */
const FOLDERS = ['data', 'data/local', 'data/local/tmp', 'system', 'system/bin'];
/** All libraries that adbd and these libraries themselves are linked with. */
const ADBD_LIBRARIES = [
  'libbase.so.0',
  'libbrotlicommon.so.1',
  'libbrotlidec.so.1',
  'libbrotlienc.so.1',
  'libc.so.6',
  'libcap.so.2',
  'libcrypto.so.0',
  'libcutils.so.0',
  'libgcc_s.so.1',
  'libgcrypt.so.20',
  'libgpg-error.so.0',
  'liblog.so.0',
  'liblz4.so.1',
  'liblzma.so.5',
  'libm.so.6',
  'libprotobuf.so.32',
  'libresolv.so.2',
  'libssl.so.0',
  'libstdc++.so.6',
  'libsystemd.so.0',
  'libz.so.1',
  'libzstd.so.1',
];

/**
 * Returns entries for `bin/adbd`, its loader, its libraries in `lib`, and folders as Android has them.
 *
 * @param files folder with the files of adbd's package and of all packages that it depends on
 * @throws Error if they lack a library.
 */
export async function adbdEntries(files: string, architecture: keyof typeof LOADERS): Promise<CpioEntry[]> {
  const libraries = (await readdir(files, { recursive: true })).filter((path) =>
    /^(usr\/)?lib\/[^/]+-linux-gnu\/(android\/)?[^/]+$/.test(path),
  );
  // The first of several libraries of one name counts.
  const paths = new Map(libraries.toReversed().map((path) => [basename(path), join(files, path)]));
  return [
    ...FOLDERS.map((path) => ({ path, mode: DIRECTORY_MODE })),
    await executableEntry('bin/adbd', join(files, ADBD)),
    ...(await libraryEntries(ADBD_LIBRARIES, architecture, paths)),
  ];
}
