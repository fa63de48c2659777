/** Deletes a namespace in which nothing runs. */
import { DEDICATED_KEY, HOST_MARK, HOST_VALUE } from '../../api/v1alpha1/names.ts';
import type { KubeClient } from '../../kube/client.ts';
import { NAMESPACES, NODES } from '../../kube/core.ts';
import { apiErrorFrom } from '../../kube/errors.ts';
import { type KubeObject, pathOf } from '../../kube/objects.ts';
import type { CallerClient } from '../callers/caller.ts';
import { listAs } from '../callers/list.ts';
import { StatusError } from '../http/errors.ts';
import { VMS } from '../resources.ts';

/** Number of hosts, and of VMs, that a refusal names. */
const NAMED = 5;

/**
 * Deletes the namespace with the rights of `caller`. The API server deletes everything in a namespace, so the server first looks for VMs
 * and hosts. It does this with its own identity, because the caller may have no right to list VMs. It looks only if the API server would
 * allow the deletion.
 *
 * @throws StatusError 409 when hosts or VMs are in the namespace. @throws ApiError when the API server refuses.
 */
export async function removeNamespace(
  { caller, own }: { caller: CallerClient; own: KubeClient },
  name: string,
): Promise<void> {
  await deletion(caller, name, '?dryRun=All');
  const labelSelector = `${HOST_MARK}=${HOST_VALUE},${DEDICATED_KEY}=${name}`;
  const [{ items: hosts }, { items: vms }] = await Promise.all([
    own.list(NODES, { labelSelector }),
    listAs(caller, VMS, { namespace: name, limit: NAMED + 1 }, nameOf, own),
  ]);
  const left = [named('hosts', hosts), named('VMs', vms)].filter((text) => text !== undefined);
  if (left.length > 0) {
    throw new StatusError(409, `Namespace ${name} still has ${left.join(', and ')}`);
  }
  await deletion(caller, name, '');
}

async function deletion(client: KubeClient, name: string, query: string): Promise<void> {
  const path = pathOf(NAMESPACES, { name });
  const { status, body, retryAfterMilliseconds } = await client.raw('DELETE', path + query);
  if (status >= 400) {
    throw apiErrorFrom(body, status, retryAfterMilliseconds);
  }
}

function nameOf({ metadata: { name } }: KubeObject): { metadata: { name: string } } {
  return { metadata: { name } };
}

function named(what: string, objects: readonly { metadata: { name: string } }[]): string | undefined {
  const names = objects.slice(0, NAMED).map(({ metadata }) => metadata.name);
  const more = objects.length > NAMED ? ' and more' : '';
  return names.length === 0 ? undefined : `${what} (${names.join(', ')}${more})`;
}
