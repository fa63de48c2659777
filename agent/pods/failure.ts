/** What follows from a step that failed: try again, count it as an end of the machine, or give the machine up. Pure. */
import { waitAfter } from '../../base/backoff.ts';
import type { Desired } from '../../api/v1alpha1/machine.ts';
import { messageOf, reasonOf } from '../../base/errors.ts';
import { failed } from './plan.ts';
import type { MachineEnd, MachineFailure, MachineRecord } from './machine.ts';
import type { TaskKind } from './runtime.ts';

/** Between tries of a step; doubled up to the cap. */
const RETRY_FIRST_MILLISECONDS = 1_000;
const RETRY_CAP_MILLISECONDS = 60_000;
/** A machine that nobody has seen run is given up after so many tries, some 15 s: the VM can be placed on another host. */
const FIRST_RUN_ATTEMPTS = 4;

export type Verdict =
  | { kind: 'retry'; afterMilliseconds: number; message: string }
  | { kind: 'end'; end: MachineEnd }
  | { kind: 'fail'; failure: MachineFailure };

/** Faults that may pass by themselves: the source is away for a moment, or others' disks are in the way. */
const PASSING: ReadonlySet<string> = new Set(['ImageFetchFailed', 'DiskFull']);
/** Faults that people mend where they are, without touching the VM: tried again until its deployment has taken too long. */
const MENDABLE: ReadonlySet<string> = new Set(['PullSecretMissing', 'ImageAccessDenied']);
/** A machine that has run is never given up for these: they lie outside it. */
const OUTSIDE: ReadonlySet<string> = new Set([
  'PortTaken',
  'PortNotReservable',
  'NATSelfHealFailed',
  'OutOfMemory',
]);

/** Reasons of failures that carry none. */
const UNNAMED = { create: 'CreateFailed', start: 'StartFailed' } as const;

export interface FailedStep {
  kind: TaskKind;
  error: unknown;
  record: Readonly<MachineRecord>;
  desired: Desired | undefined;
  /** How often the step has failed in a row, this time included. */
  attempts: number;
  now: number;
}

export function verdictOf(step: FailedStep): Verdict {
  const { kind, error, record, attempts } = step;
  const message = messageOf(error);
  const retry: Verdict = {
    kind: 'retry',
    afterMilliseconds: waitAfter(attempts, RETRY_FIRST_MILLISECONDS, RETRY_CAP_MILLISECONDS),
    message,
  };
  const reason = reasonOf(error);
  if (!isFirst(kind) || MENDABLE.has(reason ?? '')) {
    return retry;
  }
  if (record.everRan) {
    return kind === 'start' ? afterRun(step, retry) : retry;
  }
  const passing = reason === undefined || PASSING.has(reason);
  return passing && attempts < FIRST_RUN_ATTEMPTS
    ? retry
    : { kind: 'fail', failure: failed(reason ?? UNNAMED[kind], message) };
}

/** Without these a machine never runs; the others are repeated until they succeed. */
function isFirst(kind: TaskKind): kind is keyof typeof UNNAMED {
  return kind === 'create' || kind === 'start';
}

function afterRun(step: FailedStep, retry: Verdict): Verdict {
  const { error, record, desired, now } = step;
  const reason = reasonOf(error);
  if (reason === undefined || OUTSIDE.has(reason) || record.end?.how === 'HostLost') {
    return retry;
  }
  const message = messageOf(error);
  return desired === undefined || desired.restartPolicy === 'Never'
    ? { kind: 'fail', failure: failed(reason, message) }
    : { kind: 'end', end: { how: 'Crashed', message, at: now } };
}
