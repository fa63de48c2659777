import { expect, it } from 'vitest';
import { ANSWER_BY_ANNOTATION } from '../../api/v1alpha1/names.ts';
import type { VM } from '../../api/v1alpha1/vm.ts';
import { trimmed } from './trimmed.ts';

it('keeps only the fields that a waiting request needs', () => {
  const identity = { name: 'mac', namespace: 'ci', uid: 'u', resourceVersion: '7' };
  const times = {
    deletionTimestamp: '2030-01-01T00:00:00Z',
    annotations: { [ANSWER_BY_ANNOTATION]: '2030-01-01T00:11:00.000Z' },
  };
  const status = { phase: 'Cloning', conditions: [] };
  const kept = { apiVersion: 'berth.dev/v1alpha1', kind: 'VM', metadata: { ...identity, ...times }, status };
  const vm = {
    ...kept,
    metadata: {
      ...kept.metadata,
      labels: { a: 'b' },
      finalizers: ['c'],
      annotations: { ...times.annotations, d: 'e' },
    },
    spec: { guestMetadata: { f: 'g' } },
  } as VM;
  expect(trimmed(vm)).toEqual({ ...kept, spec: {} });
  expect(trimmed({ ...vm, metadata: identity, status: undefined } as unknown as VM).metadata).toEqual(
    identity,
  );
});
