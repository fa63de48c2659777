import { expect, it } from 'vitest';
import type { KubeClient } from './client.ts';
import { ROLE_BINDINGS } from './core.ts';
import { ApiError } from './errors.ts';
import { createMember } from './members.ts';

it('a failure to give the role is reported, although the service account cannot be deleted either', async () => {
  const ref = { namespace: 'platform-ci', name: 'builder' };
  const deleted: unknown[] = [];
  const client = {
    create: async (type: unknown) => {
      if (type === ROLE_BINDINGS) {
        throw new ApiError('rolebindings is forbidden', { status: 403, reason: 'Forbidden' });
      }
      return { metadata: { ...ref, uid: 'u' } };
    },
    get: async () => {
      throw new ApiError('no such role binding', { status: 404, reason: 'NotFound' });
    },
    delete: async (...deletion: unknown[]) => {
      deleted.push(deletion[2]);
      throw new ApiError('serviceaccounts is forbidden', { status: 403, reason: 'Forbidden' });
    },
  };
  const created = createMember(client as unknown as KubeClient, ref, 'member');
  await expect(created).rejects.toThrow('rolebindings is forbidden');
  expect(deleted).toEqual([{ uid: 'u' }]);
});
