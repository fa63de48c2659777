/** Makes a base image from distribution packages, for machines that can reach a package mirror but no registry of images. */
import { createHash } from 'node:crypto';
import { existsSync } from 'node:fs';
import { copyFile, mkdir, mkdtemp, readFile, rename, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { cacheDirectory } from '../cache.ts';
import { run } from '../guest/run.ts';
import type { Builder } from './builder.ts';

const ROOT = join(import.meta.dirname, '..', '..');
const ROOT_ARCHIVE = 'root.tar';
/** Release of Debian in the images. */
export const SUITE = 'trixie';
/** Time limit for the root file system: 200 packages over a slow connection, on a busy machine. An idle machine takes 40 s. */
const BOOTSTRAP_TIMEOUT_MILLISECONDS = 900_000;
/** Files that nobody reads in a container. Licences are kept. */
const LEFT_OUT = ['/usr/share/doc/*', '/usr/share/man/*', '/usr/share/locale/*', '/usr/share/info/*'];
const KEPT = ['/usr/share/doc/*/copyright'];

/** Returns the name of the base image, which also has the packages of the operator and the agent. Makes the image at the first call, with mmdebstrap. */
export async function distributionBase(builder: Builder, progress: (text: string) => void): Promise<string> {
  const { packages, bootstrap } = await bootstrapArguments();
  const key = await keyOf(bootstrap);
  const tag = `localhost/berth-base:${key}`;
  if (await builder.has(tag)) {
    return tag;
  }
  const folder = folderOf(key);
  if (!existsSync(join(folder, ROOT_ARCHIVE))) {
    progress(`making a root file system of Debian ${SUITE}: ${packages.join(', ')}`);
    await makeContext(folder, bootstrap);
  }
  await builder.build({ tag, file: join(import.meta.dirname, 'base.Dockerfile'), context: folder });
  return tag;
}

/** Returns true if the cache has the root file system that `distributionBase` would otherwise make with mmdebstrap. */
export async function isBaseMade(): Promise<boolean> {
  const key = await keyOf((await bootstrapArguments()).bootstrap);
  return existsSync(join(folderOf(key), ROOT_ARCHIVE));
}

async function keyOf(bootstrap: readonly string[]): Promise<string> {
  return createHash('sha256')
    .update(JSON.stringify([bootstrap, process.version]))
    .update(await readFile(join(import.meta.dirname, 'base.Dockerfile')))
    .digest('hex')
    .slice(0, 16);
}

function folderOf(key: string): string {
  return join(cacheDirectory(), 'base', key);
}

/** Returns the arguments of mmdebstrap, with the packages that the Dockerfile would install, and without the files that it leaves out. */
async function bootstrapArguments(): Promise<{ packages: string[]; bootstrap: string[] }> {
  const architecture = process.arch === 'x64' ? 'amd64' : process.arch;
  const packages = [
    ...(await readList('operator-packages.sh')),
    ...(await readList('agent-packages.sh', architecture)),
  ];
  const leftOut = [...LEFT_OUT, ...(await readList('left-out.sh'))];
  const bootstrap = [
    '--variant=essential',
    '--format=tar',
    // This skips syncs to the disk. After a crash, the file system is made again.
    '--dpkgopt=force-unsafe-io',
    ...leftOut.map((path) => `--dpkgopt=path-exclude=${path}`),
    ...KEPT.map((path) => `--dpkgopt=path-include=${path}`),
    // Node.js needs this library. Its other libraries are in essential packages.
    `--include=${['libstdc++6', ...packages].join(',')}`,
    SUITE,
  ];
  return { packages, bootstrap };
}

/** Returns the list that a script beside this file prints. */
async function readList(script: string, ...parameters: string[]): Promise<string[]> {
  const { stdout } = await run('sh', [join(import.meta.dirname, script), ...parameters], {
    timeoutMilliseconds: BOOTSTRAP_TIMEOUT_MILLISECONDS,
  });
  return stdout.trim().split(/\s+/);
}

async function makeContext(folder: string, bootstrap: readonly string[]): Promise<void> {
  await mkdir(join(folder, '..'), { recursive: true });
  const work = await mkdtemp(`${folder}-`);
  try {
    await run('mmdebstrap', [...bootstrap, join(work, ROOT_ARCHIVE)], {
      timeoutMilliseconds: BOOTSTRAP_TIMEOUT_MILLISECONDS,
    });
    await copyFile(join(ROOT, 'node_modules', 'node', 'bin', 'node'), join(work, 'node'));
    await rm(folder, { recursive: true, force: true });
    await rename(work, folder);
  } finally {
    await rm(work, { recursive: true, force: true });
  }
}
