import { pino } from 'pino';
import { expect, test } from 'vitest';
import type { KubeClient } from '../../kube/client.ts';
import { ApiError } from '../../kube/errors.ts';
import { ServerVersionLook } from './serverversion.ts';

/** Asks once a minute while the API server gives these answers. Returns what is known after each minute. */
async function known(answers: readonly unknown[], minutes: number): Promise<(string | undefined)[]> {
  let now = 0;
  let asked = 0;
  const call = async () => {
    const body = answers[Math.min(asked, answers.length - 1)];
    asked += 1;
    if (body instanceof Error) {
      throw body;
    }
    return { status: 200, body };
  };
  const client = { call } as unknown as KubeClient;
  const look = new ServerVersionLook({ client, clock: () => now, logger: pino({ level: 'silent' }) });
  const versions: (string | undefined)[] = [];
  for (; now < minutes * 60_000; now += 60_000) {
    versions.push(await look.look());
  }
  return versions;
}

test('the version is asked for again after five minutes', async () => {
  const [old, later] = [{ gitVersion: 'v1.33.1' }, { gitVersion: 'v1.34.0' }];
  expect(await known([old, later], 6)).toEqual([...Array<string>(5).fill('v1.33.1'), 'v1.34.0']);
});

test.each([
  ['is forbidden', new ApiError('forbidden', { status: 403, reason: 'Forbidden' })],
  ['has no version', { major: '1' }],
])('an answer that %s leaves the version unknown', async (_what, answer) => {
  expect(await known([answer], 2)).toEqual([undefined, undefined]);
});

test('the agent asks again at once while the API server cannot be reached', async () => {
  await expect(known([new Error('ECONNREFUSED')], 1)).rejects.toThrow('ECONNREFUSED');
});
