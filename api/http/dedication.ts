/** Dedicates a host to a namespace, or ends the dedication, for the HTTP API and the `berth` command. */
import { WORKLOAD_LABEL } from '../v1alpha1/names.ts';
import { hasEnded, type HostPod } from './host.ts';

/**
 * Label selector of the Pods of machines. The selector leaves out Pods that work on images, because this work is not for a single
 * namespace.
 */
export const MACHINES_SELECTOR = `${WORKLOAD_LABEL} in (vm,emulator)`;
/** The message of a refusal names at most this number of machines. */
const NAMED = 5;

export interface Dedication {
  readonly host: string;
  /** Namespace to which the host is dedicated before the change. It is undefined if the host is not dedicated. */
  readonly from: string | undefined;
  /** Namespace that gets the host. If undefined, the host is no longer dedicated. */
  readonly to: string | undefined;
}

/** Functions that read and change the objects of one host at the API server. */
export interface DedicatedHost {
  /** Reads the Pods of the host with {@link MACHINES_SELECTOR} from the API server. A cache is not used, because it can be out of date. */
  readonly machines: () => Promise<readonly HostPod[]>;
  /** Changes the namespace of the host from `from` to `to`. @throws when the host does not belong to `from`. */
  readonly label: (from: string | undefined, to: string | undefined) => Promise<void>;
}

/**
 * Moves the host from one namespace to another, if no machine runs on the host. If machines prevent the move, resolves with a message that
 * names them. After the change of the namespace, the function reads the machines again, because a machine might have been placed on the
 * host in the meantime. If there is such a machine, or if this second read fails, the host returns to its former namespace.
 *
 * If the host stays in its namespace, nothing changes. But if this is the default namespace, the label with its name is removed, because
 * this label keeps the host from the machines of other namespaces.
 *
 * @throws errors of {@link DedicatedHost}.
 */
export async function dedicate(
  { machines, label }: DedicatedHost,
  { host, from, to }: Dedication,
): Promise<string | undefined> {
  if (from === to) {
    if (to === undefined) {
      await label(from, to);
    }
    return undefined;
  }
  const before = refusalOf(host, await machines());
  if (before !== undefined) {
    return before;
  }
  await label(from, to);
  if (to === undefined) {
    return undefined;
  }
  let after: string | undefined;
  try {
    const strangers = (await machines()).filter(({ metadata }) => metadata.namespace !== to);
    after = refusalOf(host, strangers);
  } catch (error) {
    // The first error tells why the host has not moved. An error of the way back would hide it.
    await label(to, from).catch(() => undefined);
    throw error;
  }
  if (after !== undefined) {
    await label(to, from);
  }
  return after;
}

function refusalOf(host: string, pods: readonly HostPod[]): string | undefined {
  const machines = pods.filter((pod) => !hasEnded(pod));
  if (machines.length === 0) {
    return undefined;
  }
  const names = machines.slice(0, NAMED).map(({ metadata }) => `${metadata.namespace}/${metadata.name}`);
  const more = machines.length > NAMED ? ` and ${machines.length - NAMED} more` : '';
  return `Host ${host} still runs VMs or emulators: ${names.join(', ')}${more}`;
}
