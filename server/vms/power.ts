/** Starts, stops, suspends, resumes and reverts VMs. */
import type { Command } from '../../api/http/vmaction.ts';
import type { VMPhase } from '../../api/v1alpha1/phases.ts';
import type { VM, VMSpec } from '../../api/v1alpha1/vm.ts';
import type { KubeClient } from '../../kube/client.ts';
import { type NamespacedRef, getAs } from '../callers/objects.ts';
import { StatusError } from '../http/errors.ts';
import { VMS } from '../resources.ts';

interface Power {
  readonly spec: () => Partial<VMSpec>;
  /** Phases in which the command makes no sense, besides those of VMs that have ended. */
  readonly refusedIn: readonly VMPhase[];
}

const BEFORE_RUNNING: readonly VMPhase[] = ['Pending', 'Scheduled', 'Pulling', 'Cloning'];
const ENDED: readonly VMPhase[] = ['Failed', 'Terminating'];

const COMMANDS: Readonly<Record<Command, Power>> = {
  start: { spec: () => ({ powerState: 'Running' }), refusedIn: [] },
  stop: { spec: () => ({ powerState: 'Stopped' }), refusedIn: [] },
  suspend: {
    spec: () => ({ powerState: 'Suspended' }),
    refusedIn: [...BEFORE_RUNNING, 'Starting', 'Stopping', 'Stopped'],
  },
  resume: {
    spec: () => ({ powerState: 'Running' }),
    refusedIn: [...BEFORE_RUNNING, 'Starting', 'Stopping', 'Stopped'],
  },
  revert: { spec: () => ({ revertRequestedAt: new Date().toISOString() }), refusedIn: BEFORE_RUNNING },
};

/** Gives the command to the VM. The host follows it later. @throws StatusError 409 when the state of the VM does not allow it. */
export async function command(client: KubeClient, ref: NamespacedRef, word: Command): Promise<void> {
  const vm = await getAs(client, VMS, ref);
  const { spec, refusedIn } = COMMANDS[word];
  const phase = phaseOf(vm);
  if ([...ENDED, ...refusedIn].includes(phase)) {
    throw new StatusError(409, `VM ${ref.name} is ${phase}, so the command ${word} is refused`);
  }
  await client.mergePatch(VMS, ref, { metadata: { uid: vm.metadata.uid }, spec: spec() });
}

function phaseOf({ metadata, status = {} }: VM): VMPhase {
  return metadata.deletionTimestamp === undefined ? ((status.phase ?? 'Pending') as VMPhase) : 'Terminating';
}
