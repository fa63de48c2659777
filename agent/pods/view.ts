/** What a machine looks like from outside, from what is known of it. Pure. */
import type { Desired } from '../../api/v1alpha1/machine.ts';
import { HOST_DISK_FULL, NO_ROOM_TO_SUSPEND } from '../../api/v1alpha1/names.ts';
import { PAUSED_MESSAGE } from './diskguard.ts';
import type { MachineRecord } from './machine.ts';
import type { Progress } from './machines.ts';
import type { PendingResize } from './resize.ts';
import type { MachinePhase, MachineView } from './status.ts';

export interface Seen {
  record: Readonly<MachineRecord>;
  progress: Progress;
  deleting: boolean;
  desired: Desired | undefined;
  desiredHash: string | undefined;
  accelerator: string | undefined;
  pendingResize: PendingResize | undefined;
}

export function viewOf(seen: Seen): MachineView {
  const { record, progress, desired } = seen;
  const { runtime, step } = progress;
  const settled = step.kind === 'settled' && runtime.task === undefined;
  const phase = phaseOf(seen, settled);
  const disk = phase === 'Running' ? diskTrouble(progress) : undefined;
  return {
    phase,
    message: messageOf(seen, phase),
    imageTrouble: phase === 'Pulling' ? runtime.trouble?.reason : undefined,
    progressPercent: runtime.task?.progressPercent,
    record,
    desired,
    desiredHash: settled ? seen.desiredHash : undefined,
    accelerator: seen.accelerator,
    guestShutdown: record.end?.how === 'GuestShutdown',
    readiness: runtime.readiness ?? { ready: false, message: 'not yet probed' },
    disk,
    network: runtime.network,
    guestAddress: runtime.address,
    pendingResize: seen.pendingResize,
  };
}

function diskTrouble({ runtime: { state }, step }: Progress): MachineView['disk'] {
  if (state.kind === 'running' && state.paused) {
    return { reason: HOST_DISK_FULL, message: PAUSED_MESSAGE };
  }
  return step.kind === 'wait' && step.noRoomToSuspend !== undefined
    ? { reason: NO_ROOM_TO_SUSPEND, message: `the machine is not suspended: ${step.noRoomToSuspend}` }
    : undefined;
}

function phaseOf(seen: Seen, settled: boolean): MachinePhase {
  const { record, progress, deleting } = seen;
  if (deleting) {
    return settled ? 'Failed' : 'Terminating';
  }
  if (record.failure !== undefined) {
    return record.released ? 'Failed' : 'Stopping';
  }
  return progress.runtime.task?.phase ?? restingPhase(progress);
}

function restingPhase({ runtime, step }: Progress): MachinePhase {
  if (runtime.state.kind === 'running') {
    return 'Running';
  }
  if (runtime.state.kind === 'suspended') {
    return 'Suspended';
  }
  if (step.kind === 'settled') {
    return 'Stopped';
  }
  return step.kind === 'create' ? 'Pulling' : 'Starting';
}

function messageOf({ record, progress }: Seen, phase: MachinePhase): string | undefined {
  const { trouble } = progress.runtime;
  if (trouble !== undefined) {
    return trouble.message;
  }
  const { end } = record;
  if (end === undefined || phase === 'Running') {
    return undefined;
  }
  return end.how === 'GuestShutdown'
    ? 'GuestShutdown: the guest powered itself off'
    : `${end.how}: ${end.message}`;
}
