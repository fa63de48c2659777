/** Which kind of cluster this machine can have. */
import { whyNotDocker } from './docker.ts';

export type Provider = 'kubeconfig' | 'docker' | 'processes';

export interface Choice {
  provider: Provider;
  /** Why it is not one that would have come first. */
  tried: string[];
}

/** The one that `BERTH_CLUSTER` names, else a container where Docker answers and can pull, else plain processes. */
export async function chooseProvider(asked = process.env['BERTH_CLUSTER']): Promise<Choice> {
  if (asked === 'kubeconfig' || asked === 'docker' || asked === 'processes') {
    return { provider: asked, tried: [] };
  }
  if (asked) throw new Error(`BERTH_CLUSTER must be kubeconfig, docker or processes, not "${asked}"`);
  const why = await whyNotDocker();
  if (why === undefined) return { provider: 'docker', tried: [] };
  return { provider: 'processes', tried: [`Docker: ${why}`] };
}
