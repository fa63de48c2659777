/** Builds Berth from an earlier commit, for tests of upgrades. */
import { execFile } from 'node:child_process';
import { access, symlink } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';

const ROOT = join(import.meta.dirname, '..', '..', '..');
const run = promisify(execFile);
/** Time limit. The images are built on an existing base, which takes some time on a busy machine. */
const BUILD_MILLISECONDS = 600_000;

/**
 * A commit from which an upgrade works. Before the first release, change it with each change of what is stored; then, with each release. It is
 * the commit that put ImageCacheEntries into namespaces, because Kubernetes cannot change the scope of a kind.
 */
const EARLIER_COMMIT = 'fd322fa1';
export const EARLIER_TAG = 'earlier';

export interface Earlier {
  /** Path of the chart. */
  chart: string;
  /**
   * Paths of the images, tagged {@link EARLIER_TAG}.
   */
  archives: string[];
}

/** Returns the reason why the earlier commit cannot be checked out, for example in a shallow clone. Undefined if it can. */
export async function whyNoEarlier(): Promise<string | undefined> {
  return await run('git', ['cat-file', '-e', `${EARLIER_COMMIT}^{commit}`], { cwd: ROOT }).then(
    () => undefined,
    () => `this clone has no commit ${EARLIER_COMMIT}, from which to upgrade: git fetch --unshallow`,
  );
}

/** Checks the commit out into `folder`, and builds its images with its own program and the packages of this clone. */
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
