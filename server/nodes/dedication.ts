/** Dedicates a host to a namespace, or ends the dedication. */
import {
  type DedicatedHost,
  type Dedication,
  dedicate as dedicateHost,
  MACHINES_SELECTOR,
} from '../../api/http/dedication.ts';
import { namespaceOfHost } from '../../api/http/host.ts';
import { DEDICATED_KEY } from '../../api/v1alpha1/names.ts';
import type { KubeClient } from '../../kube/client.ts';
import { PODS } from '../../kube/core.ts';
import { relabel } from '../../kube/nodelabels.ts';
import { StatusError } from '../http/errors.ts';
import { hostNotFound } from '../own/hosts.ts';

/** Moves a host between namespaces. @throws StatusError 404 when the host does not belong to `from`, and 409 when machines run on it. */
export async function dedicate(
  client: KubeClient,
  dedication: Dedication,
  defaultNamespace: string,
): Promise<void> {
  const access = accessTo(client, dedication.host, defaultNamespace);
  const refusal = await dedicateHost(access, dedication);
  if (refusal !== undefined) {
    throw new StatusError(409, refusal);
  }
}

function accessTo(client: KubeClient, host: string, defaultNamespace: string): DedicatedHost {
  return {
    machines: async () => {
      const fieldSelector = `spec.nodeName=${host}`;
      return (await client.list(PODS, { labelSelector: MACHINES_SELECTOR, fieldSelector })).items;
    },
    label: async (from, to) => {
      await relabel(client, host, (node) => {
        // The label of a host can also name the default namespace.
        if (namespaceOfHost(node, defaultNamespace) !== (from ?? defaultNamespace)) {
          throw hostNotFound(host);
        }
        return { [DEDICATED_KEY]: to ?? null };
      });
    },
  };
}
