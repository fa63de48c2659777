/**
 * The decision: from what a machine is and what is wanted of it, the one next step. Pure, so that its promises
 * are tested over many thousands of histories: nothing starts while its Pod is being deleted, a disk is removed
 * only with its Pod, the same end never counts twice.
 */
import { waitAfter } from '../../base/backoff.ts';
import { timestamp } from '../../base/time.ts';
import type { Desired } from '../../api/v1alpha1/machine.ts';
import type { MachineState } from '../drivers/driver.ts';
import type { DiskWish } from './diskguard.ts';
import type { MachineEnd, MachineFailure, MachineRecord } from './machine.ts';

/** A machine that keeps ending: the waits between its starts, as a kubelet has them. The first is at once. */
const RESTART_BACKOFF_MILLISECONDS = 10_000;
const RESTART_BACKOFF_CAP_MILLISECONDS = 300_000;
/** A machine whose memory has no room is looked at again after this: nobody announces room. */
const ROOM_MILLISECONDS = 5_000;
/** A run of this length forgives the ends before it. */
const FORGIVING_RUN_MILLISECONDS = 600_000;

/** The machine was there and its disk is not: somebody removed it, or the host's disk was lost. */
const DISK_LOST = 'DiskLost';

export interface Observed {
  state: MachineState;
  record: Readonly<MachineRecord>;
  /** The Pod is being deleted or is gone; the machine has until `deadline` (milliseconds since the epoch) to end in order. */
  deletion: { deadline: number } | undefined;
  /** The Lease could not be renewed: another host may be given the machines that nobody has yet seen running. */
  fenced: boolean;
  /** This agent has not yet seen the machine alive: an end happened together with the agent or the host. */
  unseen: boolean;
  /** `Pod.spec.activeDeadlineSeconds` ends here. */
  activeDeadline: number | undefined;
  /** Why the machine's network is unusable, while it is. */
  networkFault: string | undefined;
  /** `Pod.spec.terminationGracePeriodSeconds`. */
  graceMilliseconds: number;
  /** What the host's disk asks of the machine. */
  diskWish: DiskWish | undefined;
  /** Why the machine's memory has no room on the host's disk, while it has none. */
  noRoomToSuspend: string | undefined;
}

export type Step =
  /** What is wanted is there. */
  | { kind: 'settled' }
  | { kind: 'wait'; until: number | undefined; noRoomToSuspend?: string }
  /** Facts to remember; then plan again. */
  | { kind: 'note'; change: Partial<MachineRecord> }
  | { kind: 'fail'; failure: MachineFailure }
  /** Fetch the image and make the disk. */
  | { kind: 'create' }
  | { kind: 'start' }
  | { kind: 'stop'; graceMilliseconds: number }
  /** The guest stands still, for want of room on the host's disk, and goes on. */
  | { kind: 'pause' }
  | { kind: 'unpause' }
  | { kind: 'suspend' }
  | { kind: 'resume' }
  | { kind: 'revert' }
  /** End the process and give back its network, keep the disk. */
  | { kind: 'release'; graceMilliseconds: number }
  /** Delete the folder, disk included. */
  | { kind: 'remove' };

const SETTLED: Step = { kind: 'settled' };

/** The next step; `now` in milliseconds since the epoch. */
export function plan(observed: Observed, desired: Desired | undefined, now: number): Step {
  const { record, deletion } = observed;
  if (deletion !== undefined) {
    return leave(observed, Math.max(0, deletion.deadline - now));
  }
  if (record.failure !== undefined) {
    return record.released
      ? SETTLED
      : { kind: 'release', graceMilliseconds: record.failure.graceMilliseconds };
  }
  if (observed.fenced && !record.acknowledged) {
    return record.released ? { kind: 'wait', until: undefined } : { kind: 'release', graceMilliseconds: 0 };
  }
  const failure = failureOf(observed, now);
  return failure === undefined ? live(observed, desired, now) : { kind: 'fail', failure };
}

function live(observed: Observed, desired: Desired | undefined, now: number): Step {
  if (!observed.record.created) {
    return { kind: 'create' };
  }
  const change = noticed(observed, now);
  if (change !== undefined) {
    return { kind: 'note', change };
  }
  // Without a readable wish nothing changes.
  const step = desired === undefined ? SETTLED : towards(observed, desired, now);
  return step.kind === 'settled' || step.kind === 'wait' ? (forDisk(observed) ?? step) : step;
}

/** Whatever ends the guest's writing goes before, and whatever is wanted goes on afterwards. */
function forDisk({ state, diskWish }: Observed): Step | undefined {
  if (state.kind !== 'running' || diskWish === undefined || state.paused === (diskWish === 'pause')) {
    return undefined;
  }
  return { kind: diskWish };
}

function leave(observed: Observed, graceMilliseconds: number): Step {
  if (!observed.record.released || isAlive(observed.state)) {
    return { kind: 'release', graceMilliseconds };
  }
  return observed.state.kind === 'absent' ? SETTLED : { kind: 'remove' };
}

function isAlive(state: MachineState): boolean {
  return state.kind === 'running' || state.kind === 'suspended';
}

function failureOf(observed: Observed, now: number): MachineFailure | undefined {
  const { record } = observed;
  if (observed.activeDeadline !== undefined && now >= observed.activeDeadline) {
    return {
      reason: 'DeadlineExceeded',
      message: 'Pod was active on the node longer than the specified deadline',
      exitCode: 137,
      graceMilliseconds: observed.graceMilliseconds,
    };
  }
  if (observed.networkFault !== undefined && !record.everRan) {
    return failed('NATSelfHealFailed', observed.networkFault);
  }
  if (record.created && observed.state.kind === 'absent') {
    return failed(DISK_LOST, "the machine's folder is no longer on the host");
  }
  return undefined;
}

/** A failure of what has no process any more, or must not go on a moment longer. */
export function failed(reason: string, message: string): MachineFailure {
  return { reason, message, exitCode: 1, graceMilliseconds: 0 };
}

/** What the machine did without being asked, as facts to remember. */
function noticed(observed: Observed, now: number): Partial<MachineRecord> | undefined {
  const { record, state } = observed;
  if (state.kind === 'running') {
    // Started by an agent that did not live to write it down.
    const startedAt = record.startedAt ?? timestamp(now);
    return record.running
      ? undefined
      : { running: true, everRan: true, released: false, end: undefined, startedAt };
  }
  if (state.kind === 'suspended' || !record.running) {
    return undefined;
  }
  const end = endOf(observed, now);
  const ranFor = record.startedAt === undefined ? 0 : now - Date.parse(record.startedAt);
  return {
    running: false,
    startedWith: undefined,
    end,
    endsInARow: ranFor >= FORGIVING_RUN_MILLISECONDS ? 1 : record.endsInARow + 1,
  };
}

function endOf(observed: Observed, now: number): MachineEnd {
  const { state } = observed;
  if (state.kind === 'exited' && state.reason === 'GuestShutdown') {
    return { how: 'GuestShutdown', message: state.message, at: now };
  }
  if (observed.unseen) {
    const words = state.kind === 'exited' ? `: ${state.message}` : '';
    return {
      how: 'HostLost',
      message: `the machine ended together with the host or its agent${words}`,
      at: now,
    };
  }
  const message = state.kind === 'exited' ? state.message : 'the hypervisor is gone';
  return { how: 'Crashed', message, at: now };
}

function towards(observed: Observed, desired: Desired, now: number): Step {
  const { record, state } = observed;
  if (isPending(desired.revertRequestedAt, record.revertedAt)) {
    return isAlive(state) ? { kind: 'stop', graceMilliseconds: 0 } : { kind: 'revert' };
  }
  if (desired.power === 'Running') {
    return towardsRunning(observed, desired, now);
  }
  if (desired.power === 'Suspended' && state.kind === 'running') {
    return towardsSuspended(observed, now);
  }
  return desired.power === 'Stopped' && isAlive(state)
    ? { kind: 'stop', graceMilliseconds: observed.graceMilliseconds }
    : settledAfter(record, desired);
}

function towardsSuspended({ noRoomToSuspend }: Observed, now: number): Step {
  return noRoomToSuspend === undefined
    ? { kind: 'suspend' }
    : { kind: 'wait', until: now + ROOM_MILLISECONDS, noRoomToSuspend };
}

/** An action asked of a machine that is off has nothing to do, and an end is forgotten once the machine is wanted off. */
function settledAfter(record: Readonly<MachineRecord>, desired: Desired): Step {
  const restartedAt = desired.restartRequestedAt;
  if (record.end !== undefined || isPending(restartedAt, record.restartedAt)) {
    return { kind: 'note', change: { end: undefined, endsInARow: 0, restartedAt } };
  }
  return SETTLED;
}

function towardsRunning(observed: Observed, desired: Desired, now: number): Step {
  const { record, state } = observed;
  const restart = isPending(desired.restartRequestedAt, record.restartedAt);
  if (state.kind === 'suspended') {
    return { kind: 'resume' };
  }
  if (state.kind === 'running') {
    return restart ? { kind: 'stop', graceMilliseconds: observed.graceMilliseconds } : SETTLED;
  }
  return record.end === undefined || restart ? { kind: 'start' } : afterEnd(record, record.end, desired, now);
}

function afterEnd(record: Readonly<MachineRecord>, end: MachineEnd, desired: Desired, now: number): Step {
  if (end.how === 'HostLost') {
    return { kind: 'start' };
  }
  const policy = desired.restartPolicy;
  if (policy === 'Always' || (policy === 'OnFailure' && end.how === 'Crashed')) {
    const until = end.at + backoff(record.endsInARow);
    return now >= until ? { kind: 'start' } : { kind: 'wait', until };
  }
  return end.how === 'GuestShutdown' ? SETTLED : { kind: 'fail', failure: failed('Crashed', end.message) };
}

/** Milliseconds between an end and the next start. */
function backoff(endsInARow: number): number {
  return endsInARow <= 1
    ? 0
    : waitAfter(endsInARow - 1, RESTART_BACKOFF_MILLISECONDS, RESTART_BACKOFF_CAP_MILLISECONDS);
}

/** An action is a time asked for; it is done once per value. */
function isPending(asked: string | undefined, done: string | undefined): boolean {
  return asked !== undefined && asked !== done;
}
