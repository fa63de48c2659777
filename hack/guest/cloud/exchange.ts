/**
 * Turns a root file system of Debian into one of another architecture, so that no program of that architecture has to run. Maintainer scripts
 * have left users, links and settings in the root, which are the same for all architectures. Only the files of packages differ.
 */
import { chmod, lchown, lstat, readdir, readFile, rename, rm, stat, writeFile } from 'node:fs/promises';
import { basename, join } from 'node:path';
import { isMissing, undefinedIf } from '../../../base/errors.ts';
import type { Packages } from '../packages.ts';
import { run } from '../run.ts';

/** Time limit for unpacking 150 packages. An idle machine takes 10 s. */
const UNPACK_TIMEOUT_MILLISECONDS = 300_000;
/** Mode bits that maintainer scripts set: run as the file's owner, or as its group. */
const SET_ID_BITS = 0o6000;
const MODE_BITS = 0o7777;

/**
 * Unpacks packages over the root, and writes the list of each package's files as dpkg has it. Folders keep their owners, and links to
 * folders stay links. Parameters: root, the patterns that stay out as one word, and for each package its archive and its list.
 */
const UNPACK = String.raw`
set -e -o pipefail -f
root=$1 out=$2
shift 2
while [ $# -gt 0 ]; do
  dpkg-deb --fsys-tarfile "$1" |
    tar -C "$root" -xvf - --keep-directory-symlink --no-overwrite-dir $out |
    sed -e 's,^\.,,' -e 's,/$,,' -e 's,^$,/.,' >"$2"
  shift 2
done
`;

export interface Exchange {
  /** Architecture of the root. */
  from: string;
  /** Architecture of `packages`. */
  to: string;
  packages: Packages;
  /** Patterns of paths in packages that stay out. */
  leftOut: readonly string[];
}

interface SpecialFile {
  path: string;
  uid: number;
  gid: number;
  mode: number;
}

/**
 * Replaces all programs and libraries in the root. `work` is an empty folder.
 * @throws Error if a package has another version for the other architecture.
 */
export async function exchangePrograms(root: string, work: string, exchange: Exchange): Promise<void> {
  const { from, to, packages, leftOut } = exchange;
  const database = join(root, 'var', 'lib', 'dpkg');
  const status = await readFile(join(database, 'status'), 'utf8');
  const installed = installedPackages(status, from);
  const archives = await packages.download([...installed.keys()], work);
  const special = await specialFiles(root);
  const steps: string[] = [];
  for (const archive of archives) {
    const name = checkedName(archive, installed);
    const info = await renameInfo(join(database, 'info'), name, exchange);
    await removeFiles(root, `${info}.list`);
    steps.push(archive, `${info}.list`);
  }
  const out = leftOut.map((pattern) => `--exclude=.${pattern}`).join(' ');
  await run('bash', ['-c', UNPACK, 'unpack', root, out, ...steps], {
    timeoutMilliseconds: UNPACK_TIMEOUT_MILLISECONDS,
  });
  await Promise.all(special.map(restore));
  await writeFile(
    join(database, 'status'),
    status.replaceAll(`\nArchitecture: ${from}\n`, `\nArchitecture: ${to}\n`),
  );
  // The loader finds the libraries of Debian without its cache, which has those of the other architecture.
  await rm(join(root, 'etc', 'ld.so.cache'), { force: true });
}

/** Returns the versions of the packages in the root that have files of the architecture, by their names. */
function installedPackages(status: string, architecture: string): Map<string, string> {
  const field = (stanza: string, name: string): string =>
    new RegExp(`^${name}: (.*)$`, 'm').exec(stanza)?.[1] ?? '';
  return new Map(
    status
      .split('\n\n')
      .filter((stanza) => field(stanza, 'Architecture') === architecture)
      .map((stanza) => [field(stanza, 'Package'), field(stanza, 'Version')]),
  );
}

/** Returns the name of the package in an archive, whose name also has the version. A rebuild for one architecture alone counts as equal. */
function checkedName(archive: string, installed: ReadonlyMap<string, string>): string {
  const [name = '', version = ''] = decodeURIComponent(basename(archive)).split('_');
  const source = (text = ''): string => text.replace(/\+b\d+$/, '');
  if (source(installed.get(name)) !== source(version)) {
    throw new Error(`package ${name} is ${installed.get(name)} in the root, but the mirror has ${version}`);
  }
  return name;
}

/** Gives the package's records in dpkg's database the name that they have for the other architecture. Returns their path without an ending. */
async function renameInfo(folder: string, name: string, { from, to }: Exchange): Promise<string> {
  const qualified = `${name}:${from}`;
  const files = (await readdir(folder)).filter((file) => file.startsWith(`${qualified}.`));
  for (const file of files) {
    await rename(join(folder, file), join(folder, `${name}:${to}${file.slice(qualified.length)}`));
  }
  const path = join(folder, files.length > 0 ? `${name}:${to}` : name);
  await rm(`${path}.md5sums`, { force: true });
  return path;
}

/** Removes the files of a package, and keeps its folders. Some of these are links, for example `bin` to `usr/bin`. */
async function removeFiles(root: string, list: string): Promise<void> {
  for (const line of (await readFile(list, 'utf8')).split('\n').filter(Boolean)) {
    const path = join(root, line);
    const entry = await undefinedIf(isMissing, stat(path));
    if (entry?.isDirectory() !== true) {
      await rm(path, { force: true });
    }
  }
}

/** Returns the files whose owner is not root, or that run as their owner or group. Maintainer scripts might have made them so. */
async function specialFiles(root: string): Promise<SpecialFile[]> {
  const found: SpecialFile[] = [];
  // Without the types of entries, Node would follow links, which lead out of the root.
  for (const { parentPath, name } of await readdir(root, { recursive: true, withFileTypes: true })) {
    const path = join(parentPath, name);
    const { uid, gid, mode } = await lstat(path);
    if (uid !== 0 || gid !== 0 || (mode & SET_ID_BITS) !== 0) {
      found.push({ path, uid, gid, mode: mode & MODE_BITS });
    }
  }
  return found;
}

async function restore({ path, uid, gid, mode }: SpecialFile): Promise<void> {
  const entry = await undefinedIf(isMissing, lstat(path));
  if (entry !== undefined && !entry.isSymbolicLink()) {
    await lchown(path, uid, gid);
    await chmod(path, mode);
  }
}
