/** Computes the Pod status that shows the state of a task. The functions are pure. */
import { timestamp } from '../../base/time.ts';
import { TASK_CONDITION } from '../../api/v1alpha1/names.ts';
import type { Reason } from '../../api/v1alpha1/reasons.ts';
import type { TaskReport } from '../../api/v1alpha1/task.ts';
import type { ContainerState, Pod, PodStatus } from '../../kube/core.ts';
import { condition, emptyContainer, frame, lastWords, stamp, waiting } from '../../kube/podstatus.ts';
import { isOver, type TaskState } from './runner.ts';

export function taskStatus(pod: Pod, state: TaskState, hostAddress: string, now: string): PodStatus {
  const running = state.kind === 'running';
  const notReady: Reason | undefined = running ? undefined : isOver(state) ? 'PodCompleted' : QUEUED;
  return {
    ...frame(pod, phaseOf(pod, state), hostAddress, now),
    ...(state.kind === 'failed' && { reason: state.reason, message: lastWords(state.message) }),
    podIP: hostAddress,
    podIPs: [{ ip: hostAddress }],
    conditions: stamp(
      pod,
      [
        condition('Initialized', true),
        condition('Ready', running, notReady),
        condition('ContainersReady', running, notReady),
        condition<Reason>(TASK_CONDITION, running, state.kind, JSON.stringify(reportOf(state))),
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

/** Returns the report in the condition. The report of a success is in the container's termination message instead. */
function reportOf(state: TaskState): TaskReport {
  return state.kind === 'running' || state.kind === 'failed' ? state.report : {};
}

/** Reason in the Pod's status while the task waits. */
const QUEUED: Reason = 'TaskQueued';
const PHASES = { waiting: 'Pending', running: 'Running', succeeded: 'Succeeded', failed: 'Failed' } as const;

/** Returns the Pod's phase. A Pod that has run never returns to Pending, even if its task waits again after a restart of the agent. */
function phaseOf(pod: Pod, { kind }: TaskState): NonNullable<PodStatus['phase']> {
  return kind === 'waiting' && pod.status?.phase === 'Running' ? 'Running' : PHASES[kind];
}

function containerState(state: TaskState): ContainerState {
  if (state.kind === 'waiting') {
    return waiting(QUEUED, state.message);
  }
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
