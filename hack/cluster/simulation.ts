/** Waiting until KWOK really has the hosts that it was given. */
import { randomBytes } from 'node:crypto';
import type { KubeClient } from '../../kube/client.ts';
import { type Lease, LEASES, PODS } from '../../kube/core.ts';
import { SERVICE_ACCOUNTS } from './serviceaccounts.ts';
import { waitFor } from '../wait.ts';

/** KWOK makes a few hundred Leases a second; a busy machine far fewer. */
const TAKEN_MILLISECONDS = 120_000;
/** KWOK answers within 50 ms once it can; a Pod that it has passed over it never looks at again. */
const PROBE_MILLISECONDS = 2_000;
/** The window in which a Pod is passed over lasts for milliseconds. */
const PROBES = 20;

/**
 * Resolves when a Pod that is bound to any of these hosts will run. KWOK passes over Pods, for good, of hosts whose
 * Lease it has made but not yet seen in its watch. The watch is in order: once a Pod runs on the host whose Lease came
 * last, KWOK has seen the Leases of all.
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

/** Pods are refused in a new namespace until the controller-manager has made its ServiceAccount. */
export async function untilPodsAllowed(client: KubeClient, namespace: string): Promise<void> {
  await waitFor(`the ServiceAccount of ${namespace}`, () =>
    client.get(SERVICE_ACCOUNTS, { namespace, name: 'default' }),
  );
}

/** The API server's own order of writes: since Kubernetes 1.35 clients may compare these numbers. */
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
