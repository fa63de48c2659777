/**
 * Declares the parts of a host that the code for Pods of VMs uses, for example network, images and records. Also finds the machine of a VM,
 * and sends Events about machines. Each Event belongs to the VM, the Emulator or the Pod of the machine.
 */
import { join } from 'node:path';
import type { Logger } from 'pino';
import type { Machine } from '../../api/v1alpha1/machine.ts';
import { API_VERSION } from '../../api/v1alpha1/names.ts';
import type { Reason, SaidReason } from '../../api/v1alpha1/reasons.ts';
import type { PortRanges } from '../../api/v1alpha1/ports.ts';
import type { Pod } from '../../kube/core.ts';
import type { EventText } from '../../kube/events.ts';
import type { KubeObject } from '../../kube/objects.ts';
import { driverOfVM, type HostDrivers } from '../drivers/hostdrivers.ts';
import type { Keyring } from '../images/oci/credentials.ts';
import type { ImageStore } from '../images/store.ts';
import type { NetworkMonitor } from '../network/monitor.ts';
import type { Network } from '../network/network.ts';
import type { MachineUsers } from '../processes/users.ts';
import type { MachineOnHost } from '../tasks/disks.ts';
import type { DiskGuard } from './diskguard.ts';
import {
  type HostCapacity,
  type MachineDocument,
  type MachineRecord,
  needed,
  type MachineOperation,
} from './machine.ts';
import type { RecordStore } from './records.ts';
import type { SecretKey } from './secrets.ts';
import type { SnapshotShares } from './snapshotshares.ts';

export interface PodHost extends HostDrivers {
  readonly network: Network;
  readonly monitor: NetworkMonitor;
  readonly images: ImageStore;
  readonly disk: Pick<DiskGuard, 'wish' | 'startsAnew' | 'roomBytes'>;
  readonly snapshotShares: SnapshotShares;
  /** Namespace whose VMs alone run on this host. Undefined if it is not the host of one namespace. */
  readonly namespace: string | undefined;
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

export type MachineHost = Pick<PodHost, 'drivers' | 'records' | 'machinesDirectory'>;

/**
 * Returns the machine of the VM with this uid. A task needs the machine to read its disks, and the VM's emulator needs its network. Undefined if the VM has no machine on this host.
 */
export function machineOf(host: MachineHost, vmUid: string): MachineOnHost | undefined {
  const record = host.records.ofVM(vmUid);
  if (record?.machine === undefined) {
    return undefined;
  }
  const { uid, machine, startedWith } = record;
  return {
    folder: { uid, path: join(host.machinesDirectory, uid) },
    machine,
    driver: driverOfVM(host, record),
    memoryBytes: startedWith?.memoryBytes ?? 0,
  };
}

/** Sends a `Normal` Event for the machine's VM or Emulator. */
export function tell(
  host: PodHost,
  document: Readonly<MachineDocument>,
  reason: Reason,
  action: string,
  message: string,
): void {
  host.event(ownerOf(document), { type: 'Normal', reason, action, message });
}

/** Sends a `Warning` Event for the machine's VM or Emulator. */
export function warn(
  host: PodHost,
  document: Readonly<MachineDocument>,
  reason: Reason,
  action: string,
  message: string,
): void {
  host.event(ownerOf(document), { type: 'Warning', reason, action, message });
}

function ownerOf({ machine, emulator }: Readonly<MachineDocument>) {
  return emulator === undefined
    ? { apiVersion: API_VERSION, kind: 'VM', metadata: needed(machine).vm }
    : { apiVersion: API_VERSION, kind: 'Emulator', metadata: emulator.emulator };
}

/** Sends a `Normal` Event for the machine's Pod. The operator sends the Event for the VM when it sees the new state of the Pod. */
export function tellPod(
  host: PodHost,
  operation: MachineOperation,
  reason: Reason,
  action: string,
  message: string,
): void {
  event(host, operation, { type: 'Normal', reason, action, message });
}

/** Sends an Event for the machine's Pod, unless the host no longer knows the Pod. */
export function event(
  host: PodHost,
  { pod }: Pick<MachineOperation, 'pod'>,
  text: EventText<SaidReason>,
): void {
  if (pod !== undefined) {
    host.event(pod, text);
  }
}
