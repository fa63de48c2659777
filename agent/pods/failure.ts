/**
 * Decides what happens after a step has failed. Either the step is tried again, or the machine counts as crashed, or the machine fails
 * permanently. The functions are pure.
 */
import type { Desired } from '../../api/v1alpha1/machine.ts';
import {
  classOf,
  isOfHost,
  type Reason,
  reasonIn,
  type ReasonKind,
  retryAfterOf,
  waitAsked,
} from '../../api/v1alpha1/reasons.ts';
import { waitAfter } from '../../base/backoff.ts';
import { messageWithoutPaths } from '../../base/errors.ts';
import type { Pod } from '../../kube/core.ts';
import type {
  MachineDocument,
  MachineEnd,
  MachineFailure,
  MachineRecord,
  OperationKind,
  Runtime,
  MachineStep,
} from './machine.ts';
import type { PodRole } from './pod.ts';
import type { DamagedRecord } from './records.ts';

/** Wait before the second try of a step. The wait doubles after each failure, up to {@link RETRY_CAP_MILLISECONDS}. */
const RETRY_FIRST_MILLISECONDS = 1_000;
const RETRY_CAP_MILLISECONDS = 60_000;
/**
 * Wait, in milliseconds, before the next try of a failed step if the machine's record could not be saved, for example because the disk is
 * full. The record is still as it was before the step, so the agent tries the same step again.
 */
export const UNSAVED_MILLISECONDS = 10_000;
/**
 * Number of tries of a step for a machine that has never run. The waits between the tries take 7 s in total. After the last try, the
 * machine fails, so that its VM can move to another host.
 */
const FIRST_RUN_ATTEMPTS = 4;

/**
 * Time between two attempts to start an emulator whose VM does not run. The time is short, because an attempt costs little, and the VM can
 * run again at any time.
 */
const VM_AWAITED_MILLISECONDS = 2_000;

/** Consequence of a failed step. */
export type Consequence =
  | { kind: 'retry'; afterMilliseconds: number; message: string }
  | { kind: 'end'; end: MachineEnd }
  | { kind: 'fail'; failure: MachineFailure };

/** Reason of the machine's failure if the error of the step has no reason. The key is the kind of the step. */
const UNNAMED = { create: 'CreateFailed', start: 'StartFailed' } as const;

export interface FailedStep {
  kind: OperationKind;
  error: unknown;
  record: Readonly<MachineRecord>;
  desired: Desired | undefined;
  /** Number of failures of the step in a row, including this failure. */
  attempts: number;
  now: number;
}

export function consequenceOf(step: FailedStep): Consequence {
  const { kind, error, record, attempts } = step;
  const message = messageWithoutPaths(error);
  const retry: Consequence = {
    kind: 'retry',
    afterMilliseconds: waitAsked(
      waitAfter(attempts, RETRY_FIRST_MILLISECONDS, RETRY_CAP_MILLISECONDS),
      retryAfterOf(error),
    ),
    message,
  };
  const reason = reasonIn(error);
  if (reason === 'VMNotRunning') {
    return { ...retry, afterMilliseconds: VM_AWAITED_MILLISECONDS };
  }
  const nature = classOf(reason, kindOf(record));
  if (!isFirst(kind) || nature === 'mendable') {
    return retry;
  }
  if (record.everRan) {
    return kind === 'start' ? afterRun(step, retry) : retry;
  }
  const passing = reason === undefined || nature === 'passing';
  return passing && attempts < FIRST_RUN_ATTEMPTS
    ? retry
    : { kind: 'fail', failure: failed(reason ?? UNNAMED[kind], message) };
}

/**
 * Returns the milliseconds until a step may begin; 0 or less if it may begin now. After a failure, only the next try of the same kind of
 * step waits. So a start that fails does not delay the machine's deletion. `now` is a time of the clock `performance.now()`.
 */
export function waitBefore(
  { kind }: Readonly<MachineStep>,
  { failed: last }: Pick<Runtime, 'failed'>,
  now: number,
): number {
  return last?.kind === kind ? last.notBefore - now : 0;
}

function kindOf({ emulator }: Readonly<MachineDocument>): ReasonKind {
  return emulator === undefined ? 'VM' : 'Emulator';
}

/**
 * Returns whether a step of this kind must succeed before the machine can run. A failure of such a step can end the machine. Steps of other
 * kinds are repeated until they succeed.
 */
function isFirst(kind: OperationKind): kind is keyof typeof UNNAMED {
  return kind === 'create' || kind === 'start';
}

/**
 * Returns the consequence of a failed start of a machine that has run. The disk of a VM can have data of users, and a permanent failure
 * would take the disk from them. Therefore the start of a VM is tried again until it succeeds or somebody stops or deletes the VM.
 */
function afterRun(step: FailedStep, retry: Consequence): Consequence {
  const { error, record, desired, now } = step;
  const reason = reasonIn(error);
  if (reason === undefined || isOfHost(reason) || record.end?.how === 'HostLost') {
    return retry;
  }
  const message = messageWithoutPaths(error);
  if (desired !== undefined && desired.restartPolicy !== 'Never') {
    return { kind: 'end', end: { how: 'Crashed', message, at: now } };
  }
  return kindOf(record) === 'VM' ? retry : { kind: 'fail', failure: failed(reason, message) };
}

/** Returns a failure without grace period, for a machine whose process has ended or must end at once. */
export function failed(reason: Reason, message: string): MachineFailure {
  return { reason, message, exitCode: 1, graceMilliseconds: 0 };
}

/** Time for the shutdown of a running guest whose record is unreadable. This time is the default grace period of a deleted Pod. */
const DAMAGED_GRACE_MILLISECONDS = 30_000;

/** Returns the failure of a machine whose record is unreadable. The agent ends such a machine, but does not remove the disk of a VM. */
export function recordDamaged(
  { message }: Pick<DamagedRecord, 'message'>,
  document: Readonly<MachineDocument>,
): MachineFailure {
  return unusable(`The agent's record of this machine cannot be read (${message})`, document);
}

/**
 * Returns the failure of a machine whose state file is damaged. The disk of a VM stays, as after the failure of a machine whose record is
 * unreadable.
 */
export function stateDamaged(fault: string, document: Readonly<MachineDocument>): MachineFailure {
  return unusable(`The state of this machine cannot be read (${fault})`, document);
}

/**
 * Returns the failure of a machine whose record is missing. The disk of a VM stays, as after the failure of a machine whose record is
 * unreadable.
 */
export function recordMissing(document: Readonly<MachineDocument>): MachineFailure {
  return unusable("The agent's record of this machine is missing", document);
}

function unusable(message: string, { emulator }: Readonly<MachineDocument>): MachineFailure {
  const disk = emulator === undefined ? '. The disk stays on the host until the VM is deleted' : '';
  return {
    reason: 'RecordDamaged',
    message: `${message}${disk}`,
    exitCode: 1,
    graceMilliseconds: DAMAGED_GRACE_MILLISECONDS,
  };
}

/**
 * Returns whether the Pod's status shows that its machine was already created on this host. From then on, the disk of a VM can contain
 * users' data.
 */
export function hasMachine(pod: Readonly<Pod>, role: PodRole): boolean {
  return role.kind === 'machine' && pod.status?.phase === 'Running';
}

/** End of a Pod whose machine is gone. The host must not create the machine again, because the new machine would have an empty disk. */
export const MACHINE_LOST: { reason: Reason; message: string; exitCode: number } = {
  reason: 'DiskLost',
  message: 'The Pod has run, but the host has no record and no disk of its machine',
  exitCode: 1,
};

/**
 * Failure of a machine after the control plane has ended the machine's Pod. The guest has no grace period, because another Pod might
 * already have the machine's slot and ports.
 */
export const ENDED_FROM_OUTSIDE: MachineFailure = {
  reason: 'PodEnded',
  message: 'The Pod has ended, but the agent of its host did not report this end',
  exitCode: 137,
  graceMilliseconds: 0,
};
