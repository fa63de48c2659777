/**
 * Makes a root file system for machines, separate from that of the agent. When the agent's container is removed, its files are removed too.
 * Running machines still need some of these files. Therefore the agent copies the files that the hypervisor needs to the data directory,
 * once for each version of the agent's image.
 */
import { listFolders } from '../../base/files.ts';
import { createHash } from 'node:crypto';
import { copyFile, mkdir, readFile, readlink, rename, rm } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import type { Logger } from 'pino';
import { isMissing, isOfSystem, undefinedIf } from '../../base/errors.ts';
import { processFiles } from './process.ts';

export interface OwnRoot {
  /** Returns a command line that runs `command` in this root file system. The command sees `files`, and can write only to `folder`. */
  enclose(
    view: { folder: string; files: readonly string[] },
    command: readonly string[],
  ): [string, ...string[]];
}

interface OwnRootOptions {
  dataDirectory: string;
  logger: Logger;
}

/**
 * Prepares the root file system for machines. Returns undefined if the agent does not run in its container image, or if machines end with
 * the container.
 */
export async function ownRoot({ dataDirectory, logger }: OwnRootOptions): Promise<OwnRoot | undefined> {
  // Paths of two files in the agent's container image: a list of files in the format of `sha256sum`, and machine.sh.
  const { BERTH_MACHINE_FILES: list, BERTH_MACHINE_SCRIPT: script } = process.env;
  if (list === undefined || script === undefined || !(await canOutlive(logger))) {
    return undefined;
  }
  const runtimes = join(dataDirectory, 'runtime');
  const runtime = await installRuntime(list, runtimes);
  const removed = await removeUnused(runtimes, runtime);
  logger.info({ runtime, removed }, 'Machines have a root file system of their own');
  return {
    enclose: ({ folder, files }, command) => [
      'unshare',
      '--mount',
      '--ipc',
      'sh',
      script,
      runtime,
      folder,
      ...files,
      '--',
      ...command,
    ],
  };
}

/** Root directory of the host, as a container with the host's PID namespace sees it. */
const HOST_ROOT = '/proc/1/root';

/** Largest number of links on the way to a file. The kernel has the same limit. */
const LINKS_LIMIT = 40;

/**
 * Returns the path at which this container sees a file of the host. `path` is the path on the host. If a link on the way to the file is
 * absolute, the function follows the links itself. The kernel would look for the link's target in the container.
 */
export async function hostFile(path: string, root = HOST_ROOT): Promise<string> {
  const names = path.split('/');
  let isAbsolute = false;
  let links = 0;
  let found = '/';
  for (let name = names.shift(); name !== undefined; name = names.shift()) {
    const next = join(found, name);
    const target = await undefinedIf(isOfSystem, readlink(join(root, next)));
    if (target === undefined || links === LINKS_LIMIT) {
      found = next;
    } else {
      links += 1;
      names.unshift(...target.split('/'));
      if (target.startsWith('/')) {
        isAbsolute = true;
        found = '/';
      }
    }
  }
  return join(root, isAbsolute ? found : path);
}

/**
 * Returns whether machines can outlive this container. Machines can outlive the container if the container has the host's PID namespace. To
 * find this out, the function compares two mount namespaces. With the host's PID namespace, process 1 is the host's first process, and its
 * mount namespace differs from that of the container.
 */
async function canOutlive(logger: Logger): Promise<boolean> {
  const consequence = 'machines end when this container ends';
  try {
    const [own, host] = await Promise.all([readlink('/proc/self/ns/mnt'), readlink('/proc/1/ns/mnt')]);
    if (own === host) {
      logger.warn(`The container has a separate PID namespace, so ${consequence}`);
    }
    return own !== host;
  } catch (error) {
    if (!(error instanceof Error && 'code' in error)) {
      throw error;
    }
    logger.warn(
      { err: error },
      `The container has no right to read the namespaces of its host, so ${consequence}`,
    );
    return false;
  }
}

/**
 * Copies the listed files to a folder in `runtimes`, unless this folder already has undamaged copies of all files. Returns the path of this
 * folder.
 */
export async function installRuntime(list: string, runtimes: string): Promise<string> {
  const text = await readFile(list, 'utf8');
  const name = createHash('sha256').update(text).digest('hex').slice(0, 16);
  const target = join(runtimes, name);
  const files = [...text.matchAll(/^([0-9a-f]{64}) [ *](\/.*)$/gm)].map(([, sum = '', path = '']) => ({
    sum,
    path,
  }));
  if (await isWhole(target, files)) {
    return target;
  }
  const partial = `${target}.partial`;
  await rm(partial, { recursive: true, force: true });
  for (const { path } of files) {
    await mkdir(dirname(join(partial, path)), { recursive: true });
    await copyFile(path, join(partial, path));
  }
  await rm(target, { recursive: true, force: true });
  await rename(partial, target);
  return target;
}

/**
 * Returns whether the folder has all files with the right checksums. The check is necessary, because files can lose their contents in a
 * crash of the host.
 */
async function isWhole(target: string, files: readonly { sum: string; path: string }[]): Promise<boolean> {
  for (const { sum, path } of files) {
    const content = await undefinedIf(isMissing, readFile(join(target, path)));
    if (content === undefined || createHash('sha256').update(content).digest('hex') !== sum) {
      return false;
    }
  }
  return true;
}

/**
 * Removes the folders in `runtimes` that no process uses, except the folder `keep`. Returns the names of the removed folders. Older folders
 * can still be in use: a machine continues to use the folder of the agent's version that started the machine.
 */
export async function removeUnused(runtimes: string, keep: string): Promise<string[]> {
  let unused = (await listFolders(runtimes)).filter((name) => join(runtimes, name) !== keep);
  // The mount tables of all processes of the host show the folders that machines use. If there is no folder to remove, the tables are not
  // read.
  for await (const { text } of unused.length > 0 ? processFiles('mountinfo') : []) {
    unused = unused.filter((name) => !text.includes(`/runtime/${name}/`));
  }
  for (const name of unused) {
    await rm(join(runtimes, name), { recursive: true });
  }
  return unused;
}
