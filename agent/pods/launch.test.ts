import { expect, test } from 'vitest';
import type { Desired, Machine } from '../../api/v1alpha1/machine.ts';
import type { Host } from './host.ts';
import { machinePlan } from './launch.ts';
import { newRecord, type Operation } from './machine.ts';

const IMAGE_BYTES = 100;

/** Returns the planned size of the disk of a VM. `image` is its image. */
function plannedBytes(image: Machine['image'], diskSizeBytes: number | undefined): number | undefined {
  const machine = { image } as Machine;
  const claim = { slots: 0, cpuMillis: 0, memoryBytes: 0, diskBytes: 0, ports: [] };
  const record = newRecord({ uid: 'u', key: 'ns/vm', driver: 'qemu', machine, claim });
  const operation = { desired: { diskSizeBytes } as Desired } as Operation;
  return machinePlan({} as Host, record, operation).guest.diskSizeBytes;
}

test.each([
  ['has the size of the image', undefined, IMAGE_BYTES],
  ['is not smaller than the image, like that of every other image', IMAGE_BYTES - 1, IMAGE_BYTES],
  ['can be larger than the image', IMAGE_BYTES + 1, IMAGE_BYTES + 1],
])('the disk of an empty image %s', (_, wanted, bytes) => {
  expect(plannedBytes({ type: 'empty', sizeBytes: IMAGE_BYTES }, wanted)).toBe(bytes);
});

test('the plan leaves the size of another image to the driver', () => {
  const image = { type: 'registry', reference: 'r' } as const;
  expect(plannedBytes(image, undefined)).toBeUndefined();
  expect(plannedBytes(image, 1)).toBe(1);
});
