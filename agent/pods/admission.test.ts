import { describe, expect, test } from 'vitest';
import type { Pod } from '../../kube/core.ts';
import { admit, claimOf } from './admission.ts';
import type { Claim } from './machine.ts';

const CAPACITY = { slots: 4, cpuMillis: 4_000, memoryBytes: 4_096, diskBytes: 8_192 };

function claim(change: Partial<Claim> = {}): Claim {
  return { slots: 1, cpuMillis: 500, memoryBytes: 512, diskBytes: 1_024, ports: [], ...change };
}

const FOUR = [claim(), claim(), claim(), claim()];

test('what a Pod claims is the sum of its containers', () => {
  const spec = {
    containers: [
      {
        name: 'machine',
        image: 'x',
        resources: {
          requests: { cpu: '1500m', memory: '1Ki', 'ephemeral-storage': '2Ki' },
          limits: { 'berth.dev/slot': '1' },
        },
        ports: [
          { containerPort: 22, hostPort: 8822 },
          { containerPort: 53, hostPort: 53, protocol: 'UDP' as const },
          { containerPort: 1 },
        ],
      },
      { name: 'other', image: 'x', resources: { requests: { cpu: '2' } } },
    ],
  };
  const pod: Pod = { apiVersion: 'v1', kind: 'Pod', metadata: { name: 'x' }, spec };
  expect(claimOf(pod)).toEqual({
    slots: 1,
    cpuMillis: 3_500,
    memoryBytes: 1_024,
    diskBytes: 2_048,
    ports: ['TCP/8822', 'UDP/53'],
  });
});

describe('a host of four slots', () => {
  test('takes a fourth machine', () => {
    expect(admit(claim(), FOUR.slice(1), [], CAPACITY)).toEqual({ kind: 'admitted' });
  });

  test('refuses a fifth', () => {
    expect(admit(claim(), FOUR, [], CAPACITY)).toMatchObject({ kind: 'refused', reason: 'OutOfSlot' });
  });

  test('lets a fifth wait for one that is being removed', () => {
    expect(admit(claim(), FOUR.slice(1), [claim()], CAPACITY)).toMatchObject({ kind: 'wait' });
  });

  test('lets machines wait until its slots are known', () => {
    expect(admit(claim(), [], [], { ...CAPACITY, slots: undefined })).toMatchObject({ kind: 'wait' });
  });

  test('takes nothing more when its slots become as many as its machines, or fewer', () => {
    for (const slots of [4, 3, 2]) {
      expect(admit(claim(), FOUR, [], { ...CAPACITY, slots })).toMatchObject({ reason: 'OutOfSlot' });
    }
  });
});

test.each([
  ['OutOfcpu', { cpuMillis: 4_001 }],
  ['OutOfmemory', { memoryBytes: 4_097 }],
  ['OutOfDisk', { diskBytes: 8_193 }],
] as const)('%s', (reason, change) => {
  expect(admit(claim(change), [], [], CAPACITY)).toMatchObject({ kind: 'refused', reason });
});

test('two machines never hold one port', () => {
  const other = claim({ ports: ['TCP/8822'] });
  expect(admit(claim({ ports: ['TCP/8822'] }), [other], [], CAPACITY)).toMatchObject({ reason: 'PortTaken' });
  expect(admit(claim({ ports: ['UDP/8822'] }), [other], [], CAPACITY)).toEqual({ kind: 'admitted' });
});
