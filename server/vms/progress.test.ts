import { expect, it } from 'vitest';
import type { VM } from '../../api/v1alpha1/vm.ts';
import { StatusError } from '../http/errors.ts';
import { progressOf, stateOf } from './progress.ts';

const RUNNING = { waitFor: 'running' } as const;
const READY = { waitFor: 'ready' } as const;

function vm(status: VM['status'], metadata: object = {}): VM {
  return {
    apiVersion: 'berth.dev/v1alpha1',
    kind: 'VM',
    metadata: { name: 'mac', ...metadata },
    spec: {},
    status,
  } as VM;
}

function condition(type: string, status: 'True' | 'False', reason: string, message = '') {
  return { type, status, reason, message, lastTransitionTime: '2026-11-23T12:00:00Z' };
}

function codeOf(state: ReturnType<typeof stateOf>): number | string {
  return state instanceof StatusError ? state.status : state;
}

it.each(['Pending', 'Scheduled', 'Pulling', 'Cloning', 'Starting'])('waits in phase %s', (phase) => {
  expect(stateOf(vm({ phase }), RUNNING)).toBe('waiting');
});

it('ends when the VM runs, or when it is Ready', () => {
  const running = vm({ phase: 'Running' });
  expect([stateOf(running, RUNNING), stateOf(running, READY)]).toEqual(['done', 'waiting']);
  const ready = vm({ phase: 'Running', conditions: [condition('Ready', 'True', 'Running')] });
  expect(stateOf(ready, READY)).toBe('done');
});

it.each([
  [500, { phase: 'Stopping', failure: { reason: 'Crashed', message: 'qemu ended', time: '' } }],
  [500, { phase: 'Failed', conditions: [condition('Ready', 'False', 'HostLost', 'host is silent')] }],
  [500, { phase: 'Stopped', conditions: [condition('Ready', 'False', 'Stopped', 'VM is stopped')] }],
  [500, { phase: 'Suspended' }],
  [422, { phase: 'Pending', conditions: [condition('Stalled', 'True', 'NoImage', 'no image')] }],
  [404, { conditions: [condition('Scheduled', 'False', 'ConfigNotFound', 'VMConfig x was not found')] }],
  [404, { phase: 'Pending', conditions: [condition('ImageReady', 'False', 'ImageNotFound', 'not found')] }],
  ['waiting', { phase: 'Pulling', conditions: [condition('ImageReady', 'False', 'ImageNotFound', 'retry')] }],
])('ends with %s for %j', (code, status) => {
  expect(codeOf(stateOf(vm(status), READY))).toBe(code);
});

it('does not take a VM that is being deleted for one that runs', () => {
  expect(stateOf(vm({ phase: 'Running' }, { deletionTimestamp: '2026-11-23T12:00:00Z' }), RUNNING)).toBe(
    'waiting',
  );
});

it('ends on full hosts only if the client or the installation wants so, and says what it waits for', () => {
  const full = vm({ conditions: [condition('Scheduled', 'False', 'Unschedulable', '2 hosts are full')] });
  expect(stateOf(full, RUNNING)).toBe('waiting');
  expect(codeOf(stateOf(full, { ...RUNNING, whenFull: 'fail' }))).toBe(503);
  const codes = ['wait', 'fail', undefined].map((whenFull) =>
    codeOf(stateOf(full, { ...RUNNING, whenFull, fullStatus: 500 } as Parameters<typeof stateOf>[1])),
  );
  expect(codes).toEqual(['waiting', 500, 500]);
  expect(progressOf(full)).toBe('2 hosts are full');
  expect(progressOf(vm({ phase: 'Pulling', progress: 'Pulling 42 %' }))).toBe('Pulling 42 %');
});
