/** Builds the parts of a Pod's status that are the same for all Pods of this host. */
import type { Container, ContainerState, ContainerStatus, Pod, PodCondition, PodStatus } from './core.ts';

/** Largest number of characters in a message. A kubelet limits a termination message to the same number. */
export const MESSAGE_LENGTH = 4096;

/** Exit code of a process that SIGTERM ended: 128 + 15. A kubelet reports the same code. */
export const STOPPED_EXIT_CODE = 143;

/** Returns at most the last `length` characters of a text. The end is kept, because the last lines contain the reason of a failure. */
export function truncateStart(text: string, length = MESSAGE_LENGTH): string {
  return text.length <= length ? text : `…${text.slice(1 - length)}`;
}

/**
 * Returns the status of a Pod that gets no machine on this host. The Pod stays Pending and does not fail, because a ReplicaSet would
 * replace a failed Pod within milliseconds, again and again.
 */
export function parkedStatus(
  pod: Pod,
  why: { reason: string; message: string },
  hostAddress: string,
  now: string,
): PodStatus {
  return {
    ...frame(pod, 'Pending', hostAddress, now),
    conditions: stamp(
      pod,
      [
        condition('Initialized', false, why.reason, why.message),
        condition('Ready', false, why.reason, why.message),
        condition('ContainersReady', false, why.reason),
      ],
      now,
    ),
    containerStatuses: pod.spec.containers.map((container) => ({
      ...emptyContainer(container),
      state: waiting(why.reason, why.message),
    })),
  };
}

/** Why a Pod fails without a machine. */
export interface PodRefusal {
  reason: string;
  message: string;
  exitCode: number;
  /** Whether the Pod is not to blame. Jobs can leave such a Pod out of their failures (`podFailurePolicy`). */
  isDisruption?: boolean;
}

/**
 * Returns the status of a Pod that fails without a machine. The Pod had no machine on this host, or the agent has no record of the machine.
 */
export function refusedStatus(pod: Pod, why: PodRefusal, hostAddress: string, now: string): PodStatus {
  const terminated = {
    exitCode: why.exitCode,
    reason: why.reason,
    message: truncateStart(why.message),
    finishedAt: now,
  };
  return {
    ...frame(pod, 'Failed', hostAddress, now),
    reason: why.reason,
    message: truncateStart(why.message),
    conditions: stamp(
      pod,
      [
        condition('Ready', false, 'PodFailed'),
        condition('ContainersReady', false, 'PodFailed'),
        ...(why.isDisruption === true ? [condition('DisruptionTarget', true, why.reason, why.message)] : []),
      ],
      now,
    ),
    containerStatuses: pod.spec.containers.map((container) => ({
      ...emptyContainer(container),
      state: { terminated },
    })),
  };
}

/** Returns the fields that are in the status of every Pod on this host: generation, phase, address and start time. */
export function frame(
  pod: Pod,
  phase: NonNullable<PodStatus['phase']>,
  hostAddress: string,
  now: string,
): PodStatus {
  return {
    ...(pod.metadata.generation === undefined ? {} : { observedGeneration: pod.metadata.generation }),
    phase,
    hostIP: hostAddress,
    hostIPs: [{ ip: hostAddress }],
    startTime: pod.status?.startTime ?? now,
  };
}

/** Condition of a Pod. Its reason must be a value of the type `Reason`. */
export type SaidCondition<Reason extends string> = PodCondition & { reason?: Reason };

export function waiting(reason: string, message?: string): ContainerState {
  return { waiting: { reason, ...(message === undefined ? {} : { message: truncateStart(message) }) } };
}

/** Returns the status of a container of which this host has no record. */
export function emptyContainer(container: Container): ContainerStatus {
  return {
    name: container.name,
    image: container.image,
    imageID: '',
    ready: false,
    started: false,
    restartCount: 0,
    // The API server always returns `lastState`. Without this field, the new status would always differ from the returned status, and each
    // comparison would cause a request to the API server.
    lastState: {},
  };
}

/** Builds a condition. With the type parameter, a caller can restrict the allowed reasons. */
export function condition<Reason extends string>(
  type: string,
  ok: boolean,
  reason?: Reason,
  message?: string,
): SaidCondition<Reason> {
  return {
    type,
    status: ok ? 'True' : 'False',
    ...(reason === undefined ? {} : { reason }),
    ...(message === undefined || message === '' ? {} : { message: truncateStart(message) }),
  };
}

/** Returns the conditions with their times and the generation. A condition keeps its transition time while its status stays the same. */
export function stamp(pod: Pod, conditions: PodCondition[], now: string): PodCondition[] {
  return conditions.map((condition) => {
    const before = pod.status?.conditions?.find(({ type }) => type === condition.type);
    const kept = before?.status === condition.status ? before.lastTransitionTime : undefined;
    return {
      ...condition,
      lastTransitionTime: kept ?? now,
      ...(pod.metadata.generation === undefined ? {} : { observedGeneration: pod.metadata.generation }),
    };
  });
}
