import * as fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { MACHINE_MEMORY_OVERHEAD_BYTES as OVERHEAD } from '../../api/v1alpha1/machine.ts';
import type { Pod } from '../../kube/core.ts';
import { assertHistories } from '../../test/support/properties.ts';
import {
  admit,
  allocate,
  type Claimants,
  grantedSize,
  resizeConditions,
  resourceStatus,
} from './admission.ts';
import type { PodHost } from './host.ts';
import { type MachineClaim, type MachineRecord, newRecord } from './machine.ts';
import { claimOf } from './pod.ts';

const CAPACITY = { slots: 4, cpuMillis: 4_000, memoryBytes: 4_096, diskBytes: 8_192 };

function claim(change: Partial<MachineClaim> = {}): MachineClaim {
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
          limits: { 'berth.dev/slot': '1', 'berth.dev/macos-guest': '1' },
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
    macosGuests: 1,
    cpuMillis: 3_500,
    memoryBytes: 1_024,
    diskBytes: 2_048,
    ports: [
      { hostPort: 8822, protocol: 'TCP' },
      { hostPort: 53, protocol: 'UDP' },
    ],
  });
});

test('a host takes only so many guests with macOS as it may run, and one that runs none takes none', () => {
  const mac = claim({ macosGuests: 1 });
  const capacity = { ...CAPACITY, macosGuests: 2 };
  expect(admit(mac, [mac, claim()], [], capacity)).toEqual({ kind: 'admitted' });
  expect(admit(claim(), [mac, mac], [], capacity)).toEqual({ kind: 'admitted' });
  expect(admit(mac, [mac, mac], [], capacity)).toEqual({
    kind: 'refused',
    reason: 'MacOSLimit',
    message: '2 of 2 places for guests with macOS on this host are in use',
  });
  expect(admit(mac, [mac], [mac], capacity)).toMatchObject({ kind: 'wait' });
  expect(admit(mac, [], [], CAPACITY)).toMatchObject({ message: 'This host runs no guests with macOS' });
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
  const other = claim({ ports: [{ hostPort: 8822, protocol: 'TCP' }] });
  expect(admit(claim({ ports: [{ hostPort: 8822, protocol: 'TCP' }] }), [other], [], CAPACITY)).toMatchObject(
    { reason: 'PortTaken' },
  );
  expect(admit(claim({ ports: [{ hostPort: 8822, protocol: 'UDP' }] }), [other], [], CAPACITY)).toEqual({
    kind: 'admitted',
  });
});

const GIBIBYTE = 2 ** 30;
/** Capacity for eight CPUs and for eight guests of one gibibyte. */
const EIGHT_CPUS = { slots: 4, cpuMillis: 8_000, memoryBytes: 8 * (GIBIBYTE + OVERHEAD) };

/** Model of a host whose machines run, each with one CPU and one gibibyte. */
class Model {
  readonly pods: Pod[];
  readonly records: MachineRecord[];

  constructor(machines: number) {
    this.pods = Array.from({ length: machines }, (_, index) => podOf(`uid-${index}`, 1, 1));
    this.records = this.pods.map((pod) => ({
      ...newRecord({
        driver: 'qemu',
        uid: pod.metadata.uid ?? '',
        key: `ns/${pod.metadata.name}`,
        machine: undefined,
        claim: claimOf(pod),
      }),
      startedWith: { cpu: 1, memoryBytes: GIBIBYTE },
    }));
  }

  /** Resizes the Pod. The host allocates the new size if it has enough resources. */
  resize(index: number, cpu: number, gibibytes: number) {
    this.pods[index] = podOf(`uid-${index}`, cpu, gibibytes);
    return this.look(index);
  }

  look(index: number) {
    const update = (record: MachineRecord, change: Partial<MachineRecord>) => Object.assign(record, change);
    const records = { list: () => this.records, update };
    const host = { records, capacity: () => EIGHT_CPUS } as unknown as PodHost;
    const claimants: Claimants = { host, pods: this.pods, tasks: { state: () => undefined } };
    return allocate(this.pod(index), this.record(index), claimants);
  }

  /** Restarts the machine. The desired size is larger than any allocated size, so the allocated size limits the start. */
  restart(index: number): void {
    const record = this.record(index);
    record.startedWith = grantedSize(record, { cpu: 256, memoryBytes: 2 ** 44 });
  }

  stop(index: number): void {
    this.record(index).startedWith = undefined;
  }

  pod(index: number): Pod {
    return this.pods[index] as Pod;
  }

  record(index: number): MachineRecord {
    return this.records[index] as MachineRecord;
  }

  running(): { cpu: number; memoryBytes: number } {
    const sizes = this.records.map(({ startedWith }) => startedWith ?? { cpu: 0, memoryBytes: -OVERHEAD });
    return {
      cpu: sizes.reduce((sum, { cpu }) => sum + cpu, 0),
      memoryBytes: sizes.reduce((sum, { memoryBytes }) => sum + memoryBytes + OVERHEAD, 0),
    };
  }
}

function podOf(uid: string, cpu: number, gibibytes: number): Pod {
  const requests = { cpu: String(cpu), memory: String(gibibytes * GIBIBYTE + OVERHEAD) };
  return {
    apiVersion: 'v1',
    kind: 'Pod',
    metadata: { name: uid, namespace: 'ns', uid },
    spec: { containers: [{ name: 'machine', image: 'guest', resources: { requests, limits: requests } }] },
  };
}

const step = fc.oneof(
  fc.record({
    kind: fc.constant('resize' as const),
    index: fc.nat(3),
    cpu: fc.integer({ min: 1, max: 16 }),
    gibibytes: fc.integer({ min: 1, max: 16 }),
  }),
  fc.record({
    kind: fc.constantFrom('look' as const, 'restart' as const, 'stop' as const),
    index: fc.nat(3),
  }),
);

test('whatever is asked in whatever order, machines that run never have more than the host has', (context) => {
  assertHistories(context, { step, maxLength: 60, numRuns: 2_000 }, (steps) => {
    const model = new Model(4);
    for (const one of steps) {
      if (one.kind === 'resize') {
        model.resize(one.index, one.cpu, one.gibibytes);
      } else {
        model[one.kind](one.index);
      }
      const { cpu, memoryBytes } = model.running();
      expect(cpu).toBeLessThanOrEqual(8);
      expect(memoryBytes).toBeLessThanOrEqual(EIGHT_CPUS.memoryBytes);
    }
  });
});

describe('a machine that runs', () => {
  test('is promised a size that there is room for, and has it from its next start on', () => {
    const model = new Model(2);
    expect(model.resize(0, 4, 4)).toBeUndefined();
    const { containers } = model.pod(0).spec;
    const status = () => resourceStatus(containers[0] as (typeof containers)[0], model.record(0));
    expect(status()).toMatchObject({
      allocatedResources: { cpu: '4' },
      resources: { requests: { cpu: '1', memory: '1152Mi' }, limits: { cpu: '1', memory: '1152Mi' } },
    });
    expect(resizeConditions(model.record(0), undefined)).toMatchObject([{ type: 'PodResizeInProgress' }]);
    model.restart(0);
    expect(model.record(0).startedWith).toEqual({ cpu: 4, memoryBytes: 4 * GIBIBYTE });
    const { resources, allocatedResources } = status();
    expect(resources).toEqual({ requests: allocatedResources, limits: allocatedResources });
    expect(resizeConditions(model.record(0), undefined)).toEqual([]);
  });

  test.each([
    [9, 1, 'Infeasible', 'The Pod requests 9000m of CPU, and the host has only 8000m of 8000m left'],
    [1, 9, 'Infeasible', 'bytes of memory, and the host has only'],
    [8, 1, 'Deferred', 'The Pod requests 8000m of CPU, and the host has only 7000m of 8000m left'],
  ])('is not promised %i processors and %i GiB: %s', (cpu, gibibytes, reason, expected) => {
    const model = new Model(2);
    const pending = model.resize(0, cpu, gibibytes);
    expect(pending).toMatchObject({ reason, message: expect.stringContaining(expected) as string });
    expect(resizeConditions(model.record(0), pending)).toMatchObject([{ type: 'PodResizePending', reason }]);
    model.restart(0);
    expect(model.record(0).startedWith).toEqual({ cpu: 1, memoryBytes: GIBIBYTE });
  });

  test('gives back what it has more than it is promised when it starts again, and not before', () => {
    const model = new Model(2);
    model.resize(0, 6, 1);
    model.restart(0);
    model.resize(0, 1, 1);
    expect(model.resize(1, 4, 1)).toMatchObject({ reason: 'Deferred' });
    model.restart(0);
    expect(model.look(1)).toBeUndefined();
  });
});
