/** Dedicates a host to a namespace, or ends the dedication. */
import {
  type DedicatedHost,
  type Dedication,
  dedicate as dedicateHost,
  MACHINES_SELECTOR,
} from '../../api/http/dedication.ts';
import { DEDICATED_KEY } from '../../api/v1alpha1/names.ts';
import type { KubeClient } from '../../kube/client.ts';
import { PODS } from '../../kube/core.ts';
import { relabel } from '../../kube/nodelabels.ts';
import { StatusError } from '../http/errors.ts';
import { hostNotFound } from '../own/hosts.ts';

/** Moves a host between namespaces. @throws StatusError 404 when the host does not belong to `from`, and 409 when machines run on it. */
export async function dedicate(client: KubeClient, dedication: Dedication): Promise<void> {
  const { host } = dedication;
  const refusal = await dedicateHost(accessTo(client, host), dedication);
  if (refusal !== undefined) {
    throw new StatusError(409, refusal);
  }
}

function accessTo(client: KubeClient, host: string): DedicatedHost {
  return {
    machines: async () => {
      const fieldSelector = `spec.nodeName=${host}`;
      return (await client.list(PODS, { labelSelector: MACHINES_SELECTOR, fieldSelector })).items;
    },
    label: async (from, to) => {
      await relabel(client, host, ({ metadata }) => {
        if (metadata.labels?.[DEDICATED_KEY] !== from) {
          throw hostNotFound(host);
        }
        return { [DEDICATED_KEY]: to ?? null };
      });
    },
  };
}
