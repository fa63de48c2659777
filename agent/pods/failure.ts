/** Decides the consequence of a failed step: the step is tried again, the machine counts as crashed, or the machine fails for good. Pure. */
import { waitAfter } from '../../base/backoff.ts';
import type { Desired } from '../../api/v1alpha1/machine.ts';
import { classOf, isOfHost, type Reason, reasonIn } from '../../api/v1alpha1/reasons.ts';
import { messageOf } from '../../base/errors.ts';
import type { MachineEnd, MachineFailure, MachineRecord, OperationKind } from './machine.ts';

/** Wait before the second try of a step. The wait doubles after each failure, up to the cap. */
const RETRY_FIRST_MILLISECONDS = 1_000;
const RETRY_CAP_MILLISECONDS = 60_000;
/** Number of tries for a machine that has never run, about 15 s in total. Then it fails, so that the VM can move to another host. */
const FIRST_RUN_ATTEMPTS = 4;

/** Consequence of a failed step. */
export type Consequence =
  | { kind: 'retry'; afterMilliseconds: number; message: string }
  | { kind: 'end'; end: MachineEnd }
  | { kind: 'fail'; failure: MachineFailure };

/** Reasons for errors that carry no reason, by step. */
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
  const message = messageOf(error);
  const retry: Consequence = {
    kind: 'retry',
    afterMilliseconds: waitAfter(attempts, RETRY_FIRST_MILLISECONDS, RETRY_CAP_MILLISECONDS),
    message,
  };
  const reason = reasonIn(error);
  if (!isFirst(kind) || classOf(reason, 'VM') === 'mendable') {
    return retry;
  }
  if (record.everRan) {
    return kind === 'start' ? afterRun(step, retry) : retry;
  }
  const passing = reason === undefined || classOf(reason, 'VM') === 'passing';
  return passing && attempts < FIRST_RUN_ATTEMPTS
    ? retry
    : { kind: 'fail', failure: failed(reason ?? UNNAMED[kind], message) };
}

/** Returns whether the machine cannot run before this step succeeds. All other steps are repeated until they succeed. */
function isFirst(kind: OperationKind): kind is keyof typeof UNNAMED {
  return kind === 'create' || kind === 'start';
}

function afterRun(step: FailedStep, retry: Consequence): Consequence {
  const { error, record, desired, now } = step;
  const reason = reasonIn(error);
  if (reason === undefined || isOfHost(reason) || record.end?.how === 'HostLost') {
    return retry;
  }
  const message = messageOf(error);
  return desired === undefined || desired.restartPolicy === 'Never'
    ? { kind: 'fail', failure: failed(reason, message) }
    : { kind: 'end', end: { how: 'Crashed', message, at: now } };
}

/** Returns the failure of a machine that has no process any more, or that must end without grace. */
export function failed(reason: Reason, message: string): MachineFailure {
  return { reason, message, exitCode: 1, graceMilliseconds: 0 };
}

/** Grace of a guest that still runs without a readable record. It is the default grace of a deleted Pod. */
const DAMAGED_GRACE_MILLISECONDS = 30_000;

/** Returns the failure of a machine whose record is unreadable. The agent can neither continue the machine nor remove its disk. */
export function recordDamaged(path: string, message: string): MachineFailure {
  return {
    reason: 'RecordDamaged',
    message: `The agent's record of this machine cannot be read (${path}: ${message}). Its disk stays on the host until the VM is deleted`,
    exitCode: 1,
    graceMilliseconds: DAMAGED_GRACE_MILLISECONDS,
  };
}

/** Failure of a machine whose Pod was ended by the control plane. There is no grace because another Pod may have its slot and ports. */
export const ENDED_FROM_OUTSIDE: MachineFailure = {
  reason: 'PodEnded',
  message: 'The Pod was set to ended, and not by the agent of its host',
  exitCode: 137,
  graceMilliseconds: 0,
};
