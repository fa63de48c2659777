/** Metrics of hosts. Only the leader exports these metrics. Otherwise a sum over all replicas would count each host several times. */
import { Gauge, type Registry } from 'prom-client';
import type { Node } from '../../kube/core.ts';
import { isHost, isTooOldOrNew } from './observe.ts';

export interface HostView {
  readonly isLeader: () => boolean;
  readonly nodes: () => readonly Readonly<Node>[];
}

export function exportHostMetrics(registry: Registry, view: HostView): void {
  const apart = new Gauge({
    name: 'berth_hosts_version_skew',
    help: 'Hosts whose agent is more than one minor release older or newer than the operator',
    registers: [registry],
    collect: () => {
      const hosts = view.isLeader() ? view.nodes().filter(isHost) : [];
      apart.set(hosts.filter(isTooOldOrNew).length);
    },
  });
}
