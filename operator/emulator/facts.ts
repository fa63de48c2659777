/** Gathers the facts of an Emulator that are written to its status: the time of its first run, and its failure. All functions are pure. */
import type { EmulatorStatus } from '../../api/v1alpha1/emulator.ts';
import type { Reason } from '../../api/v1alpha1/reasons.ts';
import { timestamp } from '../../base/time.ts';
import { boundTime, endOf, firstRun, lastReport, lostAt } from '../vm/facts.ts';
import { hasEnded } from '../vm/podstate.ts';
import type { Observed } from './observe.ts';
import { pairingOf } from './pairing.ts';
import { resolveSpec } from './spec.ts';

export type Failure = NonNullable<EmulatorStatus['failure']>;

export interface Facts {
  readonly firstRunningTime: string | undefined;
  /** Failure of this run of the VM. Undefined while the VM does not run, so that the emulator starts again with the VM. */
  readonly failure: Failure | undefined;
}

/** Reason of the failure after which the operator itself ends the Pod. */
export const TIMEOUT: Reason = 'DeployTimeout';

export function gatherFacts(observed: Observed): Facts {
  return {
    firstRunningTime: observed.emulator.status?.firstRunningTime ?? firstRun(observed),
    failure: failureOf(observed),
  };
}

function failureOf(observed: Observed): Failure | undefined {
  const { kind } = pairingOf(observed);
  return kind === 'ended' || kind === 'missing'
    ? undefined
    : (recordedFailure(observed) ?? newFailure(observed));
}

/** Returns the failure in the status. It is forgotten when somebody deletes the Pod of the failed emulator. */
function recordedFailure({ emulator, pod }: Observed): Failure | undefined {
  const recorded = emulator.status?.failure;
  return recorded?.reason === TIMEOUT || (pod !== undefined && hasEnded(pod)) ? recorded : undefined;
}

function newFailure(observed: Observed): Failure | undefined {
  const { pod, now } = observed;
  if (pod === undefined || pod.metadata.deletionTimestamp !== undefined) {
    return undefined;
  }
  const deadline = deployDeadline(observed);
  if (deadline !== undefined && now >= deadline) {
    return { reason: TIMEOUT, message: timeoutMessage(observed), time: timestamp(now) };
  }
  return hasEnded(pod) ? { ...endOf(pod), time: timestamp(now) } : undefined;
}

/** Returns when the deployment must be over, in milliseconds since the epoch; undefined while no deployment is under way. */
function deployDeadline(observed: Observed): number | undefined {
  const { pod } = observed;
  const isDeploying = pod?.spec.nodeName !== undefined && (pod.status?.phase ?? 'Pending') === 'Pending';
  const bound = isDeploying ? boundTime(pod) : undefined;
  return bound === undefined ? undefined : Date.parse(bound) + deploySeconds(observed) * 1000;
}

function deploySeconds({ emulator: { spec } }: Observed): number {
  return resolveSpec(spec).deployTimeoutSeconds;
}

function timeoutMessage(observed: Observed): string {
  const { pod } = observed;
  return `The emulator was not Running ${deploySeconds(observed)} s after it was bound to host ${pod?.spec.nodeName}${lastReport(pod)}`;
}

/**
 * Returns the milliseconds until the nearest deadline: of the deployment, or of a silent host. The result is undefined when there is no
 * deadline, and at least 1, so that no deadline is lost.
 */
export function untilNextDeadline(observed: Observed): number | undefined {
  const { now } = observed;
  const future = [deployDeadline(observed), lostAt(observed)].filter((at) => at !== undefined && at > now);
  return future.length === 0 ? undefined : Math.max(1, Math.min(...(future as number[])) - now);
}
