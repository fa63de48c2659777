/** Carries what the network's checks find to the machines and the Node that it concerns. */
import { isDeepStrictEqual } from 'node:util';
import type { NetworkReport } from '../network/network.ts';
import type { NodeKeeper } from '../node/keeper.ts';
import type { PodController } from './controller.ts';
import type { Host } from './host.ts';
import type { MachineRecord } from './machine.ts';
import type { Health } from './runtime.ts';

export interface Follower {
  host: Host;
  pods: PodController;
  keeper: NodeKeeper;
}

export function followNetwork({ host, pods, keeper }: Follower): void {
  host.monitor.onReport = (report) => {
    // `user` has no host-wide part: a condition about it would say nothing.
    if (host.network.name === 'nat' && host.monitor.host !== undefined) {
      keeper.update({ nat: host.monitor.host });
      tellRepairs(host, keeper, report);
    }
    for (const record of host.records.list()) {
      if (!record.released) {
        follow(host, pods, record, report).catch((error: unknown) => {
          host.logger.warn({ err: error, uid: record.uid }, 'address of a machine not found out');
        });
      }
    }
  };
}

async function follow(
  host: Host,
  pods: PodController,
  record: MachineRecord,
  report: NetworkReport,
): Promise<void> {
  const runtime = pods.machines.runtime(record);
  const health = healthOf(report, record.uid);
  const address = await host.network.address(record.uid);
  if (!isDeepStrictEqual(runtime.network, health) || runtime.address !== address) {
    runtime.network = health;
    runtime.address = address;
    pods.touch(record.uid);
  }
}

function healthOf(report: NetworkReport, uid: string): Health | undefined {
  return report.healthy ? report.machines[uid] : { healthy: false, message: report.faults.join('; ') };
}

function tellRepairs(host: Host, { node }: NodeKeeper, report: NetworkReport): void {
  if (node !== undefined && report.repaired.length > 0) {
    host.event(node, {
      type: 'Warning',
      reason: 'NetworkRepaired',
      action: 'RepairNetwork',
      message: report.repaired.join('; '),
    });
  }
}
