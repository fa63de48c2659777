import { describe, expect, it } from 'vitest';
import { diskRequest } from '../../api/v1alpha1/hostspace.ts';
import { MACHINE_CONDITION, MACHINE_CONTAINER } from '../../api/v1alpha1/names.ts';
import { parseConfig } from '../config/config.ts';
import type { ObservedVM } from './observe.ts';
import { restartRequired } from './size.ts';

const GIB = 2n ** 30n;
const NOTHING = { diskSizeBytes: undefined, imageSizeBytes: undefined };
const config = parseConfig({}, 'test');

describe('the disk that a VM requests from its host', () => {
  it.each([
    ['a fifth of its own size', { diskSizeBytes: 50n * GIB }, '10Gi'],
    ["a fifth of its image's, where it names no size", { imageSizeBytes: 50n * GIB }, '10Gi'],
    ['a fifth of 10Gi, where nobody knows a size', {}, '2Gi'],
    [
      'that of an image which is larger than the size it names',
      { diskSizeBytes: GIB, imageSizeBytes: 50n * GIB },
      '10Gi',
    ],
    ['exactly a fifth, without the rounding of fractions', { diskSizeBytes: 5n * 1024n * GIB }, '1Ti'],
    ['a whole mebibyte at least', { diskSizeBytes: 1n }, '1Mi'],
  ])('%s', (_, sizes, request) => {
    expect(diskRequest({ ...NOTHING, ...sizes }, config)).toBe(request);
  });

  it('is all of it, or another size for unknown disks, if the operator is configured so', () => {
    const strict = parseConfig({ diskRequestRatio: 1, defaults: { diskRequest: '64Gi' } }, 'test');
    expect(diskRequest({ ...NOTHING, diskSizeBytes: 50n * GIB }, strict)).toBe('50Gi');
    expect(diskRequest(NOTHING, strict)).toBe('64Gi');
    const unknown = parseConfig({ defaults: { diskRequest: '50Gi' } }, 'test');
    expect(diskRequest(NOTHING, unknown)).toBe('10Gi');
  });
});

describe('a VM whose machine runs with cpu 2, memory 2Gi and a disk of 8Gi', () => {
  const message = JSON.stringify({ cpu: 2, memoryBytes: Number(2n * GIB), diskSizeBytes: Number(8n * GIB) });
  const status = { conditions: [{ type: MACHINE_CONDITION, status: 'True', message }] };

  it.each([
    ['needs no restart for the same disk', '8Gi', '2', undefined],
    ['needs no restart for a disk below the size of its image', '1Gi', '2', undefined],
    ['needs one for a larger disk', '9Gi', '2', 'diskSize 8Gi; diskSize 9Gi'],
    ['says all that changes', '9Gi', '4', 'cpu 2, memory 2Gi, diskSize 8Gi; cpu 4, memory 2Gi, diskSize 9Gi'],
  ])('%s', (_, diskSize, cpu, sizes) => {
    const requests = { cpu, memory: '2176Mi' };
    const pod = { spec: { containers: [{ name: MACHINE_CONTAINER, resources: { requests } }] }, status };
    const observed = { vm: { spec: { cpu: Number(cpu), diskSize } }, pod } as unknown as ObservedVM;
    expect(restartRequired(observed)?.message).toBe(
      sizes && `The machine runs with ${sizes} takes effect at the next start`,
    );
  });
});
