/**
 * Starts, stops, restarts, suspends, resumes and reverts VMs. An action only writes the request, and the host acts later. For each command,
 * this file lists the fields that it changes, and the phases in which it is refused.
 */
import { conditionOf } from '../api/http/conditions.ts';
import type { Command } from '../api/http/vm.ts';
import type { VMPhase } from '../api/v1alpha1/phases.ts';
import { VM_SNAPSHOTS, VMS } from '../api/v1alpha1/resources.ts';
import type { VM, VMSpec } from '../api/v1alpha1/vm.ts';
import type { VMSnapshot } from '../api/v1alpha1/vmsnapshot.ts';
import { undefinedIf } from '../base/errors.ts';
import type { KubeClient } from '../kube/client.ts';
import { isConflict, isForbidden, unlessMissing } from '../kube/errors.ts';
import { changeObject } from './change.ts';
import { ActionError } from './error.ts';

/** What a command can be told: `revertTo` is the name of the snapshot to which `revert` resets the disk, instead of the image. */
export interface PowerDetails {
  readonly revertTo?: string | undefined;
}

/** Fields to write. Null removes a field. */
type SpecChange = { readonly [Field in keyof VMSpec]?: VMSpec[Field] | null };

interface Power {
  readonly spec: (vm: VM, details: PowerDetails) => SpecChange;
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
  revert: { spec: (_, details) => reverted(details), refusedIn: BEFORE_RUNNING },
};
export type PowerCommand = keyof typeof COMMANDS;

/**
 * Writes the command into the VM that `read` reads, and returns the VM with the command.
 *
 * @throws ActionError when the state of the VM does not allow the command, the VM has no such snapshot, or others change the VM at each
 * attempt; ApiError; errors of `read`.
 */
export async function requestPower(
  client: Pick<KubeClient, 'get' | 'mergePatch'>,
  word: PowerCommand,
  read: () => Promise<VM>,
  details: PowerDetails = {},
): Promise<VM> {
  let name = '';
  const attempt = async () => {
    const found = await read();
    const { namespace = '' } = found.metadata;
    ({ name } = found.metadata);
    const change = powerChange(found, word, details);
    await requireSnapshot(client, { namespace, name }, details);
    return await undefinedIf(isConflict, client.mergePatch<VM>(VMS, { namespace, name }, change));
  };
  return await changeObject(() => `VM ${name}`, attempt);
}

/**
 * Checks that the VM has the snapshot that `revertTo` names. Otherwise the VM would not be Ready until the next request. A user who may not
 * read VMSnapshots gets no check.
 *
 * @throws ActionError when the VM has no such snapshot; ApiError.
 */
async function requireSnapshot(
  client: Pick<KubeClient, 'get'>,
  { namespace, name }: { readonly namespace: string; readonly name: string },
  { revertTo }: PowerDetails,
): Promise<void> {
  if (revertTo === undefined) {
    return;
  }
  const read = client.get<VMSnapshot>(VM_SNAPSHOTS, { namespace, name: revertTo });
  const isOfVM = await unlessMissing(read).then(
    (snapshot) => snapshot?.spec.vmName === name,
    (error: unknown) => {
      if (isForbidden(error)) {
        return true;
      }
      throw error;
    },
  );
  if (!isOfVM) {
    throw new ActionError('missing', `VM ${name} has no snapshot ${revertTo}`);
  }
}

/** Returns the merge patch for the command. @throws ActionError when the VM's phase does not allow the command. */
function powerChange(vm: VM, word: PowerCommand, details: PowerDetails): object {
  const { refusedIn } = COMMANDS[word];
  const phase = phaseOf(vm);
  if ([...ENDED, ...refusedIn].includes(phase)) {
    const message = `VM ${vm.metadata.name} is ${phase}, so the command ${word} is refused`;
    throw new ActionError('refused', message);
  }
  const { uid, resourceVersion } = vm.metadata;
  const spec = COMMANDS[word].spec(vm, details);
  // A start must not request a restart that somebody else has requested since the VM was read.
  const isFirst = word === 'start' && spec.restartRequestedAt !== undefined;
  return { metadata: isFirst ? { uid, resourceVersion } : { uid }, spec };
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

/** Returns the fields that reset the disk. A snapshot that an earlier request named, or one at this moment, must not stay. */
function reverted({ revertTo }: PowerDetails): SpecChange {
  return { revertRequestedAt: new Date().toISOString(), revertTo: revertTo ?? null };
}

function restarted(): Partial<VMSpec> {
  return { powerState: 'Running', restartRequestedAt: new Date().toISOString() };
}

function phaseOf({ metadata, status = {} }: VM): VMPhase {
  return metadata.deletionTimestamp === undefined ? ((status.phase ?? 'Pending') as VMPhase) : 'Terminating';
}
