/** The parts of the host that the work on machines uses. */
import type { RunAs } from '../../base/exec.ts';
import type { Logger } from 'pino';
import type { SaidReason } from '../../api/v1alpha1/reasons.ts';
import type { Pod } from '../../kube/core.ts';
import type { EventText } from '../../kube/events.ts';
import type { KubeObject } from '../../kube/objects.ts';
import type { Driver } from '../drivers/driver.ts';
import type { Keyring } from '../images/oci/credentials.ts';
import type { ImageStore } from '../images/store.ts';
import type { MachineUsers } from '../machines/users.ts';
import type { Network } from '../network/network.ts';
import type { HostCapacity } from './admission.ts';
import type { DiskGuard } from './diskguard.ts';
import type { NetworkMonitor } from '../network/monitor.ts';
import type { MachineRecord } from './machine.ts';
import type { RecordStore } from './records.ts';

export interface Host {
  readonly driver: Driver;
  readonly network: Network;
  readonly monitor: NetworkMonitor;
  readonly images: ImageStore;
  readonly disk: Pick<DiskGuard, 'wish' | 'startsAnew' | 'roomBytes'>;
  readonly records: RecordStore;
  /** Undefined where the agent is not root. */
  readonly users?: MachineUsers | undefined;
  /** Published as the Pods' hostIP. */
  readonly address: string;
  /** Where this host itself reaches its reserved ports. */
  readonly forwardAddress: string;
  /** `<data directory>/machines` */
  readonly machinesDirectory: string;
  readonly logger: Logger;
  /** The present capacity; its slots come from the Node. */
  capacity(): HostCapacity;
  /** Which accelerator runs machines of an architecture. */
  accelerator(architecture: 'amd64' | 'arm64' | undefined): string | undefined;
  /** The Lease is overdue. */
  fenced(): boolean;
  event(regarding: KubeObject, text: EventText<SaidReason>): void;
  /** Credentials from the pull secrets of a Pod. @throws ImageError `PullSecretMissing` */
  keyring(pod: Readonly<Pod>): Promise<Keyring>;
}

/**
 * The machine's own user: given once, also to a machine of an earlier agent at its next start, and kept in its record
 * until nothing of the machine is left. Undefined where the agent is not root.
 */
export function ownUser(
  { users, records }: Pick<Host, 'users' | 'records'>,
  record: MachineRecord,
): RunAs | undefined {
  if (record.runAs === undefined && users !== undefined) {
    const taken = new Set(records.list().flatMap(({ runAs }) => runAs?.uid ?? []));
    records.update(record, { runAs: users.choose(record.uid, taken) });
  }
  return record.runAs;
}
