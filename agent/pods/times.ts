/** What a Pod says about time and ends. Pure. */
import { MACHINE_CONTAINER } from '../../api/v1alpha1/names.ts';
import type { Pod } from '../../kube/core.ts';
import type { Runtime } from './runtime.ts';

/** Kubernetes' own default. */
const GRACE_SECONDS = 30;

/** Whether the Pod says that its machine is gone: a container that was terminated can never leave that state. */
export function isEnded(pod: Readonly<Pod>): boolean {
  const { phase, containerStatuses = [] } = pod.status ?? {};
  const machine = containerStatuses.find(({ name }) => name === MACHINE_CONTAINER) ?? containerStatuses[0];
  const ended = phase === 'Failed' || phase === 'Succeeded';
  return machine?.state?.terminated !== undefined || (ended && machine === undefined);
}

/**
 * The deadline of a Pod's deletion: its grace, counted from when this agent first saw it, since two clocks differ. A shorter
 * grace that comes later counts from then, if that is sooner. Undefined while the Pod is not being deleted.
 */
export function leavingOf(
  pod: Readonly<Pod>,
  runtime: Runtime,
  now: number,
): { deadline: number } | undefined {
  const { deletionTimestamp, deletionGracePeriodSeconds: graceSeconds = GRACE_SECONDS } = pod.metadata;
  if (deletionTimestamp === undefined) {
    return undefined;
  }
  const before = runtime.leaving;
  if (before === undefined || graceSeconds < before.graceSeconds) {
    const deadline = Math.min(before?.deadline ?? Number.POSITIVE_INFINITY, now + graceSeconds * 1000);
    runtime.leaving = { graceSeconds, deadline };
  }
  return runtime.leaving;
}

/** `activeDeadline` in milliseconds since the epoch; undefined where the Pod has none, or has not started. */
export function podTimes(pod: Readonly<Pod>): {
  activeDeadline: number | undefined;
  graceMilliseconds: number;
} {
  const { activeDeadlineSeconds, terminationGracePeriodSeconds = GRACE_SECONDS } = pod.spec;
  const { startTime } = pod.status ?? {};
  const activeDeadline =
    activeDeadlineSeconds === undefined || startTime === undefined
      ? undefined
      : Date.parse(startTime) + activeDeadlineSeconds * 1000;
  return { activeDeadline, graceMilliseconds: terminationGracePeriodSeconds * 1000 };
}
