import { describe, expect, it } from 'vitest';
import {
  contentSchema,
  describeSource,
  describeUrl,
  machineImageSourceSchema,
  mayHoldCredentials,
} from './source.ts';

describe('a URL in texts for people', () => {
  it.each([
    ['https://images.example/a/b.qcow2', 'https://images.example/a/b.qcow2'],
    ['https://user:secret@images.example:8443/a', 'https://images.example:8443/a'],
    ['https://secret@images.example/a', 'https://images.example/a'],
    ['https://s3.example/a?X-Amz-Signature=secret&X-Amz-Expires=1', 'https://s3.example/a?…'],
    ['https://images.example/a#secret', 'https://images.example/a'],
    ['https://secret:secret', 'a URL that cannot be read'],
  ])('%s is %s', (url, reported) => {
    expect(describeUrl(url)).toBe(reported);
    expect(describeSource({ type: 'http', url, sha256: '' })).toBe(reported);
  });

  it.each([
    ['https://images.example/a', false],
    ['https://images.example/a?b', true],
    ['https://user@images.example/a', true],
    ['no URL', true],
  ])('%s may hold credentials: %s', (url, may) => expect(mayHoldCredentials(url)).toBe(may));
});

it('the status of an Image keeps each field of each source that a host can fetch', () => {
  const fields = new Set<string>(machineImageSourceSchema.options.flatMap(({ shape }) => Object.keys(shape)));
  expect(fields).toContain('sha256');
  expect(Object.keys(contentSchema.shape)).toEqual(expect.arrayContaining([...fields]));
});
