import { expect, it } from 'vitest';
import type { VM } from '../v1alpha1/vm.ts';
import { powerChange } from './vmpower.ts';

function vm(phase: string, spec: VM['spec'] = {}, status: object = {}): VM {
  return { metadata: { name: 'mac', uid: '1' }, spec, status: { phase, ...status } } as VM;
}

/** Status of a VM that is off. `reason` is the reason of its condition Ready. */
function off(reason: string): object {
  return { conditions: [{ type: 'Ready', status: 'False', reason }] };
}

it('starts a VM that is stopped on purpose, and restarts one whose guest has shut down', () => {
  const metadata = { uid: '1' };
  const restart = { powerState: 'Running', restartRequestedAt: expect.any(String) };
  const stopped = vm('Stopped', { powerState: 'Stopped' }, off('Stopped'));
  expect(powerChange(stopped, 'start')).toEqual({ patch: { metadata, spec: { powerState: 'Running' } } });
  expect(powerChange(vm('Stopped', {}, off('GuestShutdown')), 'start')).toEqual({
    patch: { metadata, spec: restart },
  });
  expect(powerChange(stopped, 'restart')).toEqual({ patch: { metadata, spec: restart } });
});

it.each<[string, VM]>([
  ['that the host is about to start', vm('Stopped', {}, off('Stopped'))],
  [
    'whose requested restart has not begun',
    vm('Stopped', { restartRequestedAt: '2026-11-27T12:00:00Z' }, off('GuestShutdown')),
  ],
])('does not restart a VM %s if `start` is repeated', (_, started) => {
  const patch = { metadata: { uid: '1' }, spec: { powerState: 'Running' } };
  expect(powerChange(started, 'start')).toEqual({ patch });
});

it('starts a VM that was stopped after its guest had shut down, although the host has not noticed the stop', () => {
  const stopped = vm('Stopped', { powerState: 'Stopped' }, off('GuestShutdown'));
  const spec = { powerState: 'Running', restartRequestedAt: expect.any(String) };
  expect(powerChange(stopped, 'start')).toEqual({ patch: { metadata: { uid: '1' }, spec } });
});

it.each([
  ['suspend', 'Stopped'],
  ['restart', 'Pulling'],
  ['start', 'Failed'],
] as const)('refuses to %s a VM that is %s', (word, phase) => {
  const refusal = `VM mac is ${phase}, so the command ${word} is refused`;
  expect(powerChange(vm(phase), word)).toEqual({ refusal });
});
