/** The parts that every Pod status of this host has, whatever the Pod is for. */
import type { Container, ContainerState, ContainerStatus, Pod, PodCondition, PodStatus } from './core.ts';

/** A kubelet keeps as much of a termination message. */
const MESSAGE_LENGTH = 4096;

/** 128 + SIGTERM and 128 + SIGKILL, as a kubelet reports processes that it ended. */
export const STOPPED_EXIT_CODE = 143;

/** The end of a long text: the last words matter. */
export function lastWords(text: string): string {
  return text.length <= MESSAGE_LENGTH ? text : `…${text.slice(1 - MESSAGE_LENGTH)}`;
}

/** A Pod that gets no machine here stays Pending, because a ReplicaSet would replace a failed one within milliseconds. */
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

/** A Pod that ends and never had a machine on this host, or none that this agent remembers. */
export function refusedStatus(
  pod: Pod,
  why: { reason: string; message: string; exitCode: number },
  hostAddress: string,
  now: string,
): PodStatus {
  const terminated = {
    exitCode: why.exitCode,
    reason: why.reason,
    message: lastWords(why.message),
    finishedAt: now,
  };
  return {
    ...frame(pod, 'Failed', hostAddress, now),
    reason: why.reason,
    message: lastWords(why.message),
    conditions: stamp(
      pod,
      [condition('Ready', false, 'PodFailed'), condition('ContainersReady', false, 'PodFailed')],
      now,
    ),
    containerStatuses: pod.spec.containers.map((container) => ({
      ...emptyContainer(container),
      state: { terminated },
    })),
  };
}

/** The fields that are the same in every status. */
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

/** A condition whose reason is one of these words. */
export type SaidCondition<Reason extends string> = PodCondition & { reason?: Reason };

export function waiting(reason: string, message?: string): ContainerState {
  return { waiting: { reason, ...(message === undefined ? {} : { message }) } };
}

/** A container that nothing is known of. */
export function emptyContainer(container: Container): ContainerStatus {
  return {
    name: container.name,
    image: container.image,
    imageID: '',
    ready: false,
    started: false,
    restartCount: 0,
    // The API server returns it in any case: left out, each look would find a difference, and write.
    lastState: {},
  };
}

/** The type parameter lets a caller bound the words that it says. */
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
    ...(message === undefined || message === '' ? {} : { message: lastWords(message) }),
  };
}

/** A condition keeps its transition time while its status stays. */
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
