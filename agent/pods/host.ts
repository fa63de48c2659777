/** Parts of the host that the work on machines uses. */
import { join } from 'node:path';
import type { RunAs } from '../../base/exec.ts';
import type { Logger } from 'pino';
import type { SaidReason } from '../../api/v1alpha1/reasons.ts';
import type { Pod } from '../../kube/core.ts';
import type { EventText } from '../../kube/events.ts';
import type { KubeObject } from '../../kube/objects.ts';
import type { Accelerator, Driver } from '../drivers/driver.ts';
import type { Keyring } from '../images/oci/credentials.ts';
import type { ImageStore } from '../images/store.ts';
import type { MachineUsers } from '../machines/users.ts';
import type { Network } from '../network/network.ts';
import type { MachineOnHost } from '../tasks/disks.ts';
import type { DiskGuard } from './diskguard.ts';
import type { NetworkMonitor } from '../network/monitor.ts';
import type { HostCapacity, MachineRecord } from './machine.ts';
import type { RecordStore } from './records.ts';

export interface HostDriver {
  driver: Driver;
  /** Accelerator for each guest architecture that the driver can run here. Empty if the driver cannot run any guest. */
  accelerators: readonly Accelerator[];
}

export interface Host {
  /** Drivers by name, the preferred driver first. A machine stays with the driver that created it. */
  readonly drivers: ReadonlyMap<string, HostDriver>;
  /** Architecture of machines that do not name an architecture. */
  readonly architecture: Accelerator['architecture'];
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

/**
 * Returns the machine's own user, and chooses a user if the record has none. A machine of an earlier agent gets a user at its next start.
 * The user stays in the record until the machine is removed. Undefined if the agent is not root.
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

type Drivers = Pick<Host, 'drivers' | 'architecture'>;

/** Returns the driver that created the machine. @throws Error when this agent has no driver of that name. */
export function driverOf(
  { drivers }: Pick<Host, 'drivers'>,
  { driver }: Pick<MachineRecord, 'driver'>,
): Driver {
  const found = drivers.get(driver);
  if (found === undefined) {
    throw new Error(`this agent has no driver "${driver}"`);
  }
  return found.driver;
}

/** Calls `changed` with the uid of a machine when its state may have changed without the agent's doing. */
export function onMachineChange({ drivers }: Pick<Host, 'drivers'>, changed: (uid: string) => void): void {
  for (const { driver } of drivers.values()) {
    driver.onChange(changed);
  }
}

/**
 * Returns the name of the driver for a new machine: the first driver that can run the machine's architecture. If no driver can, the
 * first driver is returned, because its error then gives the reason.
 */
export function chooseDriver({ drivers, architecture }: Drivers, machine: MachineRecord['machine']): string {
  const wanted = machine?.architecture ?? architecture;
  const names = [...drivers.keys()];
  const [first = ''] = names;
  return names.find((name) => acceleratorIn(drivers.get(name), wanted) !== undefined) ?? first;
}

/** Returns the accelerator with which the machine's driver runs the machine; undefined if the driver cannot run it. */
export function acceleratorOf(
  { drivers, architecture }: Drivers,
  { driver, machine }: Pick<MachineRecord, 'driver' | 'machine'>,
): string | undefined {
  return acceleratorIn(drivers.get(driver), machine?.architecture ?? architecture);
}

/** Returns the machine of the VM with this uid; undefined if this host has none. */
export function machineOf(
  host: Pick<Host, 'drivers' | 'records' | 'machinesDirectory'>,
  vmUid: string,
): MachineOnHost | undefined {
  const record = host.records.list().find(({ machine }) => machine?.vm.uid === vmUid);
  if (record?.machine === undefined) {
    return undefined;
  }
  const { uid, machine } = record;
  return {
    folder: { uid, path: join(host.machinesDirectory, uid) },
    machine,
    driver: driverOf(host, record),
  };
}

function acceleratorIn(
  driver: HostDriver | undefined,
  architecture: Accelerator['architecture'],
): string | undefined {
  return driver?.accelerators.find((one) => one.architecture === architecture)?.accelerator;
}
