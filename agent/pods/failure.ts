/** Failures of machines, and the consequence of a step that failed: try again, count it as an end, or give the machine up. Pure. */
import { waitAfter } from '../../base/backoff.ts';
import type { Desired } from '../../api/v1alpha1/machine.ts';
import { classOf, isOfHost, type Reason, reasonIn } from '../../api/v1alpha1/reasons.ts';
import { messageOf } from '../../base/errors.ts';
import type { MachineEnd, MachineFailure, MachineRecord, OperationKind } from './machine.ts';

/** Between tries of a step; doubled up to the cap. */
const RETRY_FIRST_MILLISECONDS = 1_000;
const RETRY_CAP_MILLISECONDS = 60_000;
/** A machine that nobody has seen run is given up after so many tries, some 15 s: the VM can be placed on another host. */
const FIRST_RUN_ATTEMPTS = 4;

/** The consequence of a step that failed. */
export type Consequence =
  | { kind: 'retry'; afterMilliseconds: number; message: string }
  | { kind: 'end'; end: MachineEnd }
  | { kind: 'fail'; failure: MachineFailure };

/** Reasons of failures that carry none. */
const UNNAMED = { create: 'CreateFailed', start: 'StartFailed' } as const;

export interface FailedStep {
  kind: OperationKind;
  error: unknown;
  record: Readonly<MachineRecord>;
  desired: Desired | undefined;
  /** How often the step has failed in a row, this time included. */
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

/** Without these a machine never runs; the others are repeated until they succeed. */
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

/** The failure of a machine that has no process any more, or must not go on a moment longer. */
export function failed(reason: Reason, message: string): MachineFailure {
  return { reason, message, exitCode: 1, graceMilliseconds: 0 };
}

/** A guest that still runs ends in order, as with a Pod that is deleted. */
const DAMAGED_GRACE_MILLISECONDS = 30_000;

/** The agent cannot go on with a machine that it knows nothing of, and must not remove its disk. */
export function recordDamaged(path: string, message: string): MachineFailure {
  return {
    reason: 'RecordDamaged',
    message: `The agent's record of this machine cannot be read (${path}: ${message}). Its disk stays on the host until the VM is deleted`,
    exitCode: 1,
    graceMilliseconds: DAMAGED_GRACE_MILLISECONDS,
  };
}

/** The control plane gave the Pod up: its slot and ports may be another's already. */
export const ENDED_FROM_OUTSIDE: MachineFailure = {
  reason: 'PodEnded',
  message: 'The Pod was ended from outside',
  exitCode: 137,
  graceMilliseconds: 0,
};
