/** Deletes a namespace that has no VMs and no hosts. */
import { HOSTS_SELECTOR } from '../../api/http/host.ts';
import { NAMED, stillUsed } from '../../api/http/namespaceitem.ts';
import { DEDICATED_KEY, GROUP } from '../../api/v1alpha1/names.ts';
import { deleteExisting, type KubeClient } from '../../kube/client.ts';
import { NAMESPACES, NODES } from '../../kube/core.ts';
import type { KubeObject } from '../../kube/objects.ts';
import { callerMay } from '../callers/access.ts';
import type { CallerClient } from '../callers/caller.ts';
import { listAs } from '../callers/list.ts';
import { StatusError } from '../http/errors.ts';
import { VMS } from '../../api/v1alpha1/resources.ts';

/**
 * Deletes the namespace with the rights of `own`. The caller must have the right to delete namespaces with the HTTP API. First, a dry run
 * shows whether the API server allows the deletion. Then this function checks that the namespace has no VMs and no hosts, because the API
 * server would delete everything in it. If `caller` has no right to list VMs, the refusal names none.
 *
 * @throws StatusError 409 when hosts or VMs are in the namespace. @throws ApiError when the API server refuses.
 */
export async function removeNamespace(
  { caller, own }: { caller: CallerClient; own: KubeClient },
  name: string,
): Promise<void> {
  await deleteExisting(own, NAMESPACES, { name }, { dryRun: true });
  const labelSelector = `${HOSTS_SELECTOR},${DEDICATED_KEY}=${name}`;
  const [{ items: hosts }, { items: vms }] = await Promise.all([
    own.list(NODES, { labelSelector }),
    listAs(caller, VMS, { namespace: name, limit: NAMED + 1 }, nameOf, own),
  ]);
  const hidesVMs = vms.length > 0 && !(await maySeeVMs(caller, name));
  const refusal = stillUsed(name, { hosts, vms, hidesVMs });
  if (refusal !== undefined) {
    throw new StatusError(409, refusal);
  }
  await deleteExisting(own, NAMESPACES, { name });
}

async function maySeeVMs(caller: KubeClient, namespace: string): Promise<boolean> {
  return await callerMay(caller, { verb: 'list', group: GROUP, resource: VMS.plural, namespace });
}

function nameOf({ metadata: { name } }: KubeObject): { metadata: { name: string } } {
  return { metadata: { name } };
}
