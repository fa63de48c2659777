import { expect, it, vi } from 'vitest';
import { CREATED_BY_ANNOTATION } from '../../api/v1alpha1/names.ts';
import { VMS } from '../../api/v1alpha1/resources.ts';
import type { CallerClient } from './caller.ts';
import { createAs } from './objects.ts';

it('creates objects with the name of the caller, and lets the API server refuse fields that it would drop', async () => {
  const create = vi.fn().mockResolvedValue({});
  const client = { create, username: () => Promise.resolve('ann') } as unknown as CallerClient;
  const metadata = { name: 'desk', namespace: 'platform-a', annotations: { other: '1' } };
  await createAs(client, VMS, { metadata, spec: { image: 'a' } });
  const annotations = { other: '1', [CREATED_BY_ANNOTATION]: 'ann' };
  expect(create.mock.calls).toEqual([
    [VMS, { metadata: { ...metadata, annotations }, spec: { image: 'a' } }, { fieldValidation: 'Strict' }],
  ]);
});
