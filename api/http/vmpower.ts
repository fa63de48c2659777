/**
 * Commands that change the power state or the disk of a VM. For each command, this file lists the fields that the command changes, and the
 * phases in which it is refused. The HTTP API and the `berth` command use these commands.
 */
import type { VMPhase } from '../v1alpha1/phases.ts';
import type { VM, VMSpec } from '../v1alpha1/vm.ts';
import { conditionOf } from './conditions.ts';
import type { Command } from './vmaction.ts';

interface Power {
  readonly spec: (vm: VM) => Partial<VMSpec>;
  /** Phases in which the command is refused. Every command is also refused if the VM has ended. */
  readonly refusedIn: readonly VMPhase[];
}

const BEFORE_RUNNING: readonly VMPhase[] = ['Pending', 'Scheduled', 'Pulling', 'Cloning'];
const WITHOUT_MEMORY: readonly VMPhase[] = [...BEFORE_RUNNING, 'Starting', 'Stopping', 'Stopped'];
const ENDED: readonly VMPhase[] = ['Failed', 'Terminating'];

const COMMANDS: Readonly<Record<Command | 'restart', Power>> = {
  start: { spec: startOf, refusedIn: [] },
  stop: { spec: () => ({ powerState: 'Stopped' }), refusedIn: [] },
  restart: { spec: restarted, refusedIn: BEFORE_RUNNING },
  suspend: { spec: () => ({ powerState: 'Suspended' }), refusedIn: WITHOUT_MEMORY },
  resume: { spec: () => ({ powerState: 'Running' }), refusedIn: WITHOUT_MEMORY },
  revert: { spec: () => ({ revertRequestedAt: new Date().toISOString() }), refusedIn: BEFORE_RUNNING },
};
export type PowerCommand = keyof typeof COMMANDS;

/** Largest number of attempts to write a command. An attempt fails if somebody else has written the VM since the last read. */
const ATTEMPTS = 5;

/** Functions that read and write the VM for a command. */
export interface PowerAccess {
  readonly read: () => Promise<VM>;
  /** Writes a merge patch. Resolves with undefined if the VM no longer has the uid and the resourceVersion of the patch. */
  readonly write: (patch: object) => Promise<VM | undefined>;
}

/**
 * Writes the command into the VM. Returns the VM with the command, or the reason why the command is refused.
 *
 * @throws the errors of `access`.
 */
export async function requestPower(
  word: PowerCommand,
  access: PowerAccess,
): Promise<{ vm: VM } | { refusal: string }> {
  for (let attempt = 1; ; attempt += 1) {
    const found = await access.read();
    const change = powerChange(found, word);
    if ('refusal' in change) {
      return change;
    }
    const vm = await access.write(change.patch);
    if (vm !== undefined) {
      return { vm };
    }
    if (attempt === ATTEMPTS) {
      return { refusal: `Other clients are changing VM ${found.metadata.name}. Try again` };
    }
  }
}

/** Returns the merge patch for the command, or the reason why the VM's phase does not allow the command. */
function powerChange(vm: VM, word: PowerCommand): { patch: object } | { refusal: string } {
  const { refusedIn } = COMMANDS[word];
  const phase = phaseOf(vm);
  if ([...ENDED, ...refusedIn].includes(phase)) {
    return { refusal: `VM ${vm.metadata.name} is ${phase}, so the command ${word} is refused` };
  }
  const { uid, resourceVersion } = vm.metadata;
  const spec = COMMANDS[word].spec(vm);
  // A start must not request a restart that somebody else has requested since the VM was read.
  const isFirst = word === 'start' && spec.restartRequestedAt !== undefined;
  return { patch: { metadata: isFirst ? { uid, resourceVersion } : { uid }, spec } };
}

/**
 * Returns the fields that start a VM. A VM whose guest shut down by itself starts only after a request for a restart. A start that is
 * repeated must not request another restart. Otherwise the host would restart the machine that it has just started.
 */
function startOf(vm: VM): Partial<VMSpec> {
  const { spec, status = {} } = vm;
  // After a stop by a user, the reason is Stopped. After a start by a user, it is Starting until the host has begun to start the machine.
  const isOnRequest = ['Stopped', 'Starting'].includes(conditionOf(vm, 'Ready')?.reason ?? '');
  const isOwnEnd = status.phase === 'Stopped' && !isOnRequest;
  const isRequested = spec.restartRequestedAt !== undefined && spec.restartRequestedAt !== status.restartedAt;
  return isOwnEnd && !isRequested ? restarted() : { powerState: 'Running' };
}

function restarted(): Partial<VMSpec> {
  return { powerState: 'Running', restartRequestedAt: new Date().toISOString() };
}

function phaseOf({ metadata, status = {} }: VM): VMPhase {
  return metadata.deletionTimestamp === undefined ? ((status.phase ?? 'Pending') as VMPhase) : 'Terminating';
}
