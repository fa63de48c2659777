/** Declares the parts of a host that the code for Pods of VMs uses, for example network, images and records. */
import type { Logger } from 'pino';
import type { Machine } from '../../api/v1alpha1/machine.ts';
import type { PortRanges } from '../../api/v1alpha1/reservable.ts';
import type { SaidReason } from '../../api/v1alpha1/reasons.ts';
import type { Pod } from '../../kube/core.ts';
import type { EventText } from '../../kube/events.ts';
import type { KubeObject } from '../../kube/objects.ts';
import type { HostDrivers } from '../drivers/hostdrivers.ts';
import type { Keyring } from '../images/oci/credentials.ts';
import type { ImageStore } from '../images/store.ts';
import type { MachineUsers } from '../processes/users.ts';
import type { Network } from '../network/network.ts';
import type { DiskGuard } from './diskguard.ts';
import type { NetworkMonitor } from '../network/monitor.ts';
import type { HostCapacity, MachineRecord } from './machine.ts';
import type { RecordStore } from './records.ts';
import type { SecretKey } from './userdata.ts';

export interface Host extends HostDrivers {
  readonly network: Network;
  readonly monitor: NetworkMonitor;
  readonly images: ImageStore;
  readonly disk: Pick<DiskGuard, 'wish' | 'startsAnew' | 'roomBytes'>;
  readonly records: RecordStore;
  /** Linux users of machines: each machine runs as its own user. Undefined if the agent is not root. */
  readonly users?: MachineUsers | undefined;
  /** Address of this host, published as the Pods' `hostIP`. */
  readonly address: string;
  /** Address at which the agent reaches the host ports that are reserved for machines. */
  readonly forwardAddress: string;
  /** Ranges from which the agent chooses host ports. */
  readonly ports: PortRanges;
  /** Returns the Pods in the agent's cache that are bound to this host. */
  boundPods(): readonly Readonly<Pod>[];
  /** Path of `<data directory>/machines`. */
  readonly machinesDirectory: string;
  readonly logger: Logger;
  /** Returns the present capacity of this host for machines. The number of slots comes from the Node object. */
  capacity(): HostCapacity;
  /** Returns whether the machine will get another Pod, although it has none at the moment. */
  isAwaited(record: Readonly<MachineRecord>): boolean;
  /** Returns whether this host is fenced: its Lease was not renewed for so long that the cluster may treat the host as lost. */
  fenced(): boolean;
  event(regarding: KubeObject, text: EventText<SaidReason>): void;
  /** Returns the credentials from the pull secrets of a Pod. An Event of the Pod names Secrets and entries that cannot be used. */
  keyring(pod: Readonly<Pod>): Promise<Keyring>;
  /** Returns the VNC password of a VM from its Secret. @throws ReasonedError `VNCSecretNotFound` when the Secret cannot be used. */
  vncPassword(vm: Machine['vm']): Promise<string>;
  /** Returns the user data of a machine from a Secret. @throws ReasonedError when the Secret cannot be used. */
  userData(ref: SecretKey): Promise<string>;
}
