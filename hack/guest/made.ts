/** Makes a file from distribution packages once, and keeps it in the user's cache folder. */
import { createHash } from 'node:crypto';
import { mkdir, mkdtemp, readFile, rename, rm, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { codeOf } from '../../base/errors.ts';
import { findProgram } from '../../base/exec.ts';
import { cacheDirectory } from '../cache.ts';

export interface Recipe {
  /** Name of the thing to make. Its folder has this name and a hash of the sources. */
  readonly name: string;
  /** Name of the made file. */
  readonly file: string;
  /** Files that make the thing. If one of them changes, the thing is made again. */
  readonly sources: readonly URL[];
  /** Programs that the work needs, each with the Debian package that it is in. */
  readonly tools: Readonly<Record<string, string>>;
}

/** Returns the folder of all made things. */
export function cacheFolder(): string {
  return join(cacheDirectory(), 'guest');
}

/** Returns whether the cache has the thing, so that no tool is needed. */
export async function isMade(recipe: Recipe): Promise<boolean> {
  return await isFile(join(await folderOf(recipe), recipe.file));
}

/**
 * Returns the path of the made file. If the cache lacks the file, `make` gets an empty folder and a path in it for the result.
 * The folder is removed afterwards.
 *
 * @throws Error that names the packages to install.
 */
export async function madeOnce(
  recipe: Recipe,
  make: (work: string, result: string) => Promise<void>,
): Promise<string> {
  const folder = await folderOf(recipe);
  const file = join(folder, recipe.file);
  if (await isFile(file)) {
    return file;
  }
  await requireTools(recipe);
  await mkdir(folder, { recursive: true });
  const work = await mkdtemp(join(folder, 'work-'));
  try {
    const result = join(work, recipe.file);
    await make(work, result);
    await rename(result, file);
  } finally {
    await rm(work, { recursive: true, force: true });
  }
  return file;
}

/** Returns the folder of the thing. Its name changes with the sources, and not with the versions of packages. */
async function folderOf({ name, sources }: Recipe): Promise<string> {
  const hash = createHash('sha256');
  for (const source of sources) {
    hash.update(await readFile(source));
  }
  return join(cacheFolder(), `${name}-${hash.digest('hex').slice(0, 16)}`);
}

async function requireTools({ name, tools }: Recipe): Promise<void> {
  const missing: string[] = [];
  for (const [program, packageName] of Object.entries(tools)) {
    if ((await findProgram(program, ['/usr/sbin', '/sbin'])) === undefined) {
      missing.push(packageName);
    }
  }
  if (missing.length > 0) {
    throw new Error(
      `Debian's tools make the image ${name}; install: ${[...new Set(missing)].join(' ')} (apt-get install …)`,
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
