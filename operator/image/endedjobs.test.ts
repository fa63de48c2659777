import { describe, expect, it } from 'vitest';
import { TASK_ANNOTATION } from '../../api/v1alpha1/names.ts';
import { TASK_API_VERSION } from '../../api/v1alpha1/task.ts';
import type { TaskOutcome } from '../tasks/outcome.ts';
import { parseConfig } from '../config/config.ts';
import { endedJobs } from './endedjobs.ts';
import type { ImageJob, ObservedImage } from './observe.ts';
import { replacedPlaces, targetFile } from './removalrecord.ts';

const END = '2026-01-01T00:00:00Z';
const HOUR = 3_600_000;
const SUCCEEDED: TaskOutcome = { kind: 'succeeded', report: {}, finishedAt: END };
const content = { type: 'storedFile' as const, path: 'ci/golden-2.qcow2', sha256: '1'.repeat(64) };

/** Returns a Job that saves a disk to the storage folder. `condition` is the type of the condition that the Job has since END. */
function savingJob(
  condition: string | undefined,
  outcome: TaskOutcome = SUCCEEDED,
  path = 'ci/golden-1.qcow2',
): ImageJob {
  const vm = { namespace: 'ci', name: 'builder', uid: 'v' };
  const target = { type: 'folder', path };
  const task = { apiVersion: TASK_API_VERSION, type: 'save', vm, target };
  const metadata = { annotations: { [TASK_ANNOTATION]: JSON.stringify(task) } };
  const conditions = condition && [{ type: condition, status: 'True' as const, lastTransitionTime: END }];
  return {
    job: {
      apiVersion: 'batch/v1',
      kind: 'Job',
      metadata: { name: 'save', namespace: 'ci', uid: 'j' },
      spec: { template: { metadata, spec: { containers: [] } } },
      ...(conditions && { status: { conditions } }),
    },
    operation: 'save',
    requestedAt: undefined,
    attempt: 1,
    outcome,
  };
}

/** Returns the Jobs that are deleted after this number of hours, and the hours until the next deletion. */
function afterHours(hours: number, job: ImageJob, status: object) {
  const now = Date.parse(END) + hours * HOUR;
  const { due, nextAt } = endedJobs({ jobs: [job], now } as unknown as ObservedImage, status);
  return { due: due.length, next: nextAt && (nextAt - now) / HOUR };
}

describe('the Job of an image', () => {
  it('is deleted an hour after its end', () => {
    expect(afterHours(0.5, savingJob('Complete'), { content })).toEqual({ due: 0, next: 0.5 });
    expect(afterHours(1, savingJob('Complete'), { content })).toEqual({ due: 1, next: undefined });
    const failed: TaskOutcome = { kind: 'failed', reason: 'DiskFull', message: '', finishedAt: END };
    expect(afterHours(1, savingJob('Failed', failed), {})).toEqual({ due: 1, next: undefined });
  });

  it('stays while it has not ended', () => {
    const running: TaskOutcome = { kind: 'running', nodeName: 'rack', report: {} };
    expect(afterHours(2, savingJob(undefined, running), {})).toEqual({ due: 0, next: undefined });
    expect(afterHours(2, savingJob('FailureTarget', running), {})).toEqual({ due: 0, next: undefined });
  });

  it('stays until the first content exists if its host ended and may have left a file', () => {
    const killed: TaskOutcome = { kind: 'failed', reason: 'DeadlineExceeded', message: '', finishedAt: END };
    expect(afterHours(9, savingJob('Failed', killed), {})).toEqual({ due: 0, next: undefined });
    expect(afterHours(9, savingJob('Failed', killed), { content })).toEqual({ due: 1, next: undefined });
  });

  it('does not stay if more than ten later attempts may have left a file, because its file is then removed', () => {
    const killed: TaskOutcome = { kind: 'failed', reason: 'DeadlineExceeded', message: '', finishedAt: END };
    const attempts = Array.from({ length: 12 }, (_, index) => ({
      ...savingJob('Failed', killed, `ci/try-${index + 1}.qcow2`),
      attempt: index + 1,
    }));
    const now = Date.parse(END) + HOUR;
    const object = { metadata: {}, spec: {} };
    const config = parseConfig({ imageStorage: { folder: true } }, 'test');
    const observed = { object, config, jobs: attempts, now } as unknown as ObservedImage;
    const oldest = attempts.slice(0, 2);
    expect(endedJobs(observed, {}).due).toEqual(oldest.map(({ job }) => job));
    expect(replacedPlaces(observed, {})).toEqual(oldest.map(({ job }) => targetFile(job)));
    expect(replacedPlaces(observed, { content })).toHaveLength(12);
  });
});
