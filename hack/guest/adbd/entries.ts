/** Debian's adbd with the libraries that it needs, for the guest's first file system. */
import { readdir, readFile } from 'node:fs/promises';
import { basename, join } from 'node:path';
import { type CpioEntry, DIRECTORY_MODE, EXECUTABLE_MODE } from '../cpio.ts';

const ADBD = 'usr/lib/android-sdk/platform-tools/adbd';
/** Folders that a client of ADB expects. */
const FOLDERS = ['data', 'data/local', 'data/local/tmp', 'system', 'system/bin'];
/** All libraries that adbd and these libraries themselves are linked with. */
const LIBRARIES = [
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
/** Paths at which programs of each architecture look for the loader of their libraries. */
const LOADERS = { amd64: 'lib64/ld-linux-x86-64.so.2', arm64: 'lib/ld-linux-aarch64.so.1' };

/**
 * Returns entries for `bin/adbd`, its loader, its libraries in `lib`, and folders as Android has them.
 *
 * @param files folder with the files of adbd's package and of all packages that it depends on
 * @throws Error if they lack a library.
 */
export async function adbdEntries(files: string, architecture: keyof typeof LOADERS): Promise<CpioEntry[]> {
  const paths = (await readdir(files, { recursive: true })).filter((path) =>
    /^(usr\/)?lib\/[^/]+-linux-gnu\/(android\/)?[^/]+$/.test(path),
  );
  const entry = async (path: string, file: string): Promise<CpioEntry> => ({
    path,
    mode: EXECUTABLE_MODE,
    content: await readFile(join(files, file)),
  });
  const library = async (path: string): Promise<CpioEntry> => {
    const file = paths.find((one) => basename(one) === basename(path));
    if (file === undefined) {
      throw new Error(`no package that adbd depends on has ${basename(path)}`);
    }
    return await entry(path, file);
  };
  return [
    ...FOLDERS.map((path) => ({ path, mode: DIRECTORY_MODE })),
    await entry('bin/adbd', ADBD),
    await library(LOADERS[architecture]),
    ...(await Promise.all(LIBRARIES.map(async (name) => await library(`lib/${name}`)))),
  ];
}
