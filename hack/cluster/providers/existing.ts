/** Uses an existing cluster of the user: Berth's objects are created in it, and removed at the end. */
import { execFile } from 'node:child_process';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { writeWholeSync } from '../../../base/files.ts';

/** Writes the current context of KUBECONFIG to `DIRECTORY/kubeconfig`, with certificates and keys inside the file. */
export async function copyKubeconfig(kubectl: string, directory: string): Promise<void> {
  const args = ['config', 'view', '--raw', '--flatten', '--minify', '--output=yaml'];
  const { stdout } = await promisify(execFile)(kubectl, args);
  writeWholeSync(join(directory, 'kubeconfig'), stdout);
}
