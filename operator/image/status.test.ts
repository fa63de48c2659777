import { describe, expect, it } from 'vitest';
import type { Image, ImageSpec, ImageStatus } from '../../api/v1alpha1/image.ts';
import type { VM } from '../../api/v1alpha1/vm.ts';
import { parseConfig } from '../config/config.ts';
import type { TaskOutcome } from '../tasks/outcome.ts';
import { expiresAt } from './status.ts';
import { OPERATION_LABEL } from '../../api/v1alpha1/names.ts';
import { ATTEMPT_LABEL, type ImageJob, type ObservedImage } from './observe.ts';
import { planImage } from './plan.ts';

const START = Date.parse('2026-01-01T00:00:00Z');
const EARLIER = '2025-12-31T00:00:00Z';
const requestedAt = '2026-01-01T00:00:00Z';
const CONTENT = { type: 'registry', reference: 'registry.example/team/disk:1' };
const PUSH = { reference: 'registry.example/out:1', requestedAt };

function observed(spec: Partial<ImageSpec>, status: ImageStatus, jobs: ImageJob[] = []): ObservedImage {
  const source = { registry: { reference: 'registry.example/team/disk:1' } };
  const object: Image = {
    apiVersion: 'berth.dev/v1alpha1',
    kind: 'Image',
    metadata: { name: 'golden', namespace: 'platform-ci', uid: 'u1', generation: 1 },
    spec: { source, ttlSecondsAfterFinished: 60, ...spec },
    status,
  };
  const config = parseConfig({ imageStorage: { folder: true } }, 'test');
  const vm = (): VM | undefined => undefined;
  return {
    object,
    kind: 'Image',
    jobs,
    origin: undefined,
    vm,
    snapshot: () => undefined,
    deploying: [],
    credentials: [],
    isDedicated: () => false,
    config,
    now: START,
  };
}

function job(operation: string, outcome: TaskOutcome, of: string | undefined): ImageJob {
  const labels = { [OPERATION_LABEL]: operation, [ATTEMPT_LABEL]: '1' };
  const metadata = { name: 'job', labels, creationTimestamp: EARLIER };
  return { job: { metadata } as unknown as ImageJob['job'], operation, requestedAt: of, attempt: 1, outcome };
}

function failed(reason: 'ImageFetchFailed' | 'DigestMismatch'): TaskOutcome {
  return { kind: 'failed', reason, message: '', finishedAt: EARLIER };
}

function finishedTime(state: ObservedImage): string | undefined {
  return planImage(state).status.finishedTime;
}

describe('an Image', () => {
  it('is finished once its content is there and its push has ended', () => {
    expect(finishedTime(observed({}, {}))).toBeUndefined();
    expect(finishedTime(observed({}, { content: CONTENT }))).toBe(requestedAt);
    const pushing = observed({ push: PUSH }, { content: CONTENT, finishedTime: EARLIER });
    expect(finishedTime(pushing)).toBeUndefined();
    const pushed = { ...pushing, jobs: [job('push', failed('ImageFetchFailed'), requestedAt)] };
    expect(finishedTime(pushed)).toBe(requestedAt);
  });

  it('is finished when it failed for good, but not while it is tried again', () => {
    expect(
      finishedTime(observed({}, {}, [job('pull', failed('ImageFetchFailed'), undefined)])),
    ).toBeUndefined();
    expect(finishedTime(observed({}, {}, [job('pull', failed('DigestMismatch'), undefined)]))).toBe(
      requestedAt,
    );
  });

  it('is finished while its VM is missing, because nobody may ever make that VM', () => {
    expect(finishedTime(observed({ source: { fromVM: { name: 'gone' } } }, {}))).toBe(requestedAt);
  });

  it('is not finished while a Job still copies the disk of a VM that is gone', () => {
    const spec = { source: { fromVM: { name: 'gone' } } };
    const running = { kind: 'running' } as unknown as TaskOutcome;
    expect(finishedTime(observed(spec, {}, [job('save', running, undefined)]))).toBeUndefined();
  });

  it('is finished when its VM failed and left no disk, but not while the VM may still run', () => {
    const state = observed({ source: { fromVM: { name: 'builder' } } }, {});
    const vm = (status: NonNullable<VM['status']>) => (): VM => ({
      apiVersion: 'berth.dev/v1alpha1',
      kind: 'VM',
      metadata: { name: 'builder', namespace: 'platform-ci', uid: 'v1' },
      spec: {},
      status,
    });
    const failure = { reason: 'PodDeleted', message: '', time: EARLIER };
    expect(finishedTime({ ...state, vm: vm({ firstRunningTime: EARLIER, failure }) })).toBe(requestedAt);
    expect(finishedTime({ ...state, vm: vm({ nodeName: 'mac1' }) })).toBeUndefined();
  });

  it('keeps its first time, and expires when its TTL has passed since then', () => {
    const { object, ...rest } = observed({}, { content: CONTENT, finishedTime: EARLIER });
    const { status } = planImage({ object, ...rest });
    expect(status.finishedTime).toBe(EARLIER);
    expect(expiresAt(object, status)).toBe(Date.parse(EARLIER) + 60_000);
    expect(expiresAt({ ...object, spec: { source: object.spec.source } }, status)).toBeUndefined();
  });

  it('does not expire by a time that is not stored, or while it has work again', () => {
    const fresh = observed({}, { content: CONTENT });
    expect(expiresAt(fresh.object, planImage(fresh).status)).toBeUndefined();
    const pushing = observed({ push: PUSH }, { content: CONTENT, finishedTime: EARLIER });
    expect(expiresAt(pushing.object, planImage(pushing).status)).toBeUndefined();
  });
});
