/**
 * Copies a work tree and tries mutants in the copy. All processes in the copy end with it. This is necessary because test runs that were
 * killed leave clusters behind, whose processes are not in the run's process group.
 */
import { execFileSync } from 'node:child_process';
import {
  cpSync,
  lstatSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readlinkSync,
  realpathSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { codeOf } from '../../base/errors.ts';
import { isAlive, startTimeOf } from '../cluster/processes.ts';
import { readOwner, writeOwner } from '../cluster/state.ts';
import { type Mutant, mutate, productFiles, type SourceFile, workTree } from './definitions.ts';
import { waitFor } from '../wait.ts';

const PREFIX = 'berth-mutants-';

/** Copy of a work tree. Mutants change files only there. */
export class MutantCopy implements AsyncDisposable {
  readonly root: string;
  readonly #files: readonly SourceFile[];

  private constructor(root: string, files: readonly SourceFile[]) {
    this.root = root;
    this.#files = files;
  }

  /** Copies the work tree at `source`, with uncommitted changes, to the folder for temporary files. */
  static async of(source: string): Promise<MutantCopy> {
    const root = mkdtempSync(join(realpathSync(tmpdir()), PREFIX));
    writeOwner(root, { pid: process.pid, startTime: (await startTimeOf(process.pid)) ?? '' });
    for (const path of workTree(source)) {
      mkdirSync(join(root, dirname(path)), { recursive: true });
      cpSync(join(source, path), join(root, path), { verbatimSymlinks: true });
    }
    symlinkSync(join(source, 'node_modules'), join(root, 'node_modules'));
    return new MutantCopy(root, productFiles(source));
  }

  /**
   * Runs `work` while the mutant is in the product, then ends all remaining processes in the copy.
   *
   * @throws Error when the mutant cannot be applied
   */
  async with<T>(mutant: Mutant, work: () => Promise<T>): Promise<T> {
    const { path, text, mutated } = mutate(mutant, this.#files);
    try {
      this.#write(path, mutated);
      return await work();
    } finally {
      try {
        await endProcessesIn(this.root);
      } finally {
        this.#write(path, text);
      }
    }
  }

  /** Writes a file. After a change of a kind, the files that are generated from it are generated again. */
  #write(path: string, text: string): void {
    writeFileSync(join(this.root, path), text);
    if (path.startsWith('api/')) {
      for (const generator of ['generate.ts', 'values.ts']) {
        execFileSync(process.execPath, [join('hack', generator)], { cwd: this.root, stdio: 'pipe' });
      }
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await remove(this.root);
  }
}

/** Removes the copies that killed runs could not remove. */
export async function removeLeftCopies(): Promise<void> {
  const folder = realpathSync(tmpdir());
  for (const name of readdirSync(folder).filter((one) => one.startsWith(PREFIX))) {
    const root = join(folder, name);
    const isOurs = lstatSync(root, { throwIfNoEntry: false })?.uid === process.getuid?.();
    const owner = isOurs ? readOwner(root) : undefined;
    if (owner !== undefined && !(await isAlive(owner))) {
      await remove(root);
    }
  }
}

async function remove(root: string): Promise<void> {
  await endProcessesIn(root);
  rmSync(root, { recursive: true, force: true });
}

/** Kills every process whose working folder is in this folder, and processes that they start meanwhile. Works only with a /proc. */
async function endProcessesIn(folder: string): Promise<void> {
  if (process.platform !== 'linux') {
    return;
  }
  await waitFor(`the end of all processes in ${folder}`, () => {
    const pids = readdirSync('/proc').filter((name) => /^\d+$/.test(name) && worksIn(name, folder));
    pids.forEach(kill);
    return pids.length === 0;
  });
}

function kill(pid: string): void {
  try {
    process.kill(Number(pid), 'SIGKILL');
  } catch (error) {
    // The process has ended meanwhile.
    if (codeOf(error) !== 'ESRCH') {
      throw error;
    }
  }
}

function worksIn(pid: string, folder: string): boolean {
  try {
    const place = readlinkSync(`/proc/${pid}/cwd`);
    return place === folder || place.startsWith(`${folder}/`);
  } catch (error) {
    // The process has ended meanwhile, or belongs to another user.
    if (['ENOENT', 'ESRCH', 'EACCES'].includes(codeOf(error) ?? '')) {
      return false;
    }
    throw error;
  }
}
