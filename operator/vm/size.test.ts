import { describe, expect, it } from 'vitest';
import { parseConfig } from '../config/config.ts';
import { diskRequest } from './size.ts';

const GIB = 2n ** 30n;
const NOTHING = { diskSizeBytes: undefined, imageSizeBytes: undefined };
const config = parseConfig({}, 'test');

describe('the disk that a VM requests of its host', () => {
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

  it('all of it, or a size of its own for unknown ones, where the operator is configured so', () => {
    const strict = parseConfig({ diskRequestRatio: 1, defaults: { diskRequest: '64Gi' } }, 'test');
    expect(diskRequest(NOTHING, strict)).toBe('64Gi');
  });
});
