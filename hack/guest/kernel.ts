/** A kernel of the distribution with the modules that a guest loads by itself. */
import { readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { gzipSync } from 'node:zlib';
import { type CpioEntry, cpioArchive, DIRECTORY_MODE, EXECUTABLE_MODE, FILE_MODE } from './cpio.ts';
import { onlyEntry } from './disk.ts';
import type { Packages } from './packages.ts';

/** A first file system for the kernel to unpack. */
export interface FirstFileSystem {
  /** Folder of the unpacked kernel package. */
  kernelFiles: string;
  /** Path of busybox, which is linked statically. */
  busybox: string;
  /** Script that is the first process. */
  init: URL;
  /** Wanted modules. A question mark follows a name that some kernels have built in. */
  modules: readonly string[];
  /** Further files. The folders `bin`, `lib`, `lib64`, `modules` and `etc` exist. */
  entries?: readonly CpioEntry[];
}

/** Unpacks the kernel that a package such as linux-image-amd64 depends on. Returns the folder. */
export async function unpackKernel(packages: Packages, name: string): Promise<string> {
  const dependencies = await packages.dependencies([name]);
  const kernelPackage = dependencies.find((dependency) => dependency.startsWith('linux-image-'));
  if (kernelPackage === undefined) {
    throw new Error(`no kernel package for ${name} in the package lists`);
  }
  return await packages.unpack(kernelPackage);
}

export async function firstFileSystem(parts: FirstFileSystem): Promise<Buffer> {
  const { kernelFiles, busybox, init, modules, entries = [] } = parts;
  return gzipSync(
    cpioArchive([
      ...['bin', 'lib', 'lib64', 'modules', 'etc'].map((path) => ({ path, mode: DIRECTORY_MODE })),
      { path: 'init', mode: EXECUTABLE_MODE, content: await readFile(init) },
      { path: 'bin/busybox', mode: EXECUTABLE_MODE, content: await readFile(busybox) },
      ...entries,
      ...(await moduleEntries(kernelFiles, modules)),
    ]),
  );
}

/** Returns the modules and all that they depend on, and `modules/order`, which lists them in the order in which they are loaded. */
async function moduleEntries(kernelFiles: string, wanted: readonly string[]): Promise<CpioEntry[]> {
  const folder = await onlyEntry(join(kernelFiles, 'lib', 'modules'));
  const files = (await readdir(folder, { recursive: true })).filter((path) => path.endsWith('.ko'));
  const paths = new Map(files.map((path) => [moduleName(path), join(folder, path)]));
  const found = new Map<string, Buffer>();
  const add = async (name: string): Promise<void> => {
    const path = paths.get(name);
    if (path === undefined) {
      throw new Error(`the kernel package has no module ${name}`);
    }
    const content = await readFile(path);
    for (const dependency of dependenciesOf(content).filter((one) => !found.has(one))) {
      await add(dependency);
    }
    found.set(name, content);
  };
  for (const entry of wanted) {
    const name = entry.replace('?', '');
    if (!found.has(name) && (name === entry || paths.has(name))) {
      await add(name);
    }
  }
  const order = [...found.keys()].map((name) => `${name}.ko\n`).join('');
  return [
    ...[...found].map(([name, content]) => ({ path: `modules/${name}.ko`, mode: FILE_MODE, content })),
    { path: 'modules/order', mode: FILE_MODE, content: Buffer.from(order) },
  ];
}

/** Returns the names of the modules that a module says it depends on, in its section of facts. */
function dependenciesOf(module: Buffer): string[] {
  const [, names = ''] = /\0depends=([^\0]*)\0/.exec(module.toString('latin1')) ?? [];
  return names.split(',').filter(Boolean).map(moduleName);
}

function moduleName(path: string): string {
  return path
    .slice(path.lastIndexOf('/') + 1)
    .replace(/\.ko$/, '')
    .replaceAll('-', '_');
}
