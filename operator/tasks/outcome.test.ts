import { describe, expect, it } from 'vitest';
import { TASK_CONTAINER } from '../../api/v1alpha1/names.ts';
import { TASK_API_VERSION } from '../../api/v1alpha1/task.ts';
import type { ContainerState, Job, Pod, PodStatus } from '../../kube/core.ts';
import { taskJob } from './job.ts';
import { taskOutcome } from './outcome.ts';

const DENIED = { exitCode: 1, reason: 'ImageAccessDenied', message: 'team/locked: 401' };

function job(...conditions: { type: string; reason: string; message: string }[]): Job {
  const made = taskJob({
    metadata: { name: 'uncache-1', namespace: 'berth-system' },
    workload: 'cache',
    task: { apiVersion: TASK_API_VERSION, type: 'uncache', entry: 'fast', namespace: 'team' },
    containerImage: 'none',
    pullSecrets: [],
    placement: { nodeName: 'mac1', dedicatedTo: '*' },
    takesSlot: true,
    activeDeadlineSeconds: 60,
    ttlSecondsAfterFinished: 60,
    priorityClassName: 'none',
  });
  const status = { conditions: conditions.map((one) => ({ ...one, status: 'True' as const })) };
  return { ...made, status } as Job;
}

function pod(phase: PodStatus['phase'], state: ContainerState = {}, deletionTimestamp?: string): Pod {
  const container = { name: TASK_CONTAINER, image: '', imageID: '', ready: false, restartCount: 0, state };
  return {
    metadata: {
      name: 'uncache-1-x',
      namespace: 'berth-system',
      ...(deletionTimestamp && { deletionTimestamp }),
    },
    spec: { nodeName: 'mac1', containers: [] },
    status: { phase, containerStatuses: [container] },
  } as unknown as Pod;
}

describe('a task whose Job has failed with its Pod', () => {
  const failed = job({ type: 'FailureTarget', reason: 'BackoffLimitExceeded', message: 'reached the limit' });

  it('has the message of its Pod, and has not ended before this message is seen', () => {
    expect(taskOutcome(failed, pod('Running'))).toMatchObject({ kind: 'running' });
    expect(taskOutcome(failed, pod('Pending'))).toMatchObject({ kind: 'waiting' });
    const seen = taskOutcome(failed, pod('Failed', { terminated: DENIED }));
    expect(seen).toMatchObject({ kind: 'failed', reason: 'ImageAccessDenied', message: 'team/locked: 401' });
  });

  it('has the wait for which a server asked', () => {
    const ended = pod('Failed', { terminated: DENIED });
    const conditions = [{ type: 'berth.dev/Task', status: 'False', message: '{"retryAfterSeconds":3600}' }];
    const asked = { ...ended, status: { ...ended.status, conditions } } as unknown as Pod;
    expect(taskOutcome(failed, asked)).toMatchObject({ kind: 'failed', retryAfterMilliseconds: 3_600_000 });
    expect(taskOutcome(failed, ended)).not.toHaveProperty('retryAfterMilliseconds');
  });

  it('has the message of the Job if the Pod has none', () => {
    const expected = { kind: 'failed', reason: 'BackoffLimitExceeded', message: 'reached the limit' };
    for (const silent of [undefined, pod('Failed'), pod('Running', {}, '2026-01-01T00:00:00Z')]) {
      expect(taskOutcome(failed, silent)).toMatchObject(expected);
    }
  });
});

describe('a task whose Pod failed with a reason that no condition may have', () => {
  it.each(['', 'not one word', 'Ends-with-', '9', 'ä', 'A'.repeat(1000)])('"%s" is TaskFailed', (reason) => {
    const seen = taskOutcome(
      job(),
      pod('Failed', { terminated: { exitCode: 1, reason, message: 'as told' } }),
    );
    expect(seen).toMatchObject({ kind: 'failed', reason: 'TaskFailed', message: 'as told' });
  });
});

describe('a task whose Job is past its deadline', () => {
  it('has ended, whatever its Pod shows, because its host may never answer', () => {
    const late = job({ type: 'FailureTarget', reason: 'DeadlineExceeded', message: 'too long' });
    const deleted = pod('Running', {}, '2026-01-01T00:00:00Z');
    for (const shown of [undefined, pod('Pending'), pod('Running'), pod('Unknown'), deleted]) {
      expect(taskOutcome(late, shown)).toMatchObject({ kind: 'failed', reason: 'DeadlineExceeded' });
    }
  });
});

describe('a task that waits', () => {
  it('names its Job while there is no Pod, because only the Events of the Job show the cause', () => {
    const message = 'Job uncache-1 has no Pod yet. See the Events of this Job';
    expect(taskOutcome(job(), undefined)).toEqual({ kind: 'waiting', message });
    const waiting = { kind: 'waiting', message: 'The task is waiting for a host' };
    expect(taskOutcome(job(), pod('Pending'))).toEqual(waiting);
  });
});
