import { PassThrough } from 'node:stream';
import { expect, it } from 'vitest';
import { execute } from './exec.ts';
import type { Status } from './streams/session.ts';
import type { StreamTarget } from './targets.ts';

it('a command whose caller never ends the input ends with the session', async () => {
  const lose = new AbortController();
  const statuses: Status[] = [];
  const executed = execute(
    {
      stdin: new PassThrough(),
      stdout: undefined,
      stderr: undefined,
      signal: lose.signal,
      ended: Promise.resolve(),
      finish: async (status) => void statuses.push(status),
    },
    {} as StreamTarget,
    ['cat'],
  );
  lose.abort(new Error('The stream was idle for 30 minutes'));
  await executed;
  expect(statuses).toMatchObject([{ status: 'Failure', message: 'The stream was idle for 30 minutes' }]);
});
