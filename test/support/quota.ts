/** Makes ResourceQuotas. */
import type { Cluster } from '../../hack/cluster/index.ts';
import { waitFor } from '../../hack/wait.ts';

/**
 * Makes a quota, and waits until the controller-manager has counted it. Until then, the API server refuses objects with other words. `hard`
 * has the form of `kubectl create quota --hard`.
 */
export async function createQuota(
  cluster: Cluster,
  { namespace, name }: { namespace: string; name: string },
  hard: string,
): Promise<void> {
  const quota = ['quota', name, '--namespace', namespace];
  await cluster.kubectl(['create', ...quota, `--hard=${hard}`]);
  await waitFor(`quota ${name} to be counted`, async () => {
    const { stdout } = await cluster.kubectl(['get', ...quota, '--output=json']);
    const { used } = (JSON.parse(stdout) as { status?: { used?: Record<string, string> } }).status ?? {};
    const names = hard.split(',').map((limit) => limit.slice(0, limit.indexOf('=')));
    return used !== undefined && names.every((resource) => resource in used);
  });
}
