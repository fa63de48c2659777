import { afterEach, expect, it, vi } from 'vitest';
import type { VM } from '../api/v1alpha1/vm.ts';
import { pause } from '../base/time.ts';
import type { KubeClient } from '../kube/client.ts';
import { ApiError } from '../kube/errors.ts';
import { ActionError } from './error.ts';
import { type PowerCommand, requestPower, type PowerDetails } from './power.ts';

vi.mock(import('../base/time.ts'), { spy: true });
afterEach(() => vi.mocked(pause).mockReset());

function vm(phase: string, spec: VM['spec'] = {}, status: object = {}): VM {
  return { metadata: { name: 'mac', uid: '1' }, spec, status: { phase, ...status } } as VM;
}

/** Status of a VM that is off. `reason` is the reason of its condition Ready. */
function off(reason: string): object {
  return { conditions: [{ type: 'Ready', status: 'False', reason }] };
}

type Write = (type: unknown, ref: unknown, patch: object) => Promise<VM>;

/** Client of a cluster with the VMSnapshot `first` of the VM `mac`, and `other` of another VM. The user may not read `hidden`. */
function clientWith(mergePatch: Write): Pick<KubeClient, 'get' | 'mergePatch'> {
  const get = async (_type: unknown, { name }: { name: string }) => {
    if (name === 'hidden' || name === 'missing') {
      const [status, reason] =
        name === 'hidden' ? ([403, 'Forbidden'] as const) : ([404, 'NotFound'] as const);
      throw new ApiError(name, { status, reason });
    }
    return { spec: { vmName: name === 'first' ? 'mac' : 'tower' } };
  };
  return { get, mergePatch } as unknown as KubeClient;
}

/** Returns the merge patch that a command writes, or the reason why the command is refused. */
async function changeOf(found: VM, word: PowerCommand, details?: PowerDetails) {
  let written: object | undefined;
  const client = clientWith(async (_type, _ref, patch) => {
    written = patch;
    return found;
  });
  try {
    await requestPower(client, word, async () => found, details);
    return { patch: written };
  } catch (error) {
    return error instanceof ActionError ? { refusal: error.message } : error;
  }
}

it('starts a VM that is stopped on purpose, and restarts one whose guest has shut down', async () => {
  const metadata = { uid: '1' };
  const restart = { powerState: 'Running', restartRequestedAt: expect.any(String) };
  const stopped = vm('Stopped', { powerState: 'Stopped' }, off('Stopped'));
  expect(await changeOf(stopped, 'start')).toEqual({ patch: { metadata, spec: { powerState: 'Running' } } });
  expect(await changeOf(vm('Stopped', {}, off('GuestShutdown')), 'start')).toEqual({
    patch: { metadata, spec: restart },
  });
  expect(await changeOf(stopped, 'restart')).toEqual({ patch: { metadata, spec: restart } });
});

it.each<[string, VM]>([
  ['that the host is about to start', vm('Stopped', {}, off('Stopped'))],
  [
    'whose requested restart has not begun',
    vm('Stopped', { restartRequestedAt: '2026-11-27T12:00:00Z' }, off('GuestShutdown')),
  ],
])('does not restart a VM %s if `start` is repeated', async (_, started) => {
  const patch = { metadata: { uid: '1' }, spec: { powerState: 'Running' } };
  expect(await changeOf(started, 'start')).toEqual({ patch });
});

it('starts a VM that was stopped after its guest had shut down, although the host has not noticed the stop', async () => {
  const stopped = vm('Stopped', { powerState: 'Stopped' }, off('GuestShutdown'));
  const spec = { powerState: 'Running', restartRequestedAt: expect.any(String) };
  expect(await changeOf(stopped, 'start')).toEqual({ patch: { metadata: { uid: '1' }, spec } });
});

it.each([
  ['suspend', 'Stopped'],
  ['restart', 'Pulling'],
  ['start', 'Failed'],
] as const)('refuses to %s a VM that is %s', async (word, phase) => {
  const refusal = `VM mac is ${phase}, so the command ${word} is refused`;
  expect(await changeOf(vm(phase), word)).toEqual({ refusal });
});

/** Status of a VM whose guest has shut down. */
const SHUT_DOWN = { phase: 'Stopped', ...off('GuestShutdown') };

/** Returns a client and a function that write and read one stored VM. `writes` contains the spec of each successful write. */
function stored(version = () => 0) {
  let current = vm('Stopped', {}, SHUT_DOWN);
  const writes: object[] = [];
  let written = 0;
  const resourceVersion = () => String(written + version());
  const read = async () => ({
    ...current,
    metadata: { ...current.metadata, resourceVersion: resourceVersion() },
  });
  const client = clientWith(async (_type, _ref, patch) => {
    const { metadata, spec } = patch as VM;
    if (metadata.resourceVersion !== undefined && metadata.resourceVersion !== resourceVersion()) {
      throw new ApiError('the VM has been modified', { status: 409, reason: 'Conflict' });
    }
    written += 1;
    writes.push(spec);
    current = { ...current, spec: { ...current.spec, ...spec } };
    return current;
  });
  return { request: async (word: PowerCommand) => await requestPower(client, word, read), writes };
}

it('two starts at the same time of a VM whose guest has shut down request one restart', async () => {
  const { request, writes } = stored();
  await Promise.all([request('start'), request('start')]);
  expect(writes).toEqual([
    { powerState: 'Running', restartRequestedAt: expect.any(String) },
    { powerState: 'Running' },
  ]);
});

it('refuses a start if others change the VM again and again', async () => {
  vi.mocked(pause).mockResolvedValue();
  let version = 0;
  const { request, writes } = stored(() => (version += 1));
  await expect(request('start')).rejects.toMatchObject({
    kind: 'busy',
    message: 'Other clients are changing VM mac. Try again',
  });
  expect(writes).toEqual([]);
});

it('stops a VM although others change it', async () => {
  let version = 0;
  const { request } = stored(() => (version += 1));
  expect(await request('stop')).toMatchObject({ spec: { powerState: 'Stopped' } });
});

it('resets a disk to a snapshot, or to the image again when no snapshot is named', async () => {
  const metadata = { uid: '1' };
  const revertRequestedAt = expect.any(String) as string;
  const running = vm('Running');
  expect(await changeOf(running, 'revert')).toEqual({
    patch: { metadata, spec: { revertRequestedAt, revertTo: null } },
  });
  expect(await changeOf(running, 'revert', { revertTo: 'first' })).toEqual({
    patch: { metadata, spec: { revertRequestedAt, revertTo: 'first' } },
  });
  expect(await changeOf(vm('Running', { revertTo: 'first' }), 'revert')).toEqual({
    patch: { metadata, spec: { revertRequestedAt, revertTo: null } },
  });
});

it('reverts to no snapshot that the VM does not have, unless the user cannot see it', async () => {
  const changeTo = async (revertTo: string) => await changeOf(vm('Running'), 'revert', { revertTo });
  expect(await changeTo('missing')).toEqual({ refusal: 'VM mac has no snapshot missing' });
  expect(await changeTo('other')).toEqual({ refusal: 'VM mac has no snapshot other' });
  expect(await changeTo('hidden')).toMatchObject({ patch: { spec: { revertTo: 'hidden' } } });
});
