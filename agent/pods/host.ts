/** The parts of the host that the work on machines uses. */
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
  /** All guests that it can run here; empty where it cannot run at all. */
  accelerators: readonly Accelerator[];
}

export interface Host {
  /** By name, the preferred one first. A machine stays with the driver that made it. */
  readonly drivers: ReadonlyMap<string, HostDriver>;
  /** The architecture of machines that name none. */
  readonly architecture: Accelerator['architecture'];
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
  /** The Lease is overdue. */
  fenced(): boolean;
  event(regarding: KubeObject, text: EventText<SaidReason>): void;
  /** Credentials from the pull secrets of a Pod. @throws ReasonedError `PullSecretMissing` */
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

type Drivers = Pick<Host, 'drivers' | 'architecture'>;

/** The driver that made the machine. @throws Error when this agent has no driver of that name. */
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

/** The name of the driver for a new machine: the first that runs its architecture, or else the first, which says why it does not. */
export function chooseDriver({ drivers, architecture }: Drivers, machine: MachineRecord['machine']): string {
  const wanted = machine?.architecture ?? architecture;
  const names = [...drivers.keys()];
  const [first = ''] = names;
  return names.find((name) => acceleratorIn(drivers.get(name), wanted) !== undefined) ?? first;
}

/** By what the machine's driver runs it; undefined where it cannot. */
export function acceleratorOf(
  { drivers, architecture }: Drivers,
  { driver, machine }: Pick<MachineRecord, 'driver' | 'machine'>,
): string | undefined {
  return acceleratorIn(drivers.get(driver), machine?.architecture ?? architecture);
}

/** The machine of a VM of this host, by the uid of the VM. */
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
