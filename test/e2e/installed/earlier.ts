/** Berth as it was at an earlier commit, to be upgraded from. */
import { execFile } from 'node:child_process';
import { access, symlink } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';

const ROOT = join(import.meta.dirname, '..', '..', '..');
const run = promisify(execFile);
/** Images are built on a base that is there by now; a busy machine takes its time. */
const BUILD_MILLISECONDS = 600_000;

/** What people have when they upgrade: the last commit before hosts are marked by the operator. To be moved on with each release. */
const EARLIER_COMMIT = '8ec621d';
export const EARLIER_TAG = 'earlier';

export interface Earlier {
  /** Path of its chart. */
  chart: string;
  /** Paths of its images, tagged {@link EARLIER_TAG}. */
  archives: string[];
}

/** Why it cannot be had: a shallow clone does not reach it. Undefined when it can. */
export async function whyNoEarlier(): Promise<string | undefined> {
  return await run('git', ['cat-file', '-e', `${EARLIER_COMMIT}^{commit}`], { cwd: ROOT }).then(
    () => undefined,
    () => `this clone has no commit ${EARLIER_COMMIT}, from which to upgrade: git fetch --unshallow`,
  );
}

/** Checks it out into `folder` and builds its images with its own program, and with the packages that are installed here. */
export async function buildEarlier(folder: string): Promise<Earlier> {
  await run('git', ['clone', '--quiet', '--shared', '--no-checkout', ROOT, folder]);
  await run('git', ['checkout', '--quiet', EARLIER_COMMIT], { cwd: folder });
  await symlink(join(ROOT, 'node_modules'), join(folder, 'node_modules'));
  const script = join(folder, 'hack', 'images.ts');
  await run(process.execPath, [script, '--tag', EARLIER_TAG], { cwd: folder, timeout: BUILD_MILLISECONDS });
  const archives = ['operator', 'agent'].map((name) => join(folder, 'dist', 'images', `berth-${name}.tar`));
  for (const archive of archives) {
    await access(archive);
  }
  return { chart: join(folder, 'charts', 'berth'), archives };
}
