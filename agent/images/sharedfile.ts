/** Files that an administrator put below a configured folder, used where they lie. */
import { createHash } from 'node:crypto';
import { createReadStream } from 'node:fs';
import { realpath, stat } from 'node:fs/promises';
import { isAbsolute, join, relative } from 'node:path';
import { codeOf, isMissing } from '../../base/errors.ts';
import { ImageError } from './local/types.ts';

/**
 * The real path of `path`, which counts from the roots: the first root that has it wins.
 *
 * @throws ImageError; a link that leads out of its root is refused.
 */
export async function resolveBelowRoots(path: string, roots: readonly string[]): Promise<string> {
  if (roots.length === 0) {
    throw new ImageError('ImageSourceUnsupported', 'this host has no folder for shared files (sharedRoots)');
  }
  for (const root of roots) {
    const real = await realPathOf(join(root, path));
    const realRoot = await realPathOf(root);
    if (real !== undefined && realRoot !== undefined && isBelow(real, realRoot)) {
      return await regularFile(real, path);
    }
  }
  // One message for both: whether a file outside exists is nobody's business.
  throw new ImageError('ImageNotFound', `${path} is not a file below ${roots.join(' or ')}`);
}

async function regularFile(real: string, path: string): Promise<string> {
  if (!(await stat(real)).isFile()) {
    throw new ImageError('ImageInvalid', `${path} is not a regular file`);
  }
  return real;
}

function isBelow(path: string, root: string): boolean {
  const way = relative(root, path);
  return way !== '' && way !== '..' && !way.startsWith('../') && !isAbsolute(way);
}

async function realPathOf(path: string): Promise<string | undefined> {
  try {
    return await realpath(path);
  } catch (error) {
    const code = codeOf(error);
    if (isMissing(error) || code === 'ENOTDIR' || code === 'ELOOP' || code === 'EACCES') {
      return undefined;
    }
    throw error;
  }
}

/** Changes when the file is another or was written to. */
export async function fileIdentity(path: string): Promise<string> {
  const { dev, ino, size, mtimeNs } = await stat(path, { bigint: true });
  return `${dev}:${ino}:${size}:${mtimeNs}`;
}

export async function fileDigest(path: string, signal?: AbortSignal): Promise<string> {
  const hash = createHash('sha256');
  for await (const chunk of createReadStream(path, { signal, highWaterMark: 1024 * 1024 })) {
    hash.update(chunk as Buffer);
  }
  return hash.digest('hex');
}
