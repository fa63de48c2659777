import { expect, it } from 'vitest';
import type { VM } from '../../api/v1alpha1/vm.ts';
import type { KubeClient } from '../../kube/client.ts';
import { settledState } from './settled.ts';

const WANTED = { waitFor: 'running', whenFull: 'wait' } as const;
const missing = vm({
  conditions: [
    {
      type: 'Scheduled',
      status: 'False',
      reason: 'ConfigNotFound',
      message: 'VMConfig new was not found',
      lastTransitionTime: '2026-11-23T12:00:00Z',
    },
  ],
});

function vm(status: NonNullable<VM['status']>, uid = 'u'): VM {
  return {
    apiVersion: 'berth.dev/v1alpha1',
    kind: 'VM',
    metadata: { name: 'mac', namespace: 'platform-default', uid },
    spec: {},
    status,
  };
}

it.each([
  ['waits on when the operator has learned of the object', vm({ phase: 'Cloning' }), 'waiting'],
  ['ends when the object is still missing', missing, expect.objectContaining({ status: 404 })],
])('%s', async (_, later, state) => {
  const client = { get: async () => later } as unknown as KubeClient;
  const signal = AbortSignal.timeout(60_000);
  expect(await settledState(client, missing, WANTED, signal)).toEqual({ vm: later, state });
});

it('ends for its own VM when others have made a VM of the same name', async () => {
  const client = { get: async () => vm({ phase: 'Running' }, 'another') } as unknown as KubeClient;
  expect(await settledState(client, missing, WANTED, AbortSignal.timeout(60_000))).toEqual({
    vm: missing,
    state: expect.objectContaining({ status: 404 }),
  });
});
