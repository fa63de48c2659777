/** Lock between processes. The lock is a folder, because the kernel lets only one process create a folder. */
import { mkdir, readFile, rm, stat, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { pause } from '../../../base/time.ts';
import { codeOf, isMissing } from '../../../base/errors.ts';
import { isAlive, startTimeOf } from '../processes.ts';
import type { ReportProgress } from './build.ts';

/** Interval between two attempts of a waiting process. */
const RETRY_MILLISECONDS = 500;
/**
 * Time after which a lock without its holder's id is removed. A holder writes its id directly after it creates the folder. If the id is
 * missing for longer, the holder has died.
 */
const NAMELESS_MILLISECONDS = 5_000;

/** Runs `work` while it holds the lock at `path`. If the process with the lock has died, its lock is removed and acquired again. */
export async function withLock<T>(
  path: string,
  progress: ReportProgress,
  work: () => Promise<T>,
): Promise<T> {
  let reported = false;
  while (!(await tryLock(path))) {
    if (!reported) {
      progress(`waiting for another process that fills ${path.replace(/\.lock$/, '')}`);
    }
    reported = true;
    await pause(RETRY_MILLISECONDS);
  }
  try {
    return await work();
  } finally {
    await rm(path, { recursive: true, force: true });
  }
}

async function tryLock(path: string): Promise<boolean> {
  try {
    await mkdir(path);
  } catch (error) {
    if (codeOf(error) !== 'EEXIST') {
      throw error;
    }
    await removeStale(path);
    return false;
  }
  await writeFile(
    join(path, 'holder'),
    JSON.stringify({ pid: process.pid, startTime: await startTimeOf(process.pid) }),
  );
  return true;
}

async function removeStale(path: string): Promise<void> {
  try {
    const holder = JSON.parse(await readFile(join(path, 'holder'), 'utf8')) as {
      pid: number;
      startTime: string;
    };
    if (await isAlive(holder)) {
      return;
    }
  } catch (error) {
    if (!isMissing(error) && !(error instanceof SyntaxError)) {
      throw error;
    }
    const age = await stat(path).then(
      (info) => Date.now() - info.mtimeMs,
      () => 0,
    );
    if (age < NAMELESS_MILLISECONDS) {
      return;
    }
  }
  await rm(path, { recursive: true, force: true });
}
