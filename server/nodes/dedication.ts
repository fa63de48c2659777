/** Gives a host to a namespace, or takes it back. */
import { DEDICATED_KEY, WORKLOAD_LABEL } from '../../api/v1alpha1/names.ts';
import type { KubeClient } from '../../kube/client.ts';
import { NODES, type Node, type Pod, PODS } from '../../kube/core.ts';
import { isConflict } from '../../kube/errors.ts';
import { StatusError } from '../http/errors.ts';
import { hostNotFound } from '../own/hosts.ts';
import { hasEnded } from './item.ts';

/** Types of Pods that are machines. Pods that work on images do not count, because their work is for no single namespace. */
const MACHINES = `${WORKLOAD_LABEL} in (vm,emulator)`;
/** Number of machines that a refusal names. */
const NAMED = 5;
/** Limit of attempts. An agent writes its Node every few seconds at most, so a second conflict is rare. */
const ATTEMPTS = 5;

export interface Dedication {
  readonly host: string;
  /** Namespace that the host must belong to now; undefined when the host must belong to none. */
  readonly from: string | undefined;
  /** Namespace that gets the host; undefined takes it back. */
  readonly to: string | undefined;
}

/**
 * Moves the host from one namespace to another. The machines are counted before and after the write, because a machine may come to the host
 * at the same time. The host then returns to its former namespace.
 *
 * @throws StatusError 404 when the host does not belong to `from`, and 409 when machines run on it.
 */
export async function dedicate(client: KubeClient, { host, from, to }: Dedication): Promise<void> {
  refuseMachines(host, await machinesOn(client, host));
  await label(client, { host, from, to });
  if (to === undefined) {
    return;
  }
  const strangers = (await machinesOn(client, host)).filter(({ metadata }) => metadata.namespace !== to);
  if (strangers.length > 0) {
    await label(client, { host, from: to, to: from });
    refuseMachines(host, strangers);
  }
}

async function label(client: KubeClient, { host, from, to }: Dedication): Promise<Node> {
  for (let attempt = 1; ; attempt += 1) {
    const { metadata } = await client.get(NODES, { name: host });
    if (metadata.labels?.[DEDICATED_KEY] !== from) {
      throw hostNotFound(host);
    }
    const { resourceVersion } = metadata;
    const patch = { metadata: { resourceVersion, labels: { [DEDICATED_KEY]: to ?? null } } };
    try {
      return await client.mergePatch(NODES, { name: host }, patch);
    } catch (error) {
      if (!isConflict(error) || attempt === ATTEMPTS) {
        throw error;
      }
    }
  }
}

/** Reads the machines from the API server and not from a cache, which may be late. */
async function machinesOn(client: KubeClient, host: string): Promise<Pod[]> {
  const { items } = await client.list(PODS, {
    labelSelector: MACHINES,
    fieldSelector: `spec.nodeName=${host}`,
  });
  return items.filter((pod) => !hasEnded(pod));
}

function refuseMachines(host: string, machines: readonly Pod[]): void {
  if (machines.length > 0) {
    const names = machines.slice(0, NAMED).map(({ metadata }) => `${metadata.namespace}/${metadata.name}`);
    const more = machines.length > NAMED ? ` and ${machines.length - NAMED} more` : '';
    throw new StatusError(409, `Host ${host} still runs VMs: ${names.join(', ')}${more}`);
  }
}
