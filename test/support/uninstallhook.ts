/** Runs the hook of `helm uninstall` with the rights that the chart gives it. */
import { spawn } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { parse } from 'yaml';
import type { Cluster } from '../../hack/cluster/index.ts';
import { writeKubeconfig } from '../../hack/cluster/kubeconfig.ts';
import { componentToken } from '../../hack/cluster/tokens.ts';
import { untilAllowed } from './admission.ts';
import { find, type Manifest } from './chart.ts';

const MAIN = join(import.meta.dirname, '..', '..', 'operator', 'main.ts');
const SYSTEM = 'berth-system';

/** Argument of kubectl for requests with the rights of the hook. */
export const AS_HOOK = [`--as=system:serviceaccount:${SYSTEM}:berth-uninstall`];

/** Creates everything that the hook's Job needs, as Helm does before it creates the Job. */
export async function giveRights(cluster: Cluster, hooks: readonly Manifest[]): Promise<void> {
  const input = hooks.filter(({ kind }) => kind !== 'Job').map((one) => JSON.stringify(one));
  const apply = ['apply', '--server-side', '--force-conflicts', '-f', '-'];
  await cluster.kubectl(apply, { input: input.join('\n---\n') });
  await untilAllowed(cluster, AS_HOOK, ['delete', 'nodes']);
  await untilAllowed(cluster, AS_HOOK, ['delete', 'deployments/berth-operator', '-n', SYSTEM]);
}

/**
 * Runs the hook's program as its Job does, with the token of the chart's ServiceAccount.
 * @param hooks objects of the hook
 * @param folder folder for a kubeconfig
 * @param more arguments after those of the Job
 */
export async function runUninstallHook(
  cluster: Cluster,
  hooks: readonly Manifest[],
  folder: string,
  more: readonly string[],
): Promise<{ code: number; said: string }> {
  const [container] = find(hooks, 'Job', 'berth-uninstall')['spec'].template.spec.containers;
  await giveRights(cluster, hooks);
  const kubeconfig = join(folder, 'uninstall.kubeconfig');
  const { clusters } = parse(readFileSync(cluster.kubeconfig, 'utf8')) as {
    clusters: { cluster: Record<string, string> }[];
  };
  const authority = clusters[0]?.cluster['certificate-authority-data'] ?? '';
  writeKubeconfig(kubeconfig, {
    server: cluster.server,
    authority: Buffer.from(authority, 'base64').toString(),
    user: { kind: 'token', token: await componentToken(cluster.client(), 'berth-uninstall', false) },
  });
  const child = spawn(process.execPath, [MAIN, ...(container.args as string[]), ...more], {
    env: { ...process.env, KUBECONFIG: kubeconfig },
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  let said = '';
  for (const stream of [child.stdout, child.stderr]) {
    stream.setEncoding('utf8').on('data', (text: string) => {
      said += text;
    });
  }
  return await new Promise((resolve, reject) => {
    child.once('error', reject);
    child.once('close', (code) => resolve({ code: code ?? 1, said }));
  });
}
