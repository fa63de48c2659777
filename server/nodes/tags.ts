/** Adds and removes tags of hosts. */
import { type TagChange, tagLabels } from '../../api/http/hosttags.ts';
import type { KubeClient } from '../../kube/client.ts';
import { relabel } from '../../kube/nodelabels.ts';
import { StatusError } from '../http/errors.ts';
import { hostNotFound, type Hosts } from '../own/hosts.ts';

/** Adds or removes a tag. @throws StatusError 404 when the host no longer belongs to the namespace, and 409 when it has too many tags. */
export async function changeTag(
  client: KubeClient,
  hosts: Pick<Hosts, 'namespaceOf'>,
  { namespace, host, ...change }: TagChange & { readonly namespace: string; readonly host: string },
): Promise<void> {
  await relabel(client, host, (node) => {
    if (hosts.namespaceOf(node) !== namespace) {
      throw hostNotFound(host);
    }
    const planned = tagLabels(node, change);
    if ('refusal' in planned) {
      throw new StatusError(409, planned.refusal);
    }
    return planned.labels;
  });
}
