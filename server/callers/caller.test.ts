import { expect, it, vi } from 'vitest';
import type { KubeClient } from '../../kube/client.ts';
import { ApiError } from '../../kube/errors.ts';
import { Usernames } from './caller.ts';

const ann = { status: { userInfo: { username: 'ann' } } };
/** Limit of a wait. The default, 1 s, is too short on a busy machine. */
const WAIT = { timeout: 30_000 };

function clientOf(create: () => Promise<unknown>): KubeClient {
  return { create } as unknown as KubeClient;
}

it('asks once for each token, and again after 10 s', async () => {
  const now = vi.spyOn(performance, 'now').mockReturnValue(1);
  const usernames = new Usernames();
  const create = vi.fn<() => Promise<unknown>>(async () => ann);
  const ask = async (token: string) => await usernames.of(token, clientOf(create));
  expect(await Promise.all([ask('a'), ask('a')])).toEqual(['ann', 'ann']);
  expect(create).toHaveBeenCalledTimes(1);
  await ask('b');
  now.mockReturnValue(10_000);
  await ask('a');
  expect(create).toHaveBeenCalledTimes(2);
  now.mockReturnValue(10_002);
  // The cache reads its clock at most once in a millisecond.
  await vi.waitFor(async () => {
    await ask('a');
    expect(create).toHaveBeenCalledTimes(3);
  }, WAIT);
  now.mockRestore();
});

it('does not store a refusal', async () => {
  const usernames = new Usernames();
  const refusal = new ApiError('Unauthorized', { status: 401, reason: 'Unauthorized' });
  const refused = usernames.of(
    'a',
    clientOf(async () => {
      throw refusal;
    }),
  );
  await expect(refused).rejects.toBe(refusal);
  expect(
    await usernames.of(
      'a',
      clientOf(async () => ann),
    ),
  ).toBe('ann');
});
