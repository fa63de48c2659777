/**
 * The parts of a machine's steps that are different for emulators. An emulator needs no image, seed or screen, but the machine of its VM
 * must run.
 */
import type { EmulatorMachine } from '../../api/v1alpha1/emulatormachine.ts';
import type { EmulatorLaunchPlan } from '../drivers/driver.ts';
import { requireDevice } from '../drivers/emulator/arguments.ts';
import { ownUser } from '../processes/users.ts';
import type { Host } from './host.ts';
import { type MachineRecord, needed, type Operation, type Runtime } from './machine.ts';
import { connectNamespace } from './network.ts';
import { holdPorts } from './ports.ts';
import { grantedSize } from './resize.ts';
import { requireRunningVM } from './vmmachine.ts';

/** Chooses the host port of an emulator with exposure Host, and creates the emulator's folder. */
export async function createEmulator(
  host: Host,
  { record, folder, state }: Runtime,
  emulator: EmulatorMachine,
): Promise<void> {
  requireDevice(emulator.device);
  await holdPorts(host, record);
  if (state.kind !== 'absent') {
    // The folder is incomplete, because the agent was restarted while it created the folder.
    await host.emulators.delete(folder);
  }
  await host.emulators.create(folder, { guest: { emulator }, runAs: ownUser(host, record) }, undefined);
  host.records.update(record, { created: true });
}

/**
 * Removes the data of an emulator that has failed, and returns the change to save in its record. The data is removed, because nothing else
 * limits the disk space of failed emulators: they do not use slots or quota. Call this function only after all processes of the
 * machine have ended.
 */
export async function discardFailed(
  host: Host,
  { record, folder, state }: Runtime,
): Promise<Pick<Partial<MachineRecord>, 'runAs'>> {
  if (record.failure === undefined || record.emulator === undefined) {
    return {};
  }
  if (state.kind !== 'absent') {
    await host.emulators.discard(folder);
  }
  return { runAs: undefined };
}

/**
 * Connects an emulator to the network and returns the plan of its start.
 *
 * @throws ReasonedError `VMNotRunning` when the paired VM does not run on this host. Also throws the errors of {@link connectNamespace}.
 */
export async function prepareEmulator(
  host: Host,
  runtime: Runtime,
  operation: Operation,
  emulator: EmulatorMachine,
): Promise<EmulatorLaunchPlan> {
  const { record } = runtime;
  await requireRunningVM(host, emulator);
  const network = await connectNamespace(host, runtime, emulator);
  const size = grantedSize(record, needed(operation.desired));
  return { guest: { emulator }, runAs: ownUser(host, record), ...size, network };
}
