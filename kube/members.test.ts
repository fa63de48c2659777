import { expect, it, vi } from 'vitest';
import { pause } from '../base/time.ts';
import type { KubeClient } from './client.ts';
import { ROLE_BINDINGS } from './core.ts';
import { ApiError } from './errors.ts';
import { addSubjects, createMember } from './members.ts';

vi.mock(import('../base/time.ts'), { spy: true });

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

it('a change of members is repeated while others change them, and then refused with the name of the role', async () => {
  const waits = vi.mocked(pause).mockResolvedValue();
  let conflicts = 2;
  const written: unknown[] = [];
  const client = {
    get: async () => ({
      metadata: { resourceVersion: '1' },
      roleRef: { kind: 'ClusterRole', name: 'member' },
    }),
    mergePatch: async (_type: unknown, _ref: unknown, patch: object) => {
      conflicts -= 1;
      if (conflicts >= 0) {
        throw new ApiError('the object has been modified', { status: 409, reason: 'Conflict' });
      }
      written.push(patch);
    },
  } as unknown as KubeClient;
  const add = async () =>
    await addSubjects(client, { namespace: 'platform-ci', name: 'member' }, { users: ['ann'] });
  await add();
  expect([written.length, waits.mock.calls.length]).toEqual([1, 2]);
  conflicts = Number.POSITIVE_INFINITY;
  const message = 'Others are changing RoleBinding member in namespace platform-ci. Try again';
  await expect(add()).rejects.toMatchObject({ status: 409, message });
  expect([written.length, waits.mock.calls.length]).toEqual([1, 11]);
});
