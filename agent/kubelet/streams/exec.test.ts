import { PassThrough, Readable } from 'node:stream';
import { expect, it } from 'vitest';
import { execute } from './exec.ts';
import type { Status } from './session.ts';
import type { StreamTarget } from './target.ts';

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
    () => true,
  );
  lose.abort(new Error('The stream was idle for 30 minutes'));
  await executed;
  expect(statuses).toMatchObject([{ status: 'Failure', message: 'The stream was idle for 30 minutes' }]);
});

it('the input is copied, so that no small piece keeps a large chunk', async () => {
  const inputs: unknown[] = [];
  const target = {
    execute: async ({ input }: { input?: Buffer }) => {
      inputs.push(String(input));
      return { exitCode: 0, stdout: [], stderr: [], truncated: false };
    },
  };
  const session = {
    stdin: Readable.from(overwritten('piece by piece'), { objectMode: false, highWaterMark: 1 }),
    stdout: undefined,
    stderr: undefined,
    signal: new AbortController().signal,
    ended: Promise.resolve(),
    finish: async () => undefined,
  };
  await execute(session, target as unknown as StreamTarget, ['cat'], () => true);
  expect(inputs).toEqual(['piece by piece']);
});

it('input for which no memory is left is refused before the command runs', async () => {
  const statuses: Status[] = [];
  let left = 10;
  const reserve = (bytes: number): boolean => (left -= bytes) >= 0;
  const session = {
    stdin: Readable.from(overwritten('more than ten bytes'), { objectMode: false, highWaterMark: 1 }),
    stdout: undefined,
    stderr: undefined,
    signal: new AbortController().signal,
    ended: Promise.resolve(),
    finish: async (status: Status) => void statuses.push(status),
  };
  await execute(session, {} as StreamTarget, ['cat'], reserve);
  expect(statuses).toMatchObject([
    { message: expect.stringContaining('Other commands of this namespace') as string },
  ]);
});

/** Returns the bytes of the text one by one. All pieces use the same memory. */
function* overwritten(text: string): Generator<Buffer> {
  const chunk = Buffer.alloc(1);
  for (const byte of Buffer.from(text)) {
    chunk[0] = byte;
    yield chunk;
  }
}
