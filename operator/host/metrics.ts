/** Metrics of hosts. */
import type { Registry } from 'prom-client';
import type { Node } from '../../kube/core.ts';
import { leaderGauge } from '../objects/leadergauge.ts';
import { isHost, isTooOldOrNew } from './observe.ts';

export interface HostView {
  readonly isLeader: () => boolean;
  readonly nodes: () => readonly Readonly<Node>[];
}

export function exportHostMetrics(registry: Registry, { isLeader, nodes }: HostView): void {
  leaderGauge(registry, {
    name: 'berth_hosts_version_skew',
    help: 'Hosts whose agent is more than one minor release older or newer than the operator',
    isLeader,
    measure: (gauge) => gauge.set(nodes().filter((node) => isHost(node) && isTooOldOrNew(node)).length),
  });
}
