/**
 * Brings machines to their wanted state: inspects each machine, plans one step and starts this step. Long steps run in the background and
 * call `changed` at the end.
 */
import { reasonIn, type SaidReason } from '../../api/v1alpha1/reasons.ts';
import { messageWithoutPaths } from '../../base/errors.ts';
import { soonest } from '../../base/time.ts';
import { driverOf } from '../drivers/hostdrivers.ts';
import { UnreadableFileError } from '../drivers/statefile.ts';
import type { GuardedMachine } from './diskguard.ts';
import { consequenceOf, UNSAVED_MILLISECONDS, waitBefore } from './failure.ts';
import { event, type PodHost } from './host.ts';
import {
  type MachineFailure,
  type MachineOperation,
  type MachinePhase,
  type MachineRecord,
  type MachineStep,
  newRuntime,
  type OperationKind,
  type Runtime,
  suspendedBytes,
  type WantedMachine,
} from './machine.ts';
import { beginMerge, endMerge } from './merges.ts';
import { isObsolete, plan, type Situation } from './plan.ts';
import { STEPS } from './steps.ts';

type SnapshotStep = 'snapshot' | 'dropSnapshots';

/**
 * Limit of consecutive planned steps that only change the machine's record. More such steps are a sign that the planner is in an endless
 * loop.
 */
const ROUNDS = 8;
/**
 * Number of consecutive failed network checks after which a new machine fails. A machine is new if it has never run. One failed check is
 * not enough, because the check can run during a repair of the network.
 */
const FAULTY_CHECKS = 2;
/** Phases of a machine during a step. A snapshot changes the phase of no machine. */
const PHASES: Readonly<Record<Exclude<OperationKind, SnapshotStep>, MachinePhase>> = {
  create: 'Pulling',
  start: 'Starting',
  stop: 'Stopping',
  pause: 'Running',
  unpause: 'Running',
  suspend: 'Suspending',
  resume: 'Resuming',
  revert: 'Starting',
  release: 'Stopping',
  remove: 'Terminating',
};

/**
 * Operations that stop a guest. Until such an operation ends, the guest can write to the disk, and no other step of the machine can start.
 */
const ENDING: ReadonlySet<OperationKind> = new Set(['stop', 'release']);
/** Operations during which a guest can write to the disk. */
const WRITING: ReadonlySet<OperationKind> = new Set([...ENDING, 'snapshot', 'dropSnapshots']);

/** Progress of a machine towards the wanted state. */
export interface MachineProgress {
  /** Step that was started or waits for its start. The step `reached` means that the machine is already as wanted. */
  step: MachineStep;
  /** Time of the next check of the machine if nothing changes earlier, in milliseconds since the epoch. Undefined if no check is needed. */
  again: number | undefined;
}

export class Machines {
  readonly #host: PodHost;
  readonly #changed: (key: string) => void;
  readonly #runtimes = new Map<string, Runtime>();

  /** `changed` is called with the Pod's key (`namespace/name`) of each machine that must be inspected again. */
  constructor(host: PodHost, changed: (key: string) => void) {
    this.#host = host;
    this.#changed = changed;
  }

  runtime(record: MachineRecord): Runtime {
    const known = this.#runtimes.get(record.uid);
    if (known !== undefined) {
      return known;
    }
    const made = newRuntime(record, this.#host.machinesDirectory);
    this.#runtimes.set(record.uid, made);
    return made;
  }

  /** Forgets a machine that is removed from the host and whose Pod no longer exists. */
  forget(record: Readonly<MachineRecord>): void {
    this.#runtimes.delete(record.uid);
    this.#host.records.remove(record.uid);
    this.#host.images.release(`machine/${record.uid}`);
  }

  /** Returns the machines whose guests are paused or can write. */
  guarded(): GuardedMachine[] {
    return [...this.#runtimes.values()].flatMap(({ record: { uid }, state, operation }) =>
      state.kind === 'running' && (operation === undefined || WRITING.has(operation.kind))
        ? [{ uid, paused: state.paused }]
        : [],
    );
  }

  async drive(runtime: Runtime, wanted: WantedMachine): Promise<MachineProgress> {
    for (let round = 0; round < ROUNDS; round += 1) {
      if (runtime.operation !== undefined) {
        return this.#underWay(runtime, wanted, runtime.operation);
      }
      runtime.state = await inspect(this.#host, runtime, wanted);
      if (runtime.state.kind === 'running') {
        runtime.unseen = false;
      }
      const now = Date.now();
      const progress = this.#take(runtime, wanted, plan(this.#situation(runtime, wanted), now), now);
      if (progress !== undefined) {
        return progress;
      }
    }
    throw new Error(
      `The planner changed the record of machine ${runtime.record.uid} ${ROUNDS} times in a row, and planned no other step`,
    );
  }

  /**
   * Begins the merge that is due for a machine, if no other machine of the host merges. Each merge looks at the room of the host alone, and
   * reads and writes whole layers.
   */
  #merge(runtime: Runtime, wanted: WantedMachine): void {
    const isBusy = [...this.#runtimes.values()].some(({ merge }) => merge !== undefined);
    if (!isBusy) {
      beginMerge(this.#host, runtime, wanted, () => this.#changed(runtime.record.key));
    }
  }

  #situation(runtime: Runtime, wanted: WantedMachine): Situation {
    const suspending = [...this.#runtimes.values()].filter(({ operation }) => operation?.kind === 'suspend');
    return situationOf(this.#host, runtime, wanted, suspending);
  }

  /** Carries out a planned step. Returns undefined if the step only changed the record, so that the caller plans again. */
  #take(
    runtime: Runtime,
    wanted: WantedMachine,
    step: MachineStep,
    now: number,
  ): MachineProgress | undefined {
    const { record } = runtime;
    const activeDeadline = ahead(record, wanted, now);
    switch (step.kind) {
      case 'note':
        this.#host.records.update(record, step.change);
        this.#tellEnd(wanted, step.change);
        return undefined;
      case 'fail':
        this.#fail(record, wanted, step.failure);
        return undefined;
      case 'reached':
        runtime.trouble = undefined;
        this.#merge(runtime, wanted);
        return { step, again: activeDeadline };
      case 'wait':
        return { step, again: soonest(step.until, activeDeadline) };
      default: {
        const waitMilliseconds = waitBefore(step, runtime, performance.now());
        if (waitMilliseconds > 0) {
          return { step, again: soonest(now + waitMilliseconds, activeDeadline) };
        }
        this.#begin(runtime, wanted, step);
        return { step, again: activeDeadline };
      }
    }
  }

  /**
   * Plans again while an operation runs, because the operation might have become unnecessary, or its grace period might have to end sooner.
   */
  #underWay(runtime: Runtime, wanted: WantedMachine, operation: MachineOperation): MachineProgress {
    const now = Date.now();
    const step = plan(this.#situation(runtime, wanted), now);
    if (isObsolete(operation, step, wanted)) {
      operation.abort.abort(new Error('The machine is no longer wanted'));
    }
    const until = this.#hurry(runtime.record, wanted, operation);
    const again = soonest(until, discardIfDue(operation, wanted), ahead(runtime.record, wanted, now));
    return { step: { kind: 'wait', until }, again };
  }

  /**
   * Ends the grace period of a stop if the deadline of the Pod's deletion has passed, or if the guest fills the disk. Returns the
   * deletion's deadline if it is in the future and before the operation's own deadline.
   */
  #hurry(
    { uid }: Readonly<MachineRecord>,
    { deletion }: WantedMachine,
    { kind, deadline, hurry }: MachineOperation,
  ): number | undefined {
    const isFilling = ENDING.has(kind) && this.#host.disk.wish(uid) === 'pause';
    const isSooner = deletion !== undefined && deadline !== undefined && deletion.deadline < deadline;
    // A guest that fills the disk gets no further time to shut down.
    if (isFilling || (isSooner && Date.now() >= deletion.deadline)) {
      hurry.abort();
    }
    return isSooner && !hurry.signal.aborted ? deletion.deadline : undefined;
  }

  #begin(runtime: Runtime, wanted: WantedMachine, step: MachineStep & { kind: OperationKind }): void {
    const { uid, key } = runtime.record;
    const { pod, desired } = wanted;
    const operation: MachineOperation = {
      kind: step.kind,
      pod,
      desired,
      graceMilliseconds: 'graceMilliseconds' in step ? step.graceMilliseconds : wanted.graceMilliseconds,
      phase: phaseDuring(step.kind, runtime),
      progressPercent: undefined,
      bytesPerSecond: undefined,
      abort: new AbortController(),
      hurry: new AbortController(),
      discard: new AbortController(),
      deadline: undefined,
      changed: () => this.#changed(key),
    };
    discardIfDue(operation, wanted);
    if ('isDiscarded' in step) {
      operation.discard.abort();
    }
    runtime.operation = operation;
    endMerge(runtime);
    void STEPS[step.kind](this.#host, runtime, operation)
      .then(
        () => {
          runtime.failed = undefined;
          runtime.trouble = undefined;
        },
        (error: unknown) => this.#failed(runtime, wanted, operation, error),
      )
      .catch((error: unknown) => {
        this.#host.logger.error(
          { err: error, uid },
          'The failure of a step could not be saved in the record of a machine',
        );
      })
      .finally(() => {
        runtime.operation = undefined;
        operation.changed();
      });
  }

  #failed(runtime: Runtime, wanted: WantedMachine, { kind, abort }: MachineOperation, error: unknown): void {
    if (abort.signal.aborted) {
      return;
    }
    const attempts = runtime.failed?.kind === kind ? runtime.failed.attempts + 1 : 1;
    runtime.failed = { kind, attempts, notBefore: performance.now() + UNSAVED_MILLISECONDS };
    const { record } = runtime;
    const now = Date.now();
    const consequence = consequenceOf({ kind, error, record, desired: wanted.desired, attempts, now });
    // `VMNotRunning` is not a fault: the agent tries to start an emulator again and again until the emulator's VM runs.
    const level = reasonIn(error) === 'VMNotRunning' ? 'debug' : 'warn';
    this.#host.logger[level](
      { err: error, uid: record.uid, pod: record.key, step: kind, consequence: consequence.kind },
      'A step of a machine failed',
    );
    switch (consequence.kind) {
      case 'retry':
        runtime.failed.notBefore = performance.now() + consequence.afterMilliseconds;
        runtime.trouble = { reason: reasonIn(error), message: consequence.message };
        return;
      case 'end':
        this.#host.records.update(record, { end: consequence.end, endsInARow: record.endsInARow + 1 });
        runtime.failed.notBefore = 0;
        this.#tellEnd(wanted, { end: consequence.end });
        return;
      case 'fail':
        this.#fail(record, wanted, consequence.failure);
    }
  }

  #fail(record: MachineRecord, wanted: WantedMachine, failure: MachineFailure): void {
    this.#host.records.update(record, { failure });
    this.#tell(wanted, 'Warning', failure.reason, failure.message);
  }

  #tellEnd(wanted: WantedMachine, { end }: Partial<MachineRecord>): void {
    if (end !== undefined) {
      this.#tell(wanted, end.how === 'GuestShutdown' ? 'Normal' : 'Warning', end.how, end.message);
    }
  }

  #tell(wanted: WantedMachine, type: 'Normal' | 'Warning', reason: SaidReason, message: string): void {
    event(this.#host, wanted, { type, reason, action: 'Run', message });
  }
}

function phaseDuring(kind: OperationKind, { state }: Readonly<Runtime>): MachinePhase {
  if (kind !== 'snapshot' && kind !== 'dropSnapshots') {
    return PHASES[kind];
  }
  return state.kind === 'running' ? 'Running' : state.kind === 'suspended' ? 'Suspended' : 'Stopped';
}

function isDiscarded({ deletion }: Pick<WantedMachine, 'deletion'>): boolean {
  return deletion !== undefined && Date.now() >= deletion.deadline;
}

/**
 * If the deletion of the machine waits no longer for the guest, tells the operation so. Otherwise returns the time of that moment in
 * milliseconds since the epoch. The result is also undefined if the machine is not being deleted.
 */
function discardIfDue({ discard }: MachineOperation, wanted: WantedMachine): number | undefined {
  if (isDiscarded(wanted)) {
    discard.abort();
  }
  return discard.signal.aborted ? undefined : wanted.deletion?.deadline;
}

/** Returns the Pod's active deadline if it is in the future and the machine has not failed. */
function ahead(
  { failure }: Readonly<MachineRecord>,
  { activeDeadline }: WantedMachine,
  now: number,
): number | undefined {
  return failure === undefined && activeDeadline !== undefined && activeDeadline > now
    ? activeDeadline
    : undefined;
}

/**
 * Returns the present state of a machine.
 *
 * @throws UnreadableFileError when the system cannot read the machine's state file. A later try can succeed, so the machine does not fail.
 * If the Pod is being deleted, the function does not throw, because the machine must be removed anyway.
 */
async function inspect(
  host: Pick<PodHost, 'drivers' | 'emulators'>,
  { record, folder }: Readonly<Runtime>,
  wanted: Pick<WantedMachine, 'deletion'>,
): Promise<Runtime['state']> {
  try {
    return await driverOf(host, record).inspect(folder, { isDiscarded: isDiscarded(wanted) });
  } catch (error) {
    if (error instanceof UnreadableFileError && (error.isDamaged || wanted.deletion !== undefined)) {
      return { kind: 'unreadable', message: messageWithoutPaths(error) };
    }
    throw error;
  }
}

/** Returns the input of the plan for one machine. `suspending` are the machines that are being suspended. */
function situationOf(
  host: PodHost,
  { record, state, unseen }: Readonly<Runtime>,
  wanted: WantedMachine,
  suspending: readonly Readonly<Runtime>[],
): Situation {
  const { monitor, network } = host;
  const given = monitor.faultyChecks >= FAULTY_CHECKS && network.name === 'nat';
  return {
    ...wanted,
    record,
    state,
    unseen,
    fenced: host.fenced(),
    networkFault: given ? monitor.host?.message : undefined,
    diskWish: host.disk.wish(record.uid),
    noRoomToSuspend: noRoomToSuspend(host, record, suspending),
  };
}

/**
 * Returns a message if the host's disk has too little free space to suspend the machine. The space that the machines in `suspending` need
 * does not count as free.
 */
function noRoomToSuspend(
  { disk }: Pick<PodHost, 'disk'>,
  record: Readonly<MachineRecord>,
  suspending: readonly Readonly<Runtime>[],
): string | undefined {
  const promised = suspending.reduce((sum, other) => sum + suspendedBytes(other.record), 0);
  const needed = suspendedBytes(record);
  return needed <= disk.roomBytes - promised
    ? undefined
    : `its memory needs ${needed} bytes of disk in addition to images.minimumFree, but the host has fewer free bytes`;
}
