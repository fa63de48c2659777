/** Debian's QEMU guest agent with the libraries that it needs, for the guest's first file system. */
import { readdir, readFile } from 'node:fs/promises';
import { basename, join } from 'node:path';
import { type CpioEntry, EXECUTABLE_MODE } from './cpio.ts';
import type { Packages } from './packages.ts';

const PACKAGE = 'qemu-guest-agent';
const PROGRAM = 'usr/sbin/qemu-ga';
/** Everything that the program and these libraries themselves are linked with. */
const LIBRARIES = [
  'libc.so.6',
  'libglib-2.0.so.0',
  'libgmodule-2.0.so.0',
  'libm.so.6',
  'libnuma.so.1',
  'libpcre2-8.so.0',
  'libudev.so.1',
  'liburing.so.2',
];
/** Where programs of each architecture look for what loads their libraries. */
const LOADERS = { amd64: 'lib64/ld-linux-x86-64.so.2', arm64: 'lib/ld-linux-aarch64.so.1' };

/**
 * Entries for the program in `bin`, its loader, and its libraries in `lib`; these folders are the caller's to make.
 * @throws Error if a library is in none of the packages that Debian names.
 */
export async function guestAgentEntries(
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
      throw new Error(`no package that ${PACKAGE} depends on has ${basename(path)}`);
    }
    return await entry(path, file);
  };
  return await Promise.all([
    entry('bin/qemu-ga', join(await packages.unpack(PACKAGE), PROGRAM)),
    library(loader),
    ...LIBRARIES.map(async (name) => await library(`lib/${name}`)),
  ]);
}

/** Files of all libraries that the agent's package depends on, by their names. */
async function libraryPaths(packages: Packages): Promise<Map<string, string>> {
  const names = new Set([PACKAGE]);
  for (const name of names) {
    const dependencies = await packages.dependencies(name);
    for (const dependency of dependencies.filter((other) => other.startsWith('lib'))) {
      names.add(dependency);
    }
  }
  const paths = new Map<string, string>();
  for (const name of names) {
    const folder = await packages.unpack(name);
    const files = await readdir(folder, { recursive: true });
    // A link below lib64 names the machine's own loader, so only what lies in the folders of libraries counts.
    const libraries = files.filter((path) => /^(usr\/)?lib\/[^/]+-linux-gnu\/[^/]+$/.test(path));
    for (const path of libraries) {
      paths.set(basename(path), join(folder, path));
    }
  }
  return paths;
}
