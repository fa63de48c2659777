import { expect, it } from 'vitest';
import type { KubeClient } from '../client.ts';
import { Authorizer } from './authorization.ts';

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
