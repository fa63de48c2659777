import { afterEach, beforeEach, expect, it, vi } from 'vitest';
import type { VM } from '../api/v1alpha1/vm.ts';
import type { KubeClient } from '../kube/client.ts';
import { ApiError } from '../kube/errors.ts';
import { endOfLife, holdVM } from './hold.ts';

const LIFE = { lifeMilliseconds: 600_000, clock: () => Date.now() };
const AWAY = Object.assign(new Error('connect ECONNREFUSED'), { code: 'ECONNREFUSED' });

beforeEach(() => void vi.useFakeTimers({ now: Date.parse('2030-01-01T00:00:00Z') }));
afterEach(() => void vi.useRealTimers());

function vmUntil(aliveUntil: string | undefined, uid = 'u'): VM {
  return { metadata: { name: 'run', namespace: 'ci', uid }, spec: { aliveUntil } } as VM;
}

/** Holds a VM whose life begins now, until `milliseconds` have passed. Returns the requests, and how the hold ended. */
async function heldFor(
  milliseconds: number,
  answers: { patch?: (aliveUntil: string) => Promise<VM>; get?: () => Promise<VM> } = {},
) {
  const { patch = async (aliveUntil) => vmUntil(aliveUntil), get } = answers;
  const sent: string[] = [];
  const mergePatch = async (_type: unknown, _ref: unknown, { spec }: VM) => {
    sent.push(spec.aliveUntil ?? '');
    return await patch(spec.aliveUntil ?? '');
  };
  const client = { mergePatch, get } as unknown as KubeClient;
  const over = new AbortController();
  const held = holdVM({ client, vm: vmUntil(endOfLife(LIFE)), ...LIFE, signal: over.signal }).then(
    () => 'ended',
    (error: unknown) => (error as Error).message,
  );
  await vi.advanceTimersByTimeAsync(milliseconds);
  const end = await Promise.race([held, Promise.resolve('held')]);
  over.abort();
  return { sent, end };
}

it('prolongs a life when half of it is over', async () => {
  expect(await heldFor(299_000)).toEqual({ sent: [], end: 'held' });
  const { sent, end } = await heldFor(601_000);
  // The second hold began 299 s later.
  expect([sent, end]).toEqual([['2030-01-01T00:19:59.000Z', '2030-01-01T00:24:59.000Z'], 'held']);
});

it('tries again while the API server is away, and gives up when the life is over', async () => {
  const fails = async () => {
    throw AWAY;
  };
  expect((await heldFor(590_000, { patch: fails })).end).toBe('held');
  expect((await heldFor(601_000, { patch: fails })).end).toBe(
    'The API server did not prolong the life of VM run in time',
  );
});

const refuses = (status: number, reason: string) => async () => {
  throw new ApiError('refused', { status, reason });
};

it.each([
  ['is deleted', refuses(404, 'NotFound'), undefined],
  ['is another one of the name', refuses(422, 'Invalid'), async () => vmUntil(undefined, 'other')],
])('ends when the VM %s', async (_, patch, get) => {
  const answers = { patch, ...(get && { get }) };
  expect((await heldFor(301_000, answers)).end).toBe('VM run was deleted');
});

it.each([
  ['removed the end', undefined, 'ended'],
  ['moved the end later', '2031-01-01T00:00:00Z', 'held'],
  ['did nothing', '2030-01-01T00:10:00Z', 'refused'],
])('goes on after a refusal if another user %s', async (_, aliveUntil, end) => {
  const patch = refuses(422, 'Invalid');
  expect((await heldFor(400_000, { patch, get: async () => vmUntil(aliveUntil) })).end).toBe(end);
});
