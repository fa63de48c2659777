/**
 * Plans the next step of a machine from its state and the state that its Pod wants. The function is pure, so that tests can check its
 * guarantees over thousands of random sequences of events. The guarantees are: No machine starts while its Pod is being deleted. The disk
 * of a VM is removed only with its Pod. The same end of a machine is never counted twice.
 *
 * The plan also counts how often a machine has stopped. When a VM stops, its emulators must end. With this count, the operator also notices
 * stops that the status of the VM never showed.
 */
import type { Desired, WantedSnapshot } from '../../api/v1alpha1/machine.ts';
import type { Reason } from '../../api/v1alpha1/reasons.ts';
import { waitAfter } from '../../base/backoff.ts';
import { timestamp } from '../../base/time.ts';
import type { RunningState } from '../drivers/driver.ts';
import type { DiskWish } from './diskguard.ts';
import { failed, stateDamaged } from './failure.ts';
import type {
  MachineEnd,
  MachineFailure,
  MachineOperation,
  MachineRecord,
  MachineStep,
  OperationKind,
  Runtime,
  SnapshotRecord,
  WantedMachine,
} from './machine.ts';

/**
 * Wait before the second restart of a machine that ends repeatedly. The first restart is immediate. Later waits become longer, up to
 * {@link RESTART_BACKOFF_CAP_MILLISECONDS}. A kubelet has the same two values.
 */
const RESTART_BACKOFF_MILLISECONDS = 10_000;
const RESTART_BACKOFF_CAP_MILLISECONDS = 300_000;
/**
 * Time until the next check if the host's disk has too little space to suspend a machine. The agent must check again, because it gets no
 * event when space becomes free.
 */
const ROOM_MILLISECONDS = 5_000;
/** If a machine runs this long, its earlier unrequested ends no longer lengthen the wait before its next restart. */
const FORGIVING_RUN_MILLISECONDS = 600_000;

/** Reason of the failure if the disk of a created machine is missing, because it was removed or the host's own disk was lost. */
const DISK_LOST: Reason = 'DiskLost';

/** Input of the plan. */
export interface Situation
  extends Omit<WantedMachine, 'pod' | 'desiredHash'>,
    Pick<Runtime, 'state' | 'unseen'> {
  record: Readonly<MachineRecord>;
  /**
   * Whether the host's Lease has expired. If it has expired, another host can get the VMs whose Pods the API server does not show as
   * running.
   */
  fenced: boolean;
  /** Reason why the machine's network is unusable; undefined while the network is usable. */
  networkFault: string | undefined;
  /** Request of the disk guard to pause or continue the machine. */
  diskWish: DiskWish | undefined;
  /** Message if the machine cannot be suspended, because its memory does not fit on the host's disk. Undefined if the memory fits. */
  noRoomToSuspend: string | undefined;
}

const REACHED: MachineStep = { kind: 'reached' };

/**
 * Operations that can be cancelled while they wait for a copy of the machine's disk, a revert also while it installs an operating system. The
 * planned steps of {@link OFF} do not wait for the copy.
 */
const WAITING: ReadonlySet<OperationKind> = new Set(['start', 'unpause', 'resume', 'revert']);
const OFF: ReadonlySet<MachineStep['kind']> = new Set(['stop', 'release', 'remove']);
/** Steps that need not begin before a snapshot is taken or removed. All others end this, and it is done later. */
const BESIDE_SNAPSHOT: ReadonlySet<MachineStep['kind']> = new Set([
  'reached',
  'wait',
  'note',
  'snapshot',
  'dropSnapshots',
]);

/** Returns the next step. `now` is in milliseconds since the epoch. */
export function plan(situation: Situation, now: number): MachineStep {
  const { record, deletion } = situation;
  if (deletion !== undefined) {
    return leave(situation, Math.max(0, deletion.deadline - now));
  }
  if (record.failure !== undefined) {
    return record.released && !holdsUser(record)
      ? REACHED
      : { kind: 'release', graceMilliseconds: record.failure.graceMilliseconds };
  }
  if (situation.fenced && !record.acknowledged) {
    return record.released ? { kind: 'wait', until: undefined } : { kind: 'release', graceMilliseconds: 0 };
  }
  const failure = failureOf(situation, now);
  return failure === undefined ? live(situation, now) : { kind: 'fail', failure };
}

/** Returns whether an operation that is under way must be cancelled. `step` is the step that is planned meanwhile. */
export function isObsolete(
  { kind }: Pick<MachineOperation, 'kind'>,
  step: MachineStep,
  { desired }: Pick<WantedMachine, 'desired'>,
): boolean {
  if (kind === 'create') {
    return step.kind !== 'create';
  }
  // A machine that has not started yet needs no stop, so the planner plans none.
  const startsInVain = kind === 'start' && desired !== undefined && wantsOff(desired);
  // Snapshots wait for copies of the disk, which can take long.
  if (kind === 'snapshot' || kind === 'dropSnapshots') {
    return !BESIDE_SNAPSHOT.has(step.kind);
  }
  return startsInVain || (WAITING.has(kind) && OFF.has(step.kind));
}

function live(situation: Situation, now: number): MachineStep {
  const { desired } = situation;
  if (!situation.record.created) {
    return { kind: 'create' };
  }
  const change = noticed(situation, now);
  if (change !== undefined) {
    return { kind: 'note', change };
  }
  // If the wanted state is unreadable, the machine stays as it is.
  const step = desired === undefined ? REACHED : towards(situation, desired, now);
  if (step.kind !== 'reached' && step.kind !== 'wait') {
    return step;
  }
  return forDisk(situation) ?? (step.kind === 'reached' ? forSnapshots(situation) : undefined) ?? step;
}

/**
 * Returns the step towards the wanted snapshots; undefined if there is none. A paused guest gets none, because its host has no room. Surplus
 * snapshots go first, because they take room.
 */
function forSnapshots({ record, state, desired }: Situation): MachineStep | undefined {
  if (desired?.snapshots === undefined || (state.kind === 'running' && state.paused)) {
    return undefined;
  }
  if (surplusSnapshots(record, desired).length > 0) {
    return { kind: 'dropSnapshots' };
  }
  return nextSnapshot(record, desired) === undefined ? undefined : { kind: 'snapshot' };
}

/** Returns the next snapshot to take. The result is undefined if each wanted one was taken or has failed. */
export function nextSnapshot(
  { snapshots: known = [] }: Readonly<MachineRecord>,
  { snapshots = [] }: Pick<Desired, 'snapshots'>,
): WantedSnapshot | undefined {
  return snapshots.find(({ uid }) => !known.some((one) => one.uid === uid));
}

/** Returns the snapshots of the host that the VM has no longer. */
export function surplusSnapshots(
  { snapshots: known = [] }: Readonly<MachineRecord>,
  { snapshots = [] }: Pick<Desired, 'snapshots'>,
): SnapshotRecord[] {
  return known.filter(({ uid }) => !snapshots.some((one) => one.uid === uid));
}

/** Returns the facts of a snapshot that the host has; undefined if it does not have it. */
export function takenSnapshot(
  { snapshots = [] }: Readonly<MachineRecord>,
  uid: string,
): SnapshotRecord['taken'] {
  return snapshots.find((one) => one.uid === uid)?.taken;
}

/**
 * Returns the step that the disk guard requests: `pause` or `unpause`. Returns undefined if there is no request, or if the machine is
 * already in the requested state. Other planned steps have priority.
 */
function forDisk({ state, diskWish }: Situation): MachineStep | undefined {
  if (state.kind !== 'running' || diskWish === undefined || state.paused === (diskWish === 'pause')) {
    return undefined;
  }
  return { kind: diskWish };
}

function leave(situation: Situation, graceMilliseconds: number): MachineStep {
  if (!situation.record.released || isAlive(situation.state)) {
    return { kind: 'release', graceMilliseconds };
  }
  return situation.state.kind === 'absent' ? REACHED : { kind: 'remove' };
}

/**
 * Returns whether an emulator still has its Linux user. A failed emulator keeps the user until its data is removed. So the planner plans
 * this removal as long as the failed emulator has a user, even if the emulator has never started.
 */
function holdsUser({ emulator, runAs }: Readonly<MachineRecord>): boolean {
  return emulator !== undefined && runAs !== undefined;
}

function isAlive(state: Situation['state']): boolean {
  return state.kind === 'running' || state.kind === 'suspended';
}

function failureOf(situation: Situation, now: number): MachineFailure | undefined {
  const { record } = situation;
  if (situation.activeDeadline !== undefined && now >= situation.activeDeadline) {
    return {
      reason: 'DeadlineExceeded',
      message: 'Pod was active on the node longer than the specified deadline',
      exitCode: 137,
      graceMilliseconds: situation.graceMilliseconds,
    };
  }
  if (situation.networkFault !== undefined && !record.everRan) {
    return failed('NATSelfHealFailed', situation.networkFault);
  }
  if (record.created && situation.state.kind === 'absent') {
    return failed(DISK_LOST, 'The folder of the machine is no longer on the host');
  }
  if (record.created && situation.state.kind === 'unreadable') {
    return stateDamaged(situation.state.message, record);
  }
  return undefined;
}

/**
 * If the record does not yet show that the machine runs or has ended, returns the changes for the record. If the record is up to date,
 * returns undefined.
 */
function noticed(situation: Situation, now: number): Partial<MachineRecord> | undefined {
  const { record, state } = situation;
  if (state.kind === 'running') {
    // If the record has no start time, the agent was restarted after it had started the machine and before it saved the time.
    const startedAt = record.startedAt ?? timestamp(now);
    return record.running
      ? undefined
      : {
          running: true,
          everRan: true,
          released: false,
          fresh: false,
          end: undefined,
          startedAt,
          // The driver knows how the guest began, also if the agent died just behind the start.
          ...(state.fromMemory === true && { warmStart: { reason: 'Renewed' } }),
        };
  }
  if (state.kind === 'suspended') {
    return undefined;
  }
  if (!record.running) {
    // The record can still have the size with which the machine was started. The start then failed, or the agent was restarted while it
    // stopped the machine.
    return record.startedWith === undefined ? undefined : { startedWith: undefined };
  }
  const end = endOf(situation, now);
  const ranFor = record.startedAt === undefined ? 0 : now - Date.parse(record.startedAt);
  return {
    ...offChange(record, restsAfter(end, record, situation.desired)),
    startedWith: undefined,
    end,
    endsInARow: ranFor >= FORGIVING_RUN_MILLISECONDS ? 1 : record.endsInARow + 1,
  };
}

function endOf(situation: Situation, now: number): MachineEnd {
  const { state } = situation;
  if (state.kind === 'exited' && state.reason === 'GuestShutdown') {
    return { how: 'GuestShutdown', message: state.message, at: now };
  }
  if (situation.unseen) {
    const cause = state.kind === 'exited' ? `: ${state.message}` : '';
    return {
      how: 'HostLost',
      message: `The machine ended while its host or the agent was down${cause}`,
      at: now,
    };
  }
  const message = state.kind === 'exited' ? state.message : 'The hypervisor has ended';
  return { how: 'Crashed', message, at: now };
}

function towards(situation: Situation, desired: Desired, now: number): MachineStep {
  const { record, state } = situation;
  if (isPending(desired.revertRequestedAt, record.revertedAt)) {
    // If the host lacks the snapshot, the step fails and says so. The machine must not be ended for that.
    const isPossible =
      desired.revertTo === undefined || takenSnapshot(record, desired.revertTo) !== undefined;
    return isAlive(state) && isPossible
      ? { kind: 'stop', graceMilliseconds: 0, isDiscarded: true }
      : { kind: 'revert' };
  }
  if (desired.powerState === 'Running') {
    return towardsRunning(situation, desired, now);
  }
  if (desired.powerState === 'Suspended' && state.kind === 'running') {
    return towardsSuspended(situation, state, now);
  }
  return desired.powerState === 'Stopped' && isAlive(state)
    ? { kind: 'stop', graceMilliseconds: situation.graceMilliseconds }
    : offAfter(record, desired);
}

function towardsSuspended(
  { noRoomToSuspend }: Situation,
  { cannotSuspend }: Pick<RunningState, 'cannotSuspend'>,
  now: number,
): MachineStep {
  if (cannotSuspend !== undefined) {
    // The hypervisor would refuse the suspension again and again. The report about the machine says so, and the guest runs on.
    return { kind: 'wait', until: undefined };
  }
  return noRoomToSuspend === undefined
    ? { kind: 'suspend' }
    : { kind: 'wait', until: now + ROOM_MILLISECONDS, noRoomToSuspend };
}

/**
 * Returns the step for a machine that is off and must stay off. If a user has requested a restart, or the record contains the machine's
 * last end, the step changes the record. The restart then counts as done, and the record no longer contains the end.
 */
function offAfter(record: Readonly<MachineRecord>, desired: Desired): MachineStep {
  const restartedAt = desired.restartRequestedAt;
  if (record.end !== undefined || isPending(restartedAt, record.restartedAt)) {
    return { kind: 'note', change: { end: undefined, endsInARow: 0, restartedAt } };
  }
  return REACHED;
}

function towardsRunning(situation: Situation, desired: Desired, now: number): MachineStep {
  const { record, state } = situation;
  const restart = isPending(desired.restartRequestedAt, record.restartedAt);
  if (state.kind === 'suspended') {
    return { kind: 'resume' };
  }
  if (state.kind === 'running') {
    return restart ? { kind: 'stop', graceMilliseconds: situation.graceMilliseconds } : REACHED;
  }
  return record.end === undefined || restart ? { kind: 'start' } : afterEnd(record, record.end, desired, now);
}

function afterEnd(
  record: Readonly<MachineRecord>,
  end: MachineEnd,
  desired: Desired,
  now: number,
): MachineStep {
  if (end.how === 'HostLost') {
    return { kind: 'start' };
  }
  const policy = desired.restartPolicy;
  if (policy === 'Always' || (policy === 'OnFailure' && end.how === 'Crashed')) {
    const until = end.at + backoff(record.endsInARow);
    // If the recorded time of the machine's end is later than now, the clock of the host was set back. In this case the machine starts at
    // once, because the wait until its restart could be endless.
    return now >= until || now < end.at ? { kind: 'start' } : { kind: 'wait', until };
  }
  // An emulator has no state Stopped in which it keeps its slot. So an emulator that ends by itself has failed.
  const mayRest = end.how === 'GuestShutdown' && record.emulator === undefined;
  return mayRest ? REACHED : { kind: 'fail', failure: failed('Crashed', end.message) };
}

/** Returns the milliseconds between an unrequested end of a machine and its next start. */
function backoff(endsInARow: number): number {
  return endsInARow <= 1
    ? 0
    : waitAfter(endsInARow - 1, RESTART_BACKOFF_MILLISECONDS, RESTART_BACKOFF_CAP_MILLISECONDS);
}

/**
 * Returns whether a requested restart or revert is not done yet. `asked` is the time of the last request, and `done` is the time of the
 * last request that was carried out.
 */
function isPending(asked: string | undefined, done: string | undefined): boolean {
  return asked !== undefined && asked !== done;
}

/** Returns whether a machine that is off must stay off. The result is also true if the wanted state is unreadable. */
export function wantsOff(desired: Desired | undefined): boolean {
  return desired?.powerState !== 'Running';
}

/** Returns whether a machine that ended by itself must stay off. If the machine must stay off, its VM gets the phase Stopped. */
function restsAfter(
  { how }: MachineEnd,
  record: Readonly<MachineRecord>,
  desired: Desired | undefined,
): boolean {
  if (desired === undefined || wantsOff(desired)) {
    return true;
  }
  const startsAgain =
    desired.restartPolicy === 'Always' ||
    isPending(desired.restartRequestedAt, record.restartedAt) ||
    isPending(desired.revertRequestedAt, record.revertedAt);
  return how === 'GuestShutdown' && !startsAgain;
}

/**
 * Returns the fields that change in the record of a machine that no longer runs. A second call for the same stop does not count the stop
 * again.
 */
export function offChange(
  { running, stops = 0 }: Readonly<MachineRecord>,
  staysOff: boolean,
): Pick<MachineRecord, 'running' | 'stops'> {
  return { running: false, ...(running && staysOff && { stops: stops + 1 }) };
}
