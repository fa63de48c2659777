import { expect, it, vi } from 'vitest';
import { ApiError } from '../kube/errors.ts';
import type { Caller } from './callers/caller.ts';
import { deployEmulator } from './emulators.ts';

const created = { metadata: { name: 'mac-x7k2p', namespace: 'platform-ci', uid: 'u', resourceVersion: '1' } };

/** Deploys an emulator at an API server that refuses the watch. Resolves with the status of the error and the deleted names. */
async function deployWithoutWatch(name?: string) {
  const deletion = vi.fn(async (_type: unknown, _ref: { name: string }) => undefined);
  const client = {
    username: async () => 'ci',
    get: async () => ({ metadata: { name: 'mac' }, status: { phase: 'Running' } }),
    create: async () => created,
    delete: deletion,
  };
  const stream = async () => {
    throw new ApiError('the watch is refused', { status: 400, reason: 'BadRequest' });
  };
  const caller = { client, watches: { stream } } as unknown as Caller;
  const body = { vm: 'mac', ...(name !== undefined && { name }) };
  const request = { caller, namespace: 'platform-ci', body, logger: { warn: vi.fn() } };
  const error = await deployEmulator(request, new AbortController()).catch((reason: unknown) => reason);
  return [(error as ApiError).status, deletion.mock.calls.map(([, ref]) => ref.name)];
}

it('deletes an emulator with a generated name when the wait ends with an error', async () => {
  expect(await deployWithoutWatch()).toEqual([400, ['mac-x7k2p']]);
  expect(await deployWithoutWatch('mac-x7k2p')).toEqual([400, []]);
});
