/** Parts of the host that Pods of VMs use. */
import type { Logger } from 'pino';
import type { SaidReason } from '../../api/v1alpha1/reasons.ts';
import type { Pod } from '../../kube/core.ts';
import type { EventText } from '../../kube/events.ts';
import type { KubeObject } from '../../kube/objects.ts';
import type { HostDrivers } from '../drivers/hostdrivers.ts';
import type { Keyring } from '../images/oci/credentials.ts';
import type { ImageStore } from '../images/store.ts';
import type { MachineUsers } from '../machines/users.ts';
import type { Network } from '../network/network.ts';
import type { DiskGuard } from './diskguard.ts';
import type { NetworkMonitor } from '../network/monitor.ts';
import type { HostCapacity } from './machine.ts';
import type { RecordStore } from './records.ts';

export interface Host extends HostDrivers {
  readonly network: Network;
  readonly monitor: NetworkMonitor;
  readonly images: ImageStore;
  readonly disk: Pick<DiskGuard, 'wish' | 'startsAnew' | 'roomBytes'>;
  readonly records: RecordStore;
  /** Users for machines. Undefined if the agent is not root. */
  readonly users?: MachineUsers | undefined;
  /** Address of this host, published as the Pods' `hostIP`. */
  readonly address: string;
  /** Address at which the host itself reaches its reserved ports. */
  readonly forwardAddress: string;
  /** Path of `<data directory>/machines`. */
  readonly machinesDirectory: string;
  readonly logger: Logger;
  /** Returns the present capacity. The number of slots comes from the Node. */
  capacity(): HostCapacity;
  /** Returns whether the Lease could not be renewed for longer than the fence allows. */
  fenced(): boolean;
  event(regarding: KubeObject, text: EventText<SaidReason>): void;
  /** Returns the credentials from the pull secrets of a Pod. @throws ReasonedError `PullSecretMissing` when a secret cannot be used. */
  keyring(pod: Readonly<Pod>): Promise<Keyring>;
}
