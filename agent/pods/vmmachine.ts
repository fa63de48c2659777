/** Finds the machine of a VM on this host. A task needs the machine to read its disks, and the VM's emulator needs its network. */
import { join } from 'node:path';
import type { EmulatorMachine } from '../../api/v1alpha1/emulatormachine.ts';
import { ReasonedError } from '../../api/v1alpha1/reasons.ts';
import { driverOfVM } from '../drivers/hostdrivers.ts';
import type { MachineOnHost } from '../tasks/disks.ts';
import type { Host } from './host.ts';
import type { MachineRecord } from './machine.ts';

type MachineHost = Pick<Host, 'drivers' | 'records' | 'machinesDirectory'>;

/**
 * Returns the record of a VM's machine. `vmUid` is the VM's uid. If this host has several such records, the function prefers the record of
 * a running machine. Returns undefined if this host has no such record.
 */
export function recordOfVM({ records }: Pick<Host, 'records'>, vmUid: string): MachineRecord | undefined {
  const found = records.list().filter(({ machine }) => machine?.vm.uid === vmUid);
  return found.find(({ running }) => running) ?? found[0];
}

/** Returns the machine of the VM with this uid. Undefined if the VM has no machine on this host. */
export function machineOf(host: MachineHost, vmUid: string): MachineOnHost | undefined {
  const record = recordOfVM(host, vmUid);
  if (record?.machine === undefined) {
    return undefined;
  }
  const { uid, machine } = record;
  return {
    folder: { uid, path: join(host.machinesDirectory, uid) },
    machine,
    driver: driverOfVM(host, record),
  };
}

/** Checks that the machine of an emulator's VM runs on this host. @throws ReasonedError `VMNotRunning` when the machine does not run. */
export async function requireRunningVM(host: MachineHost, { vm }: EmulatorMachine): Promise<void> {
  const found = machineOf(host, vm.uid);
  const isWanted = recordOfVM(host, vm.uid)?.running === true;
  // The VM's machine is not inspected here, because an inspection during a stop or a suspension would undo this step.
  const isRunning = isWanted && (await found?.driver.hasProcess(found.folder)) === true;
  if (!isRunning) {
    const message = `The emulator is waiting for VM ${vm.name}, which is not running on this host`;
    throw new ReasonedError('VMNotRunning', message);
  }
}
