/** Finds the machine of the VM with which an emulator is paired. */
import { join } from 'node:path';
import type { EmulatorMachine } from '../../api/v1alpha1/emulatormachine.ts';
import { ReasonedError } from '../../api/v1alpha1/reasons.ts';
import { driverOf } from '../drivers/hostdrivers.ts';
import type { Host } from './host.ts';
import type { MachineRecord } from './machine.ts';

/** Returns the record of the VM's machine on this host, the running one first; undefined if this host has none. */
export function pairedRecord(
  { records }: Pick<Host, 'records'>,
  { vm }: EmulatorMachine,
): MachineRecord | undefined {
  const found = records.list().filter(({ machine }) => machine?.vm.uid === vm.uid);
  return found.find(({ running }) => running) ?? found[0];
}

/** @throws ReasonedError `VMNotRunning` when the machine of the paired VM does not run on this host. */
export async function requirePairedVM(
  host: Pick<Host, 'records' | 'drivers' | 'machinesDirectory'>,
  emulator: EmulatorMachine,
): Promise<void> {
  const record = pairedRecord(host, emulator);
  if (record?.running === true) {
    const folder = { uid: record.uid, path: join(host.machinesDirectory, record.uid) };
    const state = await driverOf(host, record).inspect(folder);
    if (state.kind === 'running') {
      return;
    }
  }
  throw new ReasonedError(
    'VMNotRunning',
    `The emulator waits for the VM ${emulator.vm.name}, which does not run on this host`,
  );
}
