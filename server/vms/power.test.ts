import { expect, it } from 'vitest';
import type { VM } from '../../api/v1alpha1/vm.ts';
import type { KubeClient } from '../../kube/client.ts';
import { ApiError } from '../../kube/errors.ts';
import type { Ref, Resource } from '../../kube/objects.ts';
import { command } from './power.ts';

const REF = { namespace: 'platform-default', name: 'mac' };
const SHUT_DOWN = {
  phase: 'Stopped',
  conditions: [{ type: 'Ready', status: 'False', reason: 'GuestShutdown' }],
};

it('two callers who start a VM at the same time after its guest has shut down request one restart', async () => {
  let version = 1;
  let spec: object = {};
  const writes: object[] = [];
  const client = {
    get: async () => ({
      metadata: { ...REF, resourceVersion: String(version) },
      spec,
      status: SHUT_DOWN,
    }),
    mergePatch: async (_type: Resource<VM>, { name }: Ref, patch: VM) => {
      const { resourceVersion = String(version) } = patch.metadata;
      if (resourceVersion !== String(version)) {
        throw new ApiError(`${name} has been modified`, { status: 409, reason: 'Conflict' });
      }
      version += 1;
      writes.push(patch.spec);
      spec = { ...spec, ...patch.spec };
      return { ...patch, spec };
    },
  } as unknown as KubeClient;
  await Promise.all([command(client, REF, 'start'), command(client, REF, 'start')]);
  expect(writes).toEqual([
    { powerState: 'Running', restartRequestedAt: expect.any(String) },
    { powerState: 'Running' },
  ]);
});
