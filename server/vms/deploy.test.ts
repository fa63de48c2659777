import { pino } from 'pino';
import { afterEach, beforeEach, expect, it, vi } from 'vitest';
import type { VM } from '../../api/v1alpha1/vm.ts';
import type { KubeClient } from '../../kube/client.ts';
import { ApiError } from '../../kube/errors.ts';
import { ActionError } from '../../actions/error.ts';
import { StatusError } from '../http/errors.ts';
import { WaitEnd } from '../http/waiting.ts';
import { answerOf, keepOrDiscard, trimmed } from './deploy.ts';

const TIME = '2030-01-01T00:11:00.000Z';
const logger = pino({ level: 'silent' });
const vm = {
  metadata: { name: 'mac', namespace: 'ci', uid: 'u' },
  spec: { aliveUntil: TIME },
} as unknown as VM;
const AWAY = Object.assign(new Error('connect ECONNREFUSED'), { code: 'ECONNREFUSED' });
const UNAUTHORIZED = new ApiError('Unauthorized', { status: 401, reason: 'Unauthorized' });

beforeEach(() => void vi.useFakeTimers());
afterEach(() => void vi.useRealTimers());

type Write = () => Promise<unknown>;

/** A client of an API server that does not answer until `isBack` is set. */
function api() {
  const state = { isBack: false };
  const write: Write = async () => {
    if (!state.isBack) {
      throw AWAY;
    }
    return vm;
  };
  const writes = { delete: vi.fn<Write>(write), mergePatch: vi.fn<Write>(write) };
  return { state, writes, client: writes as unknown as KubeClient };
}

it.each([
  ['deletes', 'late', false, 'delete', 'mergePatch'],
  ['keeps', 'gone', true, 'mergePatch', 'delete'],
] as const)(
  '%s the VM when the API server is back, long after the answer to a client that is %s',
  async (_, why, stays, own, other) => {
    const { state, writes, client } = api();
    const settled = keepOrDiscard(client, vm, { error: new WaitEnd(why), stays, logger });
    await vi.advanceTimersByTimeAsync(10_000);
    expect(await settled).toBe(false);
    await vi.advanceTimersByTimeAsync(240_000);
    expect(writes[other]).not.toHaveBeenCalled();
    state.isBack = true;
    await vi.waitFor(() => expect(writes[own]).toHaveResolvedWith(vm), { timeout: 30_000 });
  },
);

it('writes nothing with a token that is no longer valid', async () => {
  const { writes, client } = api();
  for (const stays of [true, false]) {
    expect(await keepOrDiscard(client, vm, { error: UNAUTHORIZED, stays, logger })).toBe(false);
  }
  await vi.advanceTimersByTimeAsync(60_000);
  expect([writes.delete.mock.calls, writes.mergePatch.mock.calls]).toEqual([[], []]);
});

it.each<[unknown, boolean, number, string]>([
  [
    new WaitEnd('late'),
    true,
    504,
    'VM mac did not run within 1 minute. VM mac was deleted. The VM waited for: ',
  ],
  [new WaitEnd('late'), false, 504, `. The operator deletes VM mac at ${TIME}. The VM waited for: `],
  [new WaitEnd('stopping'), true, 503, 'The HTTP API is stopping. VM mac was deleted. Try again'],
  [
    UNAUTHORIZED,
    false,
    401,
    `Unauthorized: the token is no longer valid. The operator deletes VM mac at ${TIME}`,
  ],
  [
    new ActionError('room', 'No host has room for VM mac: full'),
    false,
    503,
    `No host has room for VM mac: full. The operator deletes VM mac at ${TIME}`,
  ],
  [
    new ActionError('invalid', 'VM mac cannot run: no'),
    true,
    422,
    'VM mac cannot run: no. VM mac was deleted',
  ],
  [new ApiError('no right', { status: 403, reason: 'Forbidden' }), true, 403, 'no right. VM mac was deleted'],
])('after %o the answer tells what becomes of the VM', (error, isDeleted, code, expected) => {
  const answer = answerOf(error, vm, { isDeleted, minutes: 1 });
  expect(answer).toBeInstanceOf(StatusError);
  expect((answer as StatusError).body).toMatchObject({ code, message: expect.stringContaining(expected) });
});

it('keeps only the fields that a waiting request needs', () => {
  const identity = { name: 'mac', namespace: 'ci', uid: 'u', resourceVersion: '7' };
  const metadata = { ...identity, deletionTimestamp: '2030-01-01T00:00:00Z' };
  const status = { phase: 'Cloning', conditions: [] };
  const spec = { aliveUntil: TIME, terminationGracePeriodSeconds: 7 };
  const kept = { apiVersion: 'berth.dev/v1alpha1', kind: 'VM', metadata, spec, status };
  const vm = {
    ...kept,
    metadata: { ...metadata, labels: { a: 'b' }, finalizers: ['c'], annotations: { d: 'e' } },
    spec: { ...spec, guestMetadata: { f: 'g' } },
  } as VM;
  expect(trimmed(vm)).toEqual(kept);
  expect(trimmed({ ...vm, metadata: identity, status: undefined } as unknown as VM).metadata).toEqual(
    identity,
  );
});
