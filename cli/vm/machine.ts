/**
 * Finds the machine of a VM, and the paths of its streams at the API server. The streams belong to the Pod of the VM, which has the name of
 * the VM.
 */
import { MACHINE_CONTAINER } from '../../api/v1alpha1/names.ts';
import type { VM } from '../../api/v1alpha1/vm.ts';
import { PODS } from '../../kube/core.ts';
import { isNotFound } from '../../kube/errors.ts';
import { pathOf } from '../../kube/objects.ts';
import type { UserCluster } from '../cluster.ts';
import { CommandError } from '../errors.ts';
import { getNamed } from '../objects/named.ts';
import { VM_KIND } from './kind.ts';

/** The only user that every guest has. */
export const DEFAULT_USER = 'root';

/** Phases in which nobody can connect to the VM, and the next step for the user. */
const NO_MACHINE: Readonly<Record<string, string>> = {
  Pending: 'Wait until the VM runs',
  Scheduled: 'Wait until the VM runs',
  Pulling: 'Wait until the VM runs',
  Cloning: 'Wait until the VM runs',
  Stopped: 'Start the VM with `berth vm start NAME`',
  Suspended: 'Resume the VM with `berth vm resume NAME`',
  Failed: 'The conditions of the VM show the reason',
};

type StreamName = 'exec' | 'attach' | 'portforward' | 'log';
type Query = readonly (readonly [string, string | number | boolean])[];

/** Returns the VM. @throws CommandError when it does not exist or does not run; ApiError. */
export async function runningVM(cluster: UserCluster, name: string, signal: AbortSignal): Promise<VM> {
  const vm = await getNamed(cluster, VM_KIND, name, signal);
  const { phase = '' } = vm.status ?? {};
  const advice = NO_MACHINE[phase];
  if (advice !== undefined) {
    throw new CommandError(`VM ${name} is ${phase}. ${advice.replace('NAME', name)}`);
  }
  return vm;
}

/** Returns the path of a stream with its query. */
export function streamPath(
  { namespace }: UserCluster,
  name: string,
  stream: StreamName,
  query: Query,
): string {
  const parameters = query.map(([key, value]): [string, string] => [key, String(value)]);
  const container: [string, string][] = stream === 'portforward' ? [] : [['container', MACHINE_CONTAINER]];
  return `${pathOf(PODS, { namespace, name }, stream)}?${new URLSearchParams([...container, ...parameters]).toString()}`;
}

/**
 * Returns the error for the user. If the Pod is missing, the message says that the VM has no machine, because users do not know the Pods of
 * VMs.
 */
export function withoutPod(error: unknown, name: string): unknown {
  return isNotFound(error) && error.message.startsWith('pods ')
    ? new CommandError(`VM ${name} has no machine yet. Wait until the VM runs`)
    : error;
}
