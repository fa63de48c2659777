/** The Pod status that says how a task stands. Pure. */
import { TASK_CONDITION } from '../../api/v1alpha1/names.ts';
import type { ContainerState, Pod, PodStatus } from '../../kube/core.ts';
import { condition, emptyContainer, frame, lastWords, stamp } from '../podstatus.ts';
import { timestamp } from '../time.ts';
import type { TaskState } from './runner.ts';

export function taskStatus(pod: Pod, state: TaskState, hostAddress: string, now: string): PodStatus {
  const running = state.kind === 'running';
  return {
    ...frame(pod, PHASES[state.kind], hostAddress, now),
    ...(state.kind === 'failed' && { reason: state.reason, message: lastWords(state.message) }),
    podIP: hostAddress,
    podIPs: [{ ip: hostAddress }],
    conditions: stamp(
      pod,
      [
        condition('Initialized', true),
        condition('Ready', running, running ? undefined : 'PodCompleted'),
        condition('ContainersReady', running, running ? undefined : 'PodCompleted'),
        condition(TASK_CONDITION, running, state.kind, JSON.stringify(running ? state.report : {})),
      ],
      now,
    ),
    containerStatuses: pod.spec.containers.map((container) => ({
      ...emptyContainer(container),
      ready: running,
      started: running,
      containerID: `berth://${pod.metadata.uid}`,
      state: containerState(state),
    })),
  };
}

const PHASES = { running: 'Running', succeeded: 'Succeeded', failed: 'Failed' } as const;

function containerState(state: TaskState): ContainerState {
  const startedAt = timestamp(state.startedAt);
  switch (state.kind) {
    case 'running':
      return { running: { startedAt } };
    case 'succeeded': {
      const finishedAt = timestamp(state.finishedAt);
      const message = JSON.stringify(state.report);
      return { terminated: { exitCode: 0, reason: 'Completed', message, startedAt, finishedAt } };
    }
    default: {
      const { reason, message, finishedAt } = state;
      const ended = { startedAt, finishedAt: timestamp(finishedAt) };
      return { terminated: { exitCode: 1, reason, message: lastWords(message), ...ended } };
    }
  }
}
