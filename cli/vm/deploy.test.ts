import { expect, it } from 'vitest';
import type { VM } from '../../api/v1alpha1/vm.ts';
import { estimator } from '../remaining.ts';
import { lineOf } from './deploy.ts';

it('shows the part, the rate and the time that is left of a pull, and before it the words of the scheduler', () => {
  let now = 0;
  const estimate = estimator(() => now);
  const line = (status: object) => lineOf({ metadata: { name: 'mac' }, spec: {}, status } as VM, estimate);
  const scheduled = {
    type: 'Scheduled',
    status: 'False',
    reason: 'Unschedulable',
    message: 'No host is free',
  };
  expect(line({ phase: 'Pending', conditions: [scheduled] })).toBe('mac: No host is free');
  const pulling = (progressPercent: number) =>
    line({ phase: 'Pulling', progressPercent, progress: `Pulling ${progressPercent} % (80 MB/s)` });
  expect(pulling(0)).toBe('mac: Pulling 0 % (80 MB/s)');
  now = 60_000;
  expect(pulling(50)).toBe('mac: Pulling 50 % (80 MB/s), 60 s left');
  expect(line({ phase: 'Starting' })).toBe('mac: Starting');
});
