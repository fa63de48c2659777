/** Chooses where a cluster runs, and starts its programs there: as plain processes, in containers, or in the user's own cluster. */
import { execFile } from 'node:child_process';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { writeWholeSync } from '../../../base/files.ts';
import { type ProcessPlan, type ProcessRecord, startProcess } from '../processes.ts';

/** Environment in which a cluster runs. */
export type Provider = 'kubeconfig' | 'docker' | 'processes';

/** Returns the provider that `BERTH_CLUSTER` names; plain processes when the variable is empty. */
export function chooseProvider(asked = process.env['BERTH_CLUSTER'] ?? ''): Provider {
  if (asked === 'kubeconfig' || asked === 'docker' || asked === 'processes') {
    return asked;
  }
  if (asked === '') {
    return 'processes';
  }
  throw new Error(`BERTH_CLUSTER must be kubeconfig, docker or processes, not "${asked}"`);
}

/** Writes the current context of KUBECONFIG to `DIRECTORY/kubeconfig`, with certificates and keys inside the file. */
export async function copyKubeconfig(kubectl: string, directory: string): Promise<void> {
  const args = ['config', 'view', '--raw', '--flatten', '--minify', '--output=yaml'];
  const { stdout } = await promisify(execFile)(kubectl, args);
  writeWholeSync(join(directory, 'kubeconfig'), stdout);
}

/** Starts a program according to its plan, as a plain process or in a container. The container's process is recorded in the same way. */
export async function launch(directory: string, plan: ProcessPlan): Promise<ProcessRecord> {
  const { image } = plan;
  if (image === undefined) {
    return await startProcess(directory, plan);
  }
  // This import is dynamic, because callers without containers should not load the code that starts them.
  const { startContainer } = await import('./docker.ts');
  return await startContainer(directory, { ...plan, image });
}
