import { expect, it } from 'vitest';
import type { VM } from '../v1alpha1/vm.ts';
import { powerChange } from './vmpower.ts';

function vm(phase: string, spec: VM['spec'] = {}): VM {
  return { metadata: { name: 'mac', uid: '1' }, spec, status: { phase } } as VM;
}

it('starts a VM that is stopped on purpose, and restarts one whose guest has shut down', () => {
  const metadata = { uid: '1' };
  const restart = { powerState: 'Running', restartRequestedAt: expect.any(String) };
  const stopped = vm('Stopped', { powerState: 'Stopped' });
  expect(powerChange(stopped, 'start')).toEqual({ patch: { metadata, spec: { powerState: 'Running' } } });
  expect(powerChange(vm('Stopped'), 'start')).toEqual({ patch: { metadata, spec: restart } });
  expect(powerChange(stopped, 'restart')).toEqual({ patch: { metadata, spec: restart } });
});

it.each([
  ['suspend', 'Stopped'],
  ['restart', 'Pulling'],
  ['start', 'Failed'],
] as const)('refuses to %s a VM that is %s', (word, phase) => {
  const refusal = `VM mac is ${phase}, so the command ${word} is refused`;
  expect(powerChange(vm(phase), word)).toEqual({ refusal });
});
