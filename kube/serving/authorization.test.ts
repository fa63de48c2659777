import { afterEach, expect, it, vi } from 'vitest';
import type { KubeClient } from '../client.ts';
import { Authorizer } from './authorization.ts';

afterEach(() => {
  vi.useRealTimers();
  vi.restoreAllMocks();
});

it('asks about some callers at once, lets some wait, and refuses the others', async () => {
  const answers: (() => void)[] = [];
  const client = {
    create: async () => {
      const { promise, resolve } = Promise.withResolvers<void>();
      answers.push(resolve);
      await promise;
      return { status: { authenticated: true, user: { username: 'user' } } };
    },
  } as unknown as KubeClient;
  const authorizer = new Authorizer(client, { answers: 8, questions: 2, waiting: 1 });
  const asked = ['a', 'b', 'c'].map(async (token) => await authorizer.authenticate(token));
  await expect(authorizer.authenticate('d')).rejects.toMatchObject({ status: 429 });
  expect(answers).toHaveLength(2);
  // The third question begins when the first has its answer.
  answers.splice(0).forEach((answer) => answer());
  await Promise.all(asked.slice(0, 2));
  answers.splice(0).forEach((answer) => answer());
  expect(await Promise.all(asked)).toEqual(asked.map(() => ({ username: 'user' })));
});

it('keeps the answer about a known caller, however many tokens are invented', async () => {
  const asked: string[] = [];
  const client = {
    create: async (_type: unknown, { spec: { token } }: { spec: { token: string } }) => {
      asked.push(token);
      return { status: token === 'known' ? { authenticated: true, user: { username: 'ann' } } : {} };
    },
  } as unknown as KubeClient;
  const authorizer = new Authorizer(client, { answers: 4, questions: 2, waiting: 8 });
  expect(await authorizer.authenticate('known')).toEqual({ username: 'ann' });
  for (let count = 0; count < 20; count += 1) {
    expect(await authorizer.authenticate(`invented-${count}`)).toBeUndefined();
  }
  expect(await authorizer.authenticate('known')).toEqual({ username: 'ann' });
  // The last refusals are known too.
  expect(await authorizer.authenticate('invented-19')).toBeUndefined();
  expect(asked.filter((token) => token === 'known' || token === 'invented-19')).toHaveLength(2);
});

it('keeps the answer about a known right, however many others are refused', async () => {
  const asked: string[] = [];
  const client = {
    create: async (_type: unknown, { spec: { resourceAttributes } }: Review) => {
      asked.push(resourceAttributes.name);
      return { status: { allowed: resourceAttributes.name === 'known' } };
    },
  } as unknown as KubeClient;
  const authorizer = new Authorizer(client, { answers: 4, questions: 2, waiting: 8 });
  const may = async (name: string) =>
    await authorizer.authorize(
      { username: 'ann' },
      { resourceAttributes: { verb: 'get', resource: 'nodes', name } },
    );
  expect(await may('known')).toBe(true);
  for (let count = 0; count < 20; count += 1) {
    expect(await may(`other-${count}`)).toBe(false);
  }
  expect(await may('known')).toBe(true);
  expect(asked.filter((name) => name === 'known')).toHaveLength(1);
});

interface Review {
  spec: { resourceAttributes: { name: string } };
}

it('a single user cannot take all places for questions about rights', async () => {
  const answered = Promise.withResolvers<{ status: { allowed: boolean } }>();
  const client = { create: () => answered.promise } as unknown as KubeClient;
  const authorizer = new Authorizer(client, { answers: 8, questions: 1, waiting: 8 });
  const may = async (username: string, namespace: string) =>
    await authorizer.authorize(
      { username },
      { resourceAttributes: { verb: 'get', resource: 'vms', namespace } },
    );
  const first = [may('ann', 'a'), may('ann', 'b')];
  const refused = may('ann', 'c').catch((error: unknown) => error);
  // The same question shares the place of the one that waits.
  const others = [may('ann', 'b'), may('bob', 'c')];
  answered.resolve({ status: { allowed: true } });
  expect(await refused).toMatchObject({ status: 429 });
  expect(await Promise.all([...first, ...others])).toEqual([true, true, true, true]);
  expect(await may('ann', 'c')).toBe(true);
});

it('shares one question among callers, and asks again when the answer is 10 s old', async () => {
  vi.useFakeTimers({ toFake: ['setTimeout'] });
  const now = vi.spyOn(performance, 'now').mockReturnValue(1);
  let isKnown = true;
  const create = vi.fn(async () => ({
    status: isKnown ? { authenticated: true, user: { username: 'ann' } } : {},
  }));
  const authorizer = new Authorizer({ create } as unknown as KubeClient);
  const users = await Promise.all([1, 2].map(async () => await authorizer.authenticate('token')));
  expect(users).toEqual([{ username: 'ann' }, { username: 'ann' }]);
  isKnown = false;
  now.mockReturnValue(10_000);
  vi.runAllTimers();
  expect(await authorizer.authenticate('token')).toBeDefined();
  expect(create).toHaveBeenCalledTimes(1);
  now.mockReturnValue(10_002);
  vi.runAllTimers();
  expect(await authorizer.authenticate('token')).toBeUndefined();
});
