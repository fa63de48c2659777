import { expect, it } from 'vitest';
import type { VM } from '../api/v1alpha1/vm.ts';
import { progressOf, settledState, stateOf } from './deploy.ts';

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

function kindOf(state: ReturnType<typeof stateOf>): string {
  return typeof state === 'string' ? state : state.kind;
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
  ['failed', { phase: 'Stopping', failure: { reason: 'Crashed', message: 'qemu ended', time: '' } }],
  [
    'late',
    { phase: 'Failed', failure: { reason: 'DeployTimeout', message: 'not Running after 600 s', time: '' } },
  ],
  ['failed', { phase: 'Failed', conditions: [condition('Ready', 'False', 'HostLost', 'host is silent')] }],
  ['failed', { phase: 'Stopped', conditions: [condition('Ready', 'False', 'Stopped', 'VM is stopped')] }],
  ['failed', { phase: 'Suspended' }],
  ['invalid', { phase: 'Pending', conditions: [condition('Stalled', 'True', 'NoImage', 'no image')] }],
  [
    'missing',
    { conditions: [condition('Scheduled', 'False', 'ConfigNotFound', 'VMConfig x was not found')] },
  ],
  [
    'missing',
    { phase: 'Pending', conditions: [condition('ImageReady', 'False', 'ImageNotFound', 'not found')] },
  ],
  ['waiting', { phase: 'Pulling', conditions: [condition('ImageReady', 'False', 'ImageNotFound', 'retry')] }],
])('ends with %s for %j', (kind, status) => {
  expect(kindOf(stateOf(vm(status), READY))).toBe(kind);
});

it('does not take a VM that is being deleted for one that runs', () => {
  expect(stateOf(vm({ phase: 'Running' }, { deletionTimestamp: '2026-11-23T12:00:00Z' }), RUNNING)).toBe(
    'waiting',
  );
});

it('ends on full hosts only if the caller wants so, and says what it waits for', () => {
  const full = vm({ conditions: [condition('Scheduled', 'False', 'Unschedulable', '2 hosts are full')] });
  const kinds = (['wait', 'fail', undefined] as const).map((whenFull) =>
    kindOf(stateOf(full, { ...RUNNING, whenFull })),
  );
  expect(kinds).toEqual(['waiting', 'room', 'waiting']);
  expect(progressOf(full)).toBe('2 hosts are full');
  expect(progressOf(vm({ phase: 'Pulling', progress: 'Pulling 42 %' }))).toBe('Pulling 42 %');
});

const missing = condition('Scheduled', 'False', 'ConfigNotFound', 'VMConfig new was not found');

it.each([
  ['waits on when the operator has learned of the object', vm({ phase: 'Cloning' }), 'waiting'],
  ['ends when the object is still missing', vm({ conditions: [missing] }), 'missing'],
])('%s', async (_, later, expected) => {
  const signal = AbortSignal.timeout(60_000);
  const { vm: seen, state } = await settledState(
    vm({ conditions: [missing] }),
    RUNNING,
    async () => later,
    signal,
  );
  expect([seen, kindOf(state)]).toEqual([later, expected]);
});

it('ends for its own VM when others have made a VM of the same name', async () => {
  const own = vm({ conditions: [condition('Scheduled', 'False', 'ConfigNotFound')] }, { uid: 'own' });
  const another = vm({ phase: 'Running' }, { uid: 'another' });
  const { vm: seen, state } = await settledState(
    own,
    RUNNING,
    async () => another,
    AbortSignal.timeout(60_000),
  );
  expect([seen, kindOf(state)]).toEqual([own, 'missing']);
});
