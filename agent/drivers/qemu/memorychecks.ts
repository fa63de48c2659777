/**
 * Checks whether the memory of a running machine can be kept, for an image or for a snapshot. A save pauses the guest and takes room on the host from
 * others. So all that can be known before is checked before.
 */
import { ReasonedError } from '../../../api/v1alpha1/reasons.ts';
import { messageOf } from '../../../base/errors.ts';
import { type Freeze, hasGuestAgent } from './guestagent.ts';
import type { Hypervisor } from './hypervisor.ts';
import type { MachineContext } from './launch.ts';
import type { QemuMachine } from './machine.ts';
import { requireSafe } from './memorykey.ts';
import type { GuestPlatform } from './platform.ts';
import type { QmpConnection } from './qmp.ts';
import { requireRenewable } from './renewal.ts';
import type { MachineFile } from './state.ts';

/** Largest number of characters of a guest agent's answer in a message. */
const ANSWER_CHARACTERS = 200;

export type LaunchRecord = NonNullable<MachineFile['launched']>;
/** Values of a machine's last start, with its devices. */
export type SavableLaunch = LaunchRecord & { devices: NonNullable<LaunchRecord['devices']> };

/**
 * Checks that the memory of a machine can become that of an image.
 *
 * @throws ReasonedError `MemoryNotSaved` with the reason why not.
 */
export function requireSavable({ launched, paused }: MachineFile): SavableLaunch {
  const { devices } = launched ?? {};
  if (launched === undefined || devices === undefined) {
    throw refused('An earlier version of the agent started the machine. Start the VM again');
  }
  if (devices.iso) {
    throw refused('The VM has an ISO. Make a VM without it');
  }
  if (paused === true) {
    throw refused('The guest is paused, because the disk of its host is full');
  }
  return { ...launched, devices };
}

export function refused(why: string): ReasonedError {
  return new ReasonedError('MemoryNotSaved', `The memory of the VM cannot be saved. ${why}`);
}

/** Checks that a guest agent uses its port. @throws ReasonedError `MemoryNotSaved` when none does. */
export async function requireGuestAgent(qmp: QmpConnection): Promise<void> {
  if (!(await hasGuestAgent(qmp))) {
    throw refused('No guest agent answers. Install qemu-guest-agent in the guest and start it');
  }
}

/**
 * Checks that the guest has confirmed a freeze. Call this function before the guest is paused, because a guest whose agent cannot freeze could
 * not be renewed after a start from its memory. @throws ReasonedError `MemoryNotSaved` when it has not.
 */
export function requireFrozen({ confirmed, problems }: Readonly<Freeze>): void {
  if (!confirmed) {
    const why = problems[0]?.slice(0, ANSWER_CHARACTERS) ?? 'no answer';
    throw refused(`The guest agent did not freeze its file systems: ${why}`);
  }
}

/** Checks that this host can start machines from memory. @throws ReasonedError `MemoryNotSaved` when it cannot, because a save is in vain then. */
export function requireStartable(
  platform: GuestPlatform,
  { ownRoot }: Pick<MachineContext, 'ownRoot'>,
): void {
  try {
    requireSafe(platform, {}, ownRoot !== undefined);
  } catch (error) {
    throw new ReasonedError('MemoryNotSaved', `The host cannot start from memory. ${messageOf(error)}`, {
      cause: error,
    });
  }
}

interface MemoryCheck {
  platformOf: (architecture: MachineFile['architecture']) => Promise<GuestPlatform>;
  context: Pick<MachineContext, 'ownRoot'>;
  signal: AbortSignal;
}

/**
 * Checks all that can be known before the guest is paused: that the machine runs, that its memory can be saved, and that its guest can be renewed
 * after a start from it. Changes nothing.
 *
 * @throws ReasonedError `MemoryNotSaved` with the reason why not; the signal's reason when it aborts.
 */
export async function requireMemory(
  machine: QemuMachine,
  { platformOf, context, signal }: MemoryCheck,
): Promise<void> {
  const state = await machine.inspect();
  const file = await machine.state.read();
  if (state.kind !== 'running' || file === undefined) {
    throw notRunning();
  }
  const { accelerator } = requireSavable({ ...file, paused: state.paused });
  requireStartable(await platformOf(file.architecture), context);
  const hypervisor = await machine.required();
  await requireGuestAgent(await hypervisor.qmp());
  await requireRenewed(hypervisor, { accelerator, signal });
}

/** Returns the error for a machine that has no memory to save. */
export function notRunning(): ReasonedError {
  return new ReasonedError(
    'MemoryNotSaved',
    'The VM does not run, so it has no memory to save. Start the VM',
  );
}

/** @throws ReasonedError `MemoryNotSaved` when the guest could not be renewed after a start from its memory. */
async function requireRenewed(
  { guestAgent }: Hypervisor,
  options: { accelerator: string; signal: AbortSignal },
): Promise<void> {
  try {
    await requireRenewable(guestAgent, options);
  } catch (error) {
    options.signal.throwIfAborted();
    const message = `The guest could not be renewed later: ${messageOf(error)}`;
    throw new ReasonedError('MemoryNotSaved', message, { cause: error });
  }
}
