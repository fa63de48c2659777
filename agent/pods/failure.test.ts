import { describe, expect, test } from 'vitest';
import type { EmulatorMachine } from '../../api/v1alpha1/emulatormachine.ts';
import { type Reason, ReasonedError } from '../../api/v1alpha1/reasons.ts';
import { type Consequence, consequenceOf } from './failure.ts';
import { newRecord } from './machine.ts';

/**
 * Returns the consequence if the disk could not be created `attempts` times in a row. If `everRan` is true, the machine has run before, and
 * its disk is created again.
 */
function after(fault: Reason | ReasonedError, attempts: number, everRan = false): Consequence {
  const claim = { slots: 1, cpuMillis: 0, memoryBytes: 0, diskBytes: 0, ports: [] };
  const record = {
    ...newRecord({ uid: 'u', driver: 'qemu', key: 'n/u', machine: undefined, claim }),
    everRan,
  };
  const error = typeof fault === 'string' ? new ReasonedError(fault, 'in words') : fault;
  return consequenceOf({ kind: 'create', error, record, desired: undefined, attempts, now: 0 });
}

describe('an image that cannot be had', () => {
  test.each(['PullSecretMissing', 'ImageAccessDenied'] as const)(
    '%s is tried again for as long as the VM may take: people mend it beside the VM',
    (reason) => {
      const first = { kind: 'retry', afterMilliseconds: 1_000, message: 'in words' };
      expect(after(reason, 1)).toEqual(first);
      expect(after(reason, 100)).toEqual({ ...first, afterMilliseconds: 60_000 });
    },
  );

  test.each([
    [500, 1_000],
    [1_800_000, 1_800_000],
    [86_400_000, 3_600_000],
  ])('is tried again after the %s ms for which its server asks, but at most after an hour', (asked, wait) => {
    const error = new ReasonedError('ImageFetchFailed', 'busy', { retryAfterMilliseconds: asked });
    expect(after(error, 1)).toMatchObject({ kind: 'retry', afterMilliseconds: wait });
  });

  test.each(['ImageFetchFailed', 'DiskFull'] as const)('%s is tried again a few times', (reason) => {
    expect(after(reason, 3)).toMatchObject({ kind: 'retry' });
    expect(after(reason, 4)).toMatchObject({ kind: 'fail', failure: { reason, message: 'in words' } });
  });

  test.each([
    'ImageNotFound',
    'ImageArchitectureMismatch',
    'ImageInvalid',
    'DigestMismatch',
    'ImageSourceUnsupported',
  ] as const)('%s is final', (reason) =>
    expect(after(reason, 1)).toMatchObject({ kind: 'fail', failure: { reason } }),
  );

  test.each(['ImageNotFound', 'ImageFetchFailed'] as const)('%s ends no machine that ran', (reason) => {
    expect(after(reason, 100, true)).toMatchObject({ kind: 'retry' });
  });
});

describe('a start of a machine that has run', () => {
  const claim = { slots: 1, cpuMillis: 0, memoryBytes: 0, diskBytes: 0, ports: [] };
  const record = {
    ...newRecord({ uid: 'u', driver: 'qemu', key: 'n/u', machine: undefined, claim }),
    everRan: true,
  };
  const desired = { powerState: 'Running', cpu: 1, memoryBytes: 1 } as const;

  test.each(['NetworkUnavailable', 'NATSelfHealFailed', 'PortTaken', 'OutOfMemory'] as const)(
    '%s is tried again and counts as no crash, because it is a fault of the host',
    (reason) => {
      const step = { kind: 'start', record, attempts: 100, now: 0 } as const;
      const error = new ReasonedError(reason, 'in words');
      const consequence = consequenceOf({ ...step, error, desired: { ...desired, restartPolicy: 'Always' } });
      expect(consequence).toMatchObject({ kind: 'retry', message: 'in words' });
    },
  );

  const refused = new ReasonedError('StartFailed', 'in words');

  test.each([
    ['Never', { kind: 'retry', message: 'in words', afterMilliseconds: 60_000 }],
    ['OnFailure', { kind: 'end', end: { how: 'Crashed', message: 'in words', at: 5 } }],
    ['Always', { kind: 'end', end: { how: 'Crashed', message: 'in words', at: 5 } }],
  ] as const)(
    'that its hypervisor refuses does not fail a VM with restartPolicy %s',
    (restartPolicy, expected) => {
      const step = { kind: 'start', error: refused, record, attempts: 100, now: 5 } as const;
      expect(consequenceOf({ ...step, desired: { ...desired, restartPolicy } })).toEqual(expected);
    },
  );

  test('fails an emulator with restartPolicy Never, which has no data of users', () => {
    const emulator = { ...record, emulator: {} as EmulatorMachine };
    const step = { kind: 'start', error: refused, record: emulator, attempts: 1, now: 0 } as const;
    expect(consequenceOf({ ...step, desired: { ...desired, restartPolicy: 'Never' } })).toMatchObject({
      kind: 'fail',
      failure: { reason: 'StartFailed' },
    });
  });
});
