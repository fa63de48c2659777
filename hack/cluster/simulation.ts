/** Waits until KWOK manages the hosts that were created for it. */
import { randomBytes } from 'node:crypto';
import type { KubeClient } from '../../kube/client.ts';
import { type Lease, LEASES, PODS } from '../../kube/core.ts';
import { SERVICE_ACCOUNTS } from './serviceaccounts.ts';
import { waitFor } from '../wait.ts';

/** Time limit until KWOK has created the Leases. It creates a few hundred a second, and far fewer on a busy machine. */
const TAKEN_MILLISECONDS = 120_000;
/** Time limit until a Pod runs. KWOK needs 50 ms once it has seen the Lease. A Pod that KWOK skipped is never checked again. */
const PROBE_MILLISECONDS = 2_000;
/** Limit of attempts to find a Pod that runs. The time in which KWOK skips a Pod lasts only milliseconds. */
const PROBES = 20;

/**
 * Resolves when a Pod that is bound to any of these hosts will run. KWOK skips a Pod forever if the Pod was created after KWOK created the
 * host's Lease, but before KWOK's watch showed this Lease. The watch is in order: if a Pod runs on the host with the last Lease, KWOK has
 * seen all Leases.
 */
export async function untilSimulated(client: KubeClient, names: readonly string[]): Promise<void> {
  const wanted = new Set(names);
  const leases = await waitFor(
    `KWOK to take ${names.length} hosts`,
    async () => {
      const { items } = await client.list(LEASES, { namespace: 'kube-node-lease' });
      const found = items.filter(({ metadata }) => wanted.has(metadata.name));
      return found.length === names.length && found;
    },
    { deadlineMilliseconds: TAKEN_MILLISECONDS },
  );
  await untilPodsAllowed(client, 'default');
  const last = leases.reduce((latest, lease) => (version(lease) > version(latest) ? lease : latest));
  for (let probe = 0; probe < PROBES; probe += 1) {
    if (await podRuns(client, last.metadata.name)) {
      return;
    }
  }
  throw new Error(`KWOK runs no Pod on ${last.metadata.name}`);
}

/** Resolves when a new namespace accepts Pods. The controller-manager must create its ServiceAccount first. */
export async function untilPodsAllowed(client: KubeClient, namespace: string): Promise<void> {
  await waitFor(`the ServiceAccount of ${namespace}`, () =>
    client.get(SERVICE_ACCOUNTS, { namespace, name: 'default' }),
  );
}

/**
 * Returns the version of a Lease. Versions have the order of the API server's writes. Since Kubernetes 1.35 clients may compare versions.
 */
function version(lease: Lease): bigint {
  return BigInt(lease.metadata.resourceVersion ?? '0');
}

async function podRuns(client: KubeClient, nodeName: string): Promise<boolean> {
  const ref = { namespace: 'default', name: `simulated-${randomBytes(4).toString('hex')}` };
  await client.create(PODS, {
    apiVersion: 'v1',
    kind: 'Pod',
    metadata: ref,
    spec: {
      nodeName,
      automountServiceAccountToken: false,
      containers: [{ name: 'probe', image: 'probe' }],
    },
  });
  const runs = await waitFor(
    'a Pod to run',
    async () => (await client.get(PODS, ref)).status?.phase === 'Running',
    { deadlineMilliseconds: PROBE_MILLISECONDS },
  ).catch(() => false);
  await client.delete(PODS, ref, { gracePeriodSeconds: 0 });
  return runs;
}
