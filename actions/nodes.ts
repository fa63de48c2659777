/** Changes hosts: moves them between namespaces, and adds and removes their tags. */
import { hasEnded, type HostNode, type HostPod } from '../api/http/host.ts';
import { tagsOf } from '../api/v1alpha1/hosts.ts';
import { DEDICATED_KEY, TAG_LABEL_PREFIX, WORKLOAD_LABEL } from '../api/v1alpha1/names.ts';
import { type CallOptions, type KubeClient, UNINTERRUPTED } from '../kube/client.ts';
import { type Node, NODES, PODS } from '../kube/core.ts';
import { changeObject } from './change.ts';
import { ActionError } from './error.ts';
import { undefinedIf } from '../base/errors.ts';
import { isConflict } from '../kube/errors.ts';

/**
 * Reads the Node, and writes the labels that `labelsFor` returns for it. The value null removes a label. If somebody else changes the Node
 * between the read and the write, the function repeats both.
 *
 * @throws ActionError when others change the Node in each attempt; ApiError; the errors of `labelsFor`.
 */
async function relabel(
  client: KubeClient,
  name: string,
  labelsFor: (node: Node) => Readonly<Record<string, string | null>>,
  options: CallOptions = {},
): Promise<void> {
  await changeObject(
    () => `host ${name}`,
    async () => {
      const node = await client.get(NODES, { name }, options);
      const { resourceVersion } = node.metadata;
      const patch = { metadata: { resourceVersion, labels: labelsFor(node) } };
      const write = async () => {
        await client.mergePatch(NODES, { name }, patch, options);
        return true;
      };
      return await undefinedIf(isConflict, write());
    },
  );
}

/**
 * Label selector of the Pods of machines. The selector leaves out Pods that work on images, because this work is not for a single
 * namespace.
 */
const MACHINES_SELECTOR = `${WORKLOAD_LABEL} in (vm,emulator)`;
/** The message of a refusal names at most this number of machines. */
const NAMED = 5;

/**
 * Largest number of tags of a host. There is a limit, because every list of hosts shows the tags, and all watches of Nodes transfer them.
 */
const TAGS = 64;

export interface HostAccess {
  readonly client: KubeClient;
  /** Namespace to which hosts without the label of a namespace belong. */
  readonly defaultNamespace: string;
  /** Checks that the Node is a host of the namespace. @throws the error for the caller when it is not. */
  readonly requireHost: (node: Node, namespace: string) => void;
}

/** A host that moves from one namespace to another. */
export interface Dedication {
  readonly host: string;
  readonly from: string;
  readonly to: string;
}

/**
 * Moves the host from one namespace to another, if no machine runs on the host. After the change of the namespace, the function reads the
 * machines again from the API server, because a machine might have been placed on the host in the meantime. If there is such a machine, or
 * if this second read fails, the host returns to its former namespace. An interruption does not end the requests that change the host.
 *
 * If the host stays in its namespace, nothing changes. But if this is the default namespace, the label with its name is removed, because
 * this label keeps the host from the machines of other namespaces.
 *
 * @throws ActionError when machines run on the host; errors of {@link HostAccess.requireHost}; ApiError.
 */
export async function dedicate(access: HostAccess, { host, from, to }: Dedication): Promise<void> {
  const isToDefault = to === access.defaultNamespace;
  if (from !== to) {
    refuseMachines(host, await machinesOn(access, host));
  } else if (!isToDefault) {
    return;
  }
  await move(access, { host, from, to });
  if (isToDefault) {
    return;
  }
  try {
    const strangers = (await machinesOn(access, host)).filter(({ metadata }) => metadata.namespace !== to);
    refuseMachines(host, strangers);
  } catch (error) {
    const back = move(access, { host, from: to, to: from });
    // If the machines could not be read, this error tells why the host has not moved. An error of the way back would hide it.
    await (error instanceof ActionError ? back : back.catch(() => undefined));
    throw error;
  }
}

async function machinesOn({ client }: HostAccess, host: string): Promise<readonly HostPod[]> {
  const fieldSelector = `spec.nodeName=${host}`;
  return (await client.list(PODS, { labelSelector: MACHINES_SELECTOR, fieldSelector })).items;
}

async function move(
  { client, defaultNamespace, requireHost }: HostAccess,
  { host, from, to }: Dedication,
): Promise<void> {
  const labelsFor = (node: Node) => {
    requireHost(node, from);
    return { [DEDICATED_KEY]: to === defaultNamespace ? null : to };
  };
  await relabel(client, host, labelsFor, { signal: UNINTERRUPTED });
}

/** @throws ActionError when one of the machines has not ended. */
function refuseMachines(host: string, pods: readonly HostPod[]): void {
  const machines = pods.filter((pod) => !hasEnded(pod));
  if (machines.length === 0) {
    return;
  }
  const names = machines.slice(0, NAMED).map(({ metadata }) => `${metadata.namespace}/${metadata.name}`);
  const more = machines.length > NAMED ? ` and ${machines.length - NAMED} more` : '';
  throw new ActionError('refused', `Host ${host} still runs VMs or emulators: ${names.join(', ')}${more}`);
}

export interface TagChange {
  readonly namespace: string;
  readonly host: string;
  readonly tag: string;
  /** True to add the tag, false to remove it. */
  readonly isSet: boolean;
}

/**
 * Adds the tag to the host, or removes it.
 *
 * @throws ActionError when the host has too many tags; errors of {@link HostAccess.requireHost}; ApiError.
 */
export async function changeTag(
  { client, requireHost }: Pick<HostAccess, 'client' | 'requireHost'>,
  { namespace, host, tag, isSet }: TagChange,
): Promise<void> {
  await relabel(client, host, (node) => {
    requireHost(node, namespace);
    if (isSet) {
      requireRoom(node, tag);
    }
    return { [TAG_LABEL_PREFIX + tag]: isSet ? '' : null };
  });
}

function requireRoom(host: HostNode, tag: string): void {
  const tags = tagsOf(host);
  if (tags.length >= TAGS && !tags.includes(tag)) {
    const message = `Host ${host.metadata.name} has ${tags.length} tags. At most ${TAGS} tags are allowed`;
    throw new ActionError('refused', message);
  }
}
