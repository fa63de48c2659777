/** Finds in the caches what power by demand must know. */
import { VM_UID_LABEL } from '../../../api/v1alpha1/names.ts';
import type { Server } from '../../../api/v1alpha1/server.ts';
import type { VM } from '../../../api/v1alpha1/vm.ts';
import type { Job, Node, Pod } from '../../../kube/core.ts';
import type { Informer } from '../../../kube/informer.ts';
import { keyOf } from '../../../kube/objects.ts';
import { PODS_BY_NODE } from '../../objects/boundpods.ts';
import { JOBS_BY_HOST } from '../../tasks/placement.ts';
import { isMachineOff } from '../../vm/podstate.ts';
import { PODS_WITHOUT_HOST, WITHOUT_HOST } from '../../vm/triggers.ts';
import { isOlder } from '../observe.ts';
import { type HostObjects, isWaiting } from './facts.ts';

export interface DemandSources {
  readonly servers: Informer<Server>;
  readonly nodes: Informer<Node>;
  readonly vms: Informer<VM>;
  /** Pods of VMs. */
  readonly pods: Informer<Pod>;
  readonly emulatorPods: Informer<Pod>;
  readonly taskPods: Informer<Pod>;
  readonly jobs: Informer<Job>;
}

/** Returns all Nodes that claim to be hosts, each with its Server and with everything that is on it. */
export function hostsIn(sources: DemandSources): Omit<HostObjects, 'seenEmptySince'>[] {
  const { nodes, vms, pods, emulatorPods, taskPods, jobs } = sources;
  const servers = serversByNode(sources);
  return nodes.cache.list().map((node) => {
    const { name } = node.metadata;
    const ofVMs = pods.cache.byIndex(PODS_BY_NODE, name);
    return {
      node,
      server: servers.get(name),
      pods: {
        machines: [...ofVMs, ...emulatorPods.cache.byIndex(PODS_BY_NODE, name)],
        tasks: taskPods.cache.byIndex(PODS_BY_NODE, name),
      },
      jobs: jobs.cache.byIndex(JOBS_BY_HOST, name),
      isAwaited: ofVMs.some((pod) => mustRunAgain(pod, vms.cache.get(keyOf(pod)))),
    };
  });
}

/**
 * Returns true if the machine of the VM is off, and the VM must run. The Pod does not tell the latter, because the operator orders no start
 * on a host that is off.
 */
function mustRunAgain(pod: Readonly<Pod>, vm: Readonly<VM> | undefined): boolean {
  const isWanted =
    vm?.metadata.uid === pod.metadata.labels?.[VM_UID_LABEL] && vm?.metadata.deletionTimestamp === undefined;
  return isMachineOff(pod) && isWanted && (vm?.spec.powerState ?? 'Running') === 'Running';
}

/** If several Servers name one Node, the oldest counts, as for all other purposes. */
function serversByNode({ servers }: Pick<DemandSources, 'servers'>): Map<string, Readonly<Server>> {
  const found = new Map<string, Readonly<Server>>();
  for (const server of servers.cache.list()) {
    const { nodeName } = server.spec;
    const other = nodeName === undefined ? undefined : found.get(nodeName);
    if (nodeName !== undefined && (other === undefined || isOlder(server, other))) {
      found.set(nodeName, server);
    }
  }
  return found;
}

/** Returns the Pods of VMs that the scheduler could not place, the oldest first. */
export function waitingIn({ pods }: Pick<DemandSources, 'pods'>): Readonly<Pod>[] {
  return pods.cache.byIndex(PODS_WITHOUT_HOST, WITHOUT_HOST).filter(isWaiting).toSorted(byAge);
}

function byAge({ metadata: a }: Readonly<Pod>, { metadata: b }: Readonly<Pod>): number {
  const [first, second] = [a, b].map(({ creationTimestamp = '', name }) => `${creationTimestamp}/${name}`);
  return (first ?? '') < (second ?? '') ? -1 : 1;
}
