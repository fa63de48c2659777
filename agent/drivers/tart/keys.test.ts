import { expect, it } from 'vitest';
import type { GuestCommand, GuestCommandResult } from '../driver.ts';
import { giveKeys, KeyTries } from './keys.ts';

const NEVER = new AbortController().signal;

async function given(result: Partial<GuestCommandResult>): Promise<unknown> {
  const execute = async ({ reserve }: GuestCommand): Promise<GuestCommandResult> => {
    expect([reserve(96 * 1024), reserve(1)]).toEqual([true, false]);
    return await Promise.resolve({ exitCode: 0, stdout: [], stderr: [], truncated: false, ...result });
  };
  return await giveKeys(['ssh-rsa AAAA'], execute, NEVER);
}

it('repeats the name of the user only if it is one, and keeps little of the output', async () => {
  expect(await given({ stdout: [Buffer.from('admin\n')] })).toEqual({ user: 'admin' });
  expect(await given({ stdout: [Buffer.from('Ready=True, ask your administrator')] })).toEqual({
    user: 'of the guest agent',
  });
  expect(await given({ exitCode: 1, stdout: [Buffer.from('admin')] })).toEqual({
    fault: 'The script that adds them ended with code 1',
  });
});

it('an aborted question is no failure of the guest', async () => {
  const aborted = AbortSignal.abort(new Error('not wanted'));
  const refuse = async (): Promise<GuestCommandResult> => await Promise.reject(new Error('refused'));
  await expect(giveKeys([], refuse, aborted)).rejects.toThrow('not wanted');
  expect(await giveKeys([], refuse, NEVER)).toEqual({ fault: 'refused' });
});

it('tries eight times in one run of a guest, and waits twice as long after each try', () => {
  let now = 0;
  const tries = new KeyTries(() => now);
  const begun: number[] = [];
  for (; now < 3_600_000; now += 1_000) {
    if (tries.begin()) {
      begun.push(now / 1_000);
    }
  }
  expect(begun).toEqual([0, 10, 30, 70, 150, 310, 630, 1270]);
});
