/**
 * Installs schemathesis, which sends generated requests to an HTTP API. It comes from PyPI into the user's cache, once for each version of
 * Python. `requirements.txt` pins each package by its hash.
 */
import { createHash } from 'node:crypto';
import { existsSync } from 'node:fs';
import { mkdir, mkdtemp, readFile, rename, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { messageOf } from '../../base/errors.ts';
import { cacheDirectory } from '../cache.ts';
import { withLock } from '../cluster/toolchain/lock.ts';
import { run } from '../guest/run.ts';

const REQUIREMENTS = join(import.meta.dirname, 'requirements.txt');
const PYTHON = 'python3';
/** Time limit for 40 MB over a slow connection. */
const INSTALL_MILLISECONDS = 600_000;
/** Time limit of a start of Python on a busy machine. */
const START_MILLISECONDS = 60_000;

export interface Schemathesis {
  readonly program: string;
  /** First parameters. Those of schemathesis follow. */
  readonly parameters: readonly string[];
  /** Variables that the program needs beside its other environment. */
  readonly environment: Readonly<Record<string, string>>;
}

/** Returns the program. The first call on a machine installs it. @throws Error that says what is missing. */
export async function schemathesis(): Promise<Schemathesis> {
  const folder = join(cacheDirectory(), 'schemathesis', await cacheKey());
  if (!existsSync(folder)) {
    await mkdir(join(folder, '..'), { recursive: true });
    await withLock(`${folder}.lock`, tell, async () => await install(folder));
  }
  return {
    program: PYTHON,
    parameters: ['-m', 'schemathesis.cli'],
    environment: { PYTHONPATH: folder },
  };
}

/** Some packages are compiled for one version of Python. */
async function cacheKey(): Promise<string> {
  const { stdout } = await run(
    PYTHON,
    ['-c', 'import sys, sysconfig; print(sys.implementation.cache_tag, sysconfig.get_platform())'],
    { timeoutMilliseconds: START_MILLISECONDS },
  );
  const hash = createHash('sha256').update(await readFile(REQUIREMENTS));
  return `${stdout.trim().replaceAll(/[^\w.]+/g, '-')}-${hash.digest('hex').slice(0, 12)}`;
}

/** The folder appears when it is complete. */
async function install(folder: string): Promise<void> {
  if (existsSync(folder)) {
    return;
  }
  tell('installing from PyPI');
  const work = await mkdtemp(`${folder}.new-`);
  try {
    await pip(['--target', work, '--requirement', REQUIREMENTS]);
    await rename(work, folder);
  } catch (error) {
    const needs = 'It needs Python 3.11 or newer, its pip (Debian: python3-pip), and a mirror of PyPI';
    throw new Error(`schemathesis cannot be installed. ${needs}: ${messageOf(error)}`, { cause: error });
  } finally {
    await rm(work, { recursive: true, force: true });
  }
}

async function pip(parameters: readonly string[]): Promise<void> {
  const quiet = ['--quiet', '--disable-pip-version-check', '--no-input', '--root-user-action', 'ignore'];
  // Sources would run code at their build, and need compilers.
  const pinned = ['--require-hashes', '--only-binary', ':all:', '--no-deps'];
  await run(PYTHON, ['-m', 'pip', 'install', ...quiet, ...pinned, ...parameters], {
    timeoutMilliseconds: INSTALL_MILLISECONDS,
  });
}

function tell(line: string): void {
  process.stderr.write(`schemathesis: ${line}\n`);
}
