import { describe, expect, it } from 'vitest';
import { type Image, imageStatusSchema, type ImageSpec } from '../../api/v1alpha1/image.ts';
import { FAILURE_TEXT_LENGTH } from '../../api/v1alpha1/source.ts';
import { boundStatus } from '../../api/v1alpha1/status.ts';
import type { VM } from '../../api/v1alpha1/vm.ts';
import type { Job } from '../../kube/job.ts';
import { parseConfig } from '../config/config.ts';
import { failureText, readFailure } from './failure.ts';
import type { ImageJob, ObservedImage } from './observe.ts';
import { planImage } from './plan.ts';

const requestedAt = '2026-01-01T00:00:00Z';
const NOW = Date.parse('2026-01-02T00:00:00Z');
const CONTENT = { type: 'registry', reference: 'registry.example/team/disk:1' };
const REGISTRY = { registry: { reference: 'registry.example/team/disk:1' } };
const LOG = `${'line of a log '.repeat(200)}and its end`;

const ran: VM = {
  apiVersion: 'berth.dev/v1alpha1',
  kind: 'VM',
  metadata: { name: 'builder', namespace: 'platform-ci', uid: 'v1' },
  spec: {},
  status: { nodeName: 'mac1', firstRunningTime: requestedAt },
};

function observed(spec: ImageSpec, status: Image['status'] = {}, vm: VM | undefined = ran): ObservedImage {
  const metadata = { name: 'golden', namespace: 'platform-ci', uid: 'u1', generation: 1 };
  return {
    object: { apiVersion: 'berth.dev/v1alpha1', kind: 'Image', metadata, spec, status },
    kind: 'Image',
    jobs: [],
    origin: undefined,
    vm: () => vm,
    deploying: [],
    credentials: [],
    config: parseConfig({ imageStorage: { folder: true } }, 'test'),
    now: NOW,
  };
}

/** Returns the same state with the failed Job of the next operation. */
function failed(state: ObservedImage, reason: string, message: string): ObservedImage {
  const { createJob: job } = planImage(state);
  const operation = job?.metadata.labels?.['berth.dev/operation'] ?? '';
  const outcome = { kind: 'failed', reason, message, finishedAt: requestedAt } as ImageJob['outcome'];
  const time = job?.metadata.annotations?.['berth.dev/requested-at'];
  return { ...state, jobs: [{ job: job as Job, operation, requestedAt: time, attempt: 1, outcome }] };
}

/** Returns the state after the operator has written the status and Kubernetes has deleted the Jobs. */
function withoutJobs(state: ObservedImage): ObservedImage {
  const status = boundStatus(imageStatusSchema, planImage(state).status);
  return { ...state, object: { ...state.object, status }, jobs: [] };
}

function conditionOf(state: ObservedImage, type: string) {
  return planImage(state).status.conditions?.find((one) => one.type === type);
}

describe('the text of a failure', () => {
  it('keeps the reason and the end of a message that is too long', () => {
    const text = failureText({ reason: 'DigestMismatch', message: LOG });
    expect(text).toHaveLength(FAILURE_TEXT_LENGTH);
    expect(text).toMatch(/^DigestMismatch: .*and its end$/);
  });

  it('has the same reason and message when it is read', () => {
    const failure = { reason: 'TaskFailed', message: 'read: no such file: /disk' };
    expect(readFailure(failureText(failure))).toEqual(failure);
    expect(readFailure(undefined)).toEqual({ reason: '', message: '' });
  });

  it('of an action gives its condition the same reason after the status was stored', () => {
    const push = { reference: 'registry.example/out:1', requestedAt };
    const commit = { vmName: 'builder', requestedAt };
    for (const [type, action] of [['Pushed', { push }] as const, ['Committed', { commit }] as const]) {
      const state = failed(
        observed({ source: REGISTRY, ...action }, { content: CONTENT }),
        'ImageAccessDenied',
        LOG,
      );
      const [now, later] = [conditionOf(state, type), conditionOf(withoutJobs(state), type)];
      expect(now).toMatchObject({ reason: 'ImageAccessDenied', message: expect.stringMatching(/its end$/) });
      expect(later).toEqual(now);
    }
  });
});
