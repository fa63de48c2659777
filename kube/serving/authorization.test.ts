import { setImmediate as afterMicrotasks } from 'node:timers/promises';
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

it('shares one question among callers, asks again after 7.5 s without a wait, and uses no answer for more than 10 s', async () => {
  vi.useFakeTimers({ toFake: ['setTimeout'] });
  const now = vi.spyOn(performance, 'now').mockReturnValue(1);
  let isKnown = true;
  const create = vi.fn(async () => ({
    status: isKnown ? { authenticated: true, user: { username: 'ann' } } : {},
  }));
  const authorizer = new Authorizer({ create } as unknown as KubeClient);
  const users = await Promise.all([1, 2].map(async () => await authorizer.authenticate('token')));
  expect(users).toEqual([{ username: 'ann' }, { username: 'ann' }]);
  const askAt = async (milliseconds: number) => {
    now.mockReturnValue(milliseconds);
    // The cache reads its clock at most once in a millisecond.
    vi.runAllTimers();
    const user = await authorizer.authenticate('token');
    // A renewal ends after the answer.
    await afterMicrotasks();
    return user;
  };
  expect(await askAt(7_400)).toBeDefined();
  expect(create).toHaveBeenCalledTimes(1);
  create.mockRejectedValueOnce(new Error('no answer'));
  expect(await askAt(7_600)).toBeDefined();
  expect(create).toHaveBeenCalledTimes(2);
  expect(await askAt(8_000)).toBeDefined();
  expect(create).toHaveBeenCalledTimes(3);
  // That was another time with an answer, which lasts for 10 s again.
  expect(await askAt(15_000)).toBeDefined();
  expect(create).toHaveBeenCalledTimes(3);
  isKnown = false;
  expect(await askAt(17_000)).toBeDefined();
  expect(await askAt(17_100)).toBeUndefined();
  isKnown = true;
  expect(await askAt(27_200)).toBeDefined();
  create.mockRejectedValue(new Error('no answer'));
  await expect(askAt(37_300)).rejects.toThrow('no answer');
});
