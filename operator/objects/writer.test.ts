import { describe, expect, it, vi } from 'vitest';
import type { KubeClient } from '../../kube/client.ts';
import { Consistency } from '../../kube/consistency.ts';
import { ApiError } from '../../kube/errors.ts';
import { type Job, JOBS } from '../../kube/core.ts';
import { Writer } from './writer.ts';

const JOB = {
  metadata: { namespace: 'ci', name: 'task', uid: 'u', resourceVersion: '7', finalizers: ['other'] },
  spec: {},
} as Job;
const STORED = { ...JOB, metadata: { ...JOB.metadata, resourceVersion: '9' } };

function refusal(reason: string, status: number): ApiError {
  return new ApiError(reason, { reason, status });
}

/** Returns a writer whose API server answers with `answer`, and whose cache has seen version 8. */
function writer(answer: unknown) {
  const call = vi.fn(() => (answer instanceof Error ? Promise.reject(answer) : Promise.resolve(answer)));
  const client = { mergePatch: call, create: call, delete: call } as unknown as KubeClient;
  const consistency = new Consistency();
  const informer = { cache: { resourceVersion: '8' }, readSince: 0, cutIfStale: () => false };
  return {
    call,
    consistency,
    jobs: new Writer<Job>({ client, type: JOBS, informer, consistency }),
  };
}

describe('a write', () => {
  it('is bound to the version that was read, and delays the next reconcile until the cache has it', async () => {
    const { jobs, call, consistency } = writer(STORED);
    expect(await jobs.patch('key', JOB, { status: { active: 1 } }, 'status')).toBe(STORED);
    const body = { metadata: { uid: 'u', resourceVersion: '7' }, status: { active: 1 } };
    const options = { fieldManager: 'berth-operator', subresource: 'status' };
    expect(call).toHaveBeenCalledWith(JOBS, { namespace: 'ci', name: 'task' }, body, options);
    expect([consistency.ready('key'), consistency.ready('other')]).toEqual([false, true]);
  });

  it('adds and removes a finalizer, and keeps those of others', async () => {
    const { jobs, call } = writer(STORED);
    await jobs.setFinalizer('key', JOB, 'ours', true);
    const held = { ...JOB, metadata: { ...JOB.metadata, finalizers: ['ours', 'other'] } };
    await jobs.setFinalizer('key', held, 'ours', false);
    const bodies = call.mock.calls.map((args) => (args as unknown[])[2]);
    expect(bodies).toMatchObject([
      { metadata: { finalizers: ['other', 'ours'] } },
      { metadata: { finalizers: ['other'] } },
    ]);
  });

  it('to an object that is gone does nothing', async () => {
    const { jobs, consistency } = writer(refusal('NotFound', 404));
    expect(await jobs.patch('key', JOB, {})).toBeUndefined();
    expect(consistency.ready('key')).toBe(true);
  });

  it('fails if it is stale or refused', async () => {
    await expect(writer(refusal('Conflict', 409)).jobs.patch('key', JOB, {})).rejects.toThrow('Conflict');
    await expect(writer(refusal('Forbidden', 403)).jobs.create('key', JOB)).rejects.toThrow('Forbidden');
  });

  it('creates nothing if the name is taken', async () => {
    expect(await writer(refusal('AlreadyExists', 409)).jobs.create('key', JOB)).toBeUndefined();
  });

  it('deletes the object itself, and no later object of its name', async () => {
    const { jobs, call } = writer(refusal('Conflict', 409));
    await jobs.delete(JOB, { propagationPolicy: 'Background' });
    const options = { uid: 'u', propagationPolicy: 'Background' };
    expect(call).toHaveBeenCalledWith(JOBS, { namespace: 'ci', name: 'task' }, options);
  });

  it('that deletes an object for a reason in it fails if the object has changed', async () => {
    const { jobs, call } = writer(refusal('Conflict', 409));
    await expect(jobs.deleteUnchanged(JOB)).rejects.toThrow('Conflict');
    const read = { uid: 'u', resourceVersion: '7' };
    expect(call).toHaveBeenCalledWith(JOBS, { namespace: 'ci', name: 'task' }, read);
  });
});
