/** Creates and deletes namespaces. */
import { HOSTS_SELECTOR } from '../api/http/host.ts';
import { CUSTOM_PODS_LABEL, DEDICATED_KEY, type ServedNamespaces } from '../api/v1alpha1/names.ts';
import { deleteExisting, type KubeClient } from '../kube/client.ts';
import { type Namespace, NAMESPACES, NODES } from '../kube/core.ts';
import { ActionError } from './error.ts';

/** The message of a refusal names at most this number of hosts, and at most this number of VMs. */
export const NAMED = 5;

/** Creates the namespace. @throws ApiError; the signal's reason when the signal aborts. */
export async function createNamespace(
  client: KubeClient,
  name: string,
  { customPods, signal }: { customPods: boolean; signal?: AbortSignal },
): Promise<Namespace> {
  const labels = {
    // The Pods of machines use host ports, which only the Pod security level "privileged" allows. Admission policies restrict the Pods of
    // users to the level "baseline".
    'pod-security.kubernetes.io/enforce': 'privileged',
    ...(customPods ? { [CUSTOM_PODS_LABEL]: 'true' } : {}),
  };
  return await client.create(NAMESPACES, { metadata: { name, labels } }, { signal });
}

interface Named {
  readonly metadata: { readonly name: string };
}

/** VMs of a namespace: all of them, or at least one more than {@link NAMED}. */
interface RemainingVMs {
  readonly vms: readonly Named[];
  /** True if the caller has no right to see the VMs, so the message names none. */
  readonly areHidden: boolean;
}

/**
 * Deletes the namespace. First, a dry run shows whether the API server allows the deletion. Then this function checks that the namespace has
 * no VMs and no hosts, because the API server would delete everything in it. `listVMs` reads the VMs as the caller may see them.
 *
 * @throws ActionError when the namespace belongs to Berth, or has hosts or VMs; ApiError; errors of `listVMs`.
 */
export async function deleteNamespace(
  client: KubeClient,
  name: string,
  { namespaces, listVMs }: { namespaces: ServedNamespaces; listVMs: () => Promise<RemainingVMs> },
): Promise<void> {
  if ([namespaces.default, namespaces.system].includes(name)) {
    throw new ActionError('refused', `Namespace ${name} belongs to Berth and cannot be deleted`);
  }
  await deleteExisting(client, NAMESPACES, { name }, { dryRun: true });
  const labelSelector = `${HOSTS_SELECTOR},${DEDICATED_KEY}=${name}`;
  const [{ items: hosts }, { vms, areHidden }] = await Promise.all([
    client.list(NODES, { labelSelector }),
    listVMs(),
  ]);
  const left = [formatNames('hosts', hosts), areHidden && vms.length > 0 ? 'VMs' : formatNames('VMs', vms)];
  const remaining = left.filter((text) => text !== undefined);
  if (remaining.length > 0) {
    throw new ActionError('refused', `Namespace ${name} still has ${remaining.join(', and ')}`);
  }
  await deleteExisting(client, NAMESPACES, { name });
}

function formatNames(what: string, objects: readonly Named[]): string | undefined {
  const names = objects.slice(0, NAMED).map(({ metadata }) => metadata.name);
  const more = objects.length > NAMED ? ' and more' : '';
  return names.length === 0 ? undefined : `${what} (${names.join(', ')}${more})`;
}
