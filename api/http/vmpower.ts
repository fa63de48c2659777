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

/** Returns the merge patch for the command, or the reason why the VM's phase does not allow the command. */
export function powerChange(vm: VM, word: PowerCommand): { patch: object } | { refusal: string } {
  const { spec, refusedIn } = COMMANDS[word];
  const phase = phaseOf(vm);
  return [...ENDED, ...refusedIn].includes(phase)
    ? { refusal: `VM ${vm.metadata.name} is ${phase}, so the command ${word} is refused` }
    : { patch: { metadata: { uid: vm.metadata.uid }, spec: spec(vm) } };
}

/**
 * Returns the fields that start a VM. A VM whose guest shut down by itself starts only after a request for a restart. A start that is
 * repeated must not request another restart. Otherwise the host would restart the machine that it has just started.
 */
function startOf(vm: VM): Partial<VMSpec> {
  const { spec, status = {} } = vm;
  // After a stop by a user, this reason is Stopped. It stays until the host has begun to start the machine.
  const isOwnEnd = status.phase === 'Stopped' && conditionOf(vm, 'Ready')?.reason !== 'Stopped';
  const isRequested = spec.restartRequestedAt !== undefined && spec.restartRequestedAt !== status.restartedAt;
  return isOwnEnd && !isRequested ? restarted() : { powerState: 'Running' };
}

function restarted(): Partial<VMSpec> {
  return { powerState: 'Running', restartRequestedAt: new Date().toISOString() };
}

function phaseOf({ metadata, status = {} }: VM): VMPhase {
  return metadata.deletionTimestamp === undefined ? ((status.phase ?? 'Pending') as VMPhase) : 'Terminating';
}
