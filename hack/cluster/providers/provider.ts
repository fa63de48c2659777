/** What a cluster runs in. */
export type Provider = 'kubeconfig' | 'docker' | 'processes';

/** The one that `BERTH_CLUSTER` names; plain processes when it names none. */
export function chooseProvider(asked = process.env['BERTH_CLUSTER'] ?? ''): Provider {
  if (asked === 'kubeconfig' || asked === 'docker' || asked === 'processes') {
    return asked;
  }
  if (asked === '') {
    return 'processes';
  }
  throw new Error(`BERTH_CLUSTER must be kubeconfig, docker or processes, not "${asked}"`);
}
