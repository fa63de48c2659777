/** Which kind of cluster this machine can have. */
import { whyNotDocker } from './docker.ts';

export type Provider = 'kubeconfig' | 'docker' | 'processes';

/** The one that `BERTH_CLUSTER` names, else a container where Docker answers and can pull, else plain processes. */
export async function chooseProvider(
  asked = process.env['BERTH_CLUSTER'],
  progress = (line: string): unknown => process.stderr.write(`cluster: ${line}\n`),
): Promise<Provider> {
  if (asked === 'kubeconfig' || asked === 'docker' || asked === 'processes') return asked;
  if (asked) throw new Error(`BERTH_CLUSTER must be kubeconfig, docker or processes, not "${asked}"`);
  const why = await whyNotDocker();
  if (why === undefined) return 'docker';
  progress(`no container runtime to use (${why}); plain processes instead`);
  return 'processes';
}
