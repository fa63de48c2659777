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
