/** Computes the next deadline of a VM. At this time, the VM must be reconciled, even if no object changes. */
import type { Pod } from '../../kube/core.ts';
import { timestamp } from '../../api/v1alpha1/schema.ts';
import { conditionIn } from '../objects/conditions.ts';
import { startsAgain } from './declared.ts';
import { lostAt } from '../podbacked/observe.ts';
import { deployTimeoutOf, type VMFacts, nextDeadline } from './facts.ts';
import type { ObservedVM } from './observe.ts';
import { containerState, machineCondition, machineOf, podCondition } from '../podbacked/pod.ts';
import { standingRefusal } from './size.ts';

/** Returns the milliseconds until the next deadline. The result is at least 1. It is undefined if there is no deadline. */
export function untilNextDeadline(observed: ObservedVM, facts: VMFacts): number | undefined {
  const { now } = observed;
  const moments = [
    finishedAndDue(observed),
    aliveUntil(observed),
    nextDeadline(observed, facts)?.at,
    lostAt(observed),
    standingRefusal(observed)?.retryAt,
    sshDueAt(observed),
  ];
  const future = moments.filter((moment) => moment !== undefined && moment > now) as number[];
  return future.length === 0 ? undefined : Math.max(1, Math.min(...future) - now);
}

/**
 * Returns the time when the TTL of an ended VM is over, in milliseconds since the epoch. The result is undefined if the VM has no TTL or
 * has not ended.
 */
export function finishedAndDue(observed: ObservedVM): number | undefined {
  const { ttlSecondsAfterFinished } = observed.vm.spec;
  const finishedAt = finishTime(observed);
  return ttlSecondsAfterFinished === undefined || finishedAt === undefined
    ? undefined
    : finishedAt + ttlSecondsAfterFinished * 1000;
}

const ALIVE_UNTIL = timestamp('Time after which the VM is deleted.');

/**
 * Returns the time after which the VM is deleted, in milliseconds since the epoch. The result is undefined if the VM has no such time, or if
 * the value is not a time. Admission refuses a value that is not a time.
 */
export function aliveUntil({ vm }: ObservedVM): number | undefined {
  const { success, data } = ALIVE_UNTIL.safeParse(vm.spec.aliveUntil);
  return success ? Date.parse(data) : undefined;
}

/**
 * Returns the time when the VM ended, in milliseconds since the epoch. This is the time of its recorded failure. Unless the restartPolicy is
 * Always, it can also be the time when the guest shut itself down.
 */
function finishTime(observed: ObservedVM): number | undefined {
  const { failure } = observed.vm.status ?? {};
  if (failure !== undefined) {
    return Date.parse(failure.time);
  }
  return startsAgain(observed) ? undefined : shutDownTime(observed);
}

/**
 * Returns the time when the guest shut itself down, in milliseconds since the epoch. The clock of the host can be wrong. Therefore the time
 * is not before the last transition of the VM's condition Ready, which the operator stored by its own clock.
 */
function shutDownTime({ vm, pod }: ObservedVM): number | undefined {
  const condition = pod === undefined || machineOf(pod) === undefined ? undefined : machineCondition(pod);
  const ready = conditionIn(vm.status, 'Ready');
  if (condition?.reason !== 'GuestShutdown' || ready === undefined || ready.status === 'True') {
    return undefined;
  }
  const { lastTransitionTime } = condition;
  return lastTransitionTime === undefined
    ? undefined
    : Math.max(Date.parse(lastTransitionTime), Date.parse(ready.lastTransitionTime));
}

/**
 * Returns the time when the guest must have an SSH server, in milliseconds since the epoch: `deployTimeoutSeconds` after the start of the
 * machine, or after the server was lost. The result is undefined while the server answers, and for a VM that does not wait for one.
 */
export function sshDueAt(observed: ObservedVM): number | undefined {
  const { pod } = observed;
  const ready = podCondition(pod, 'Ready');
  const started = pod === undefined || ready?.status === 'True' ? undefined : startWithSSH(pod);
  if (started === undefined) {
    return undefined;
  }
  const since = Math.max(Date.parse(started), Date.parse(ready?.lastTransitionTime ?? started));
  return since + deployTimeoutOf(observed) * 1000;
}

/** Returns the start of a running machine that waits for an SSH server, in RFC 3339. */
function startWithSSH(pod: Pod): string | undefined {
  return machineOf(pod)?.readiness.type === 'SSH' ? containerState(pod)?.running?.startedAt : undefined;
}
