import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { afterSync, ScriptedPeer } from '../../../test/wires/scriptedpeer.ts';
import { type GuestCommandResult, StreamRefused } from '../driver.ts';
import { GuestAgent, thawIfFrozen, whileFrozen } from './guestagent.ts';
import { executeInGuest } from './guestexec.ts';

/** Time in which a use of the guest agent may end before an urgent use interrupts it. */
const PATIENCE_MILLISECONDS = 5_000;

let folder: string;
let agent: GuestAgent;
let peer: ScriptedPeer;
let firstCommand: Promise<void>;

/** The guest never answers its first command, but executes all later commands. */
beforeEach(async () => {
  vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout'] });
  folder = await mkdtemp(join(tmpdir(), 'berth-agent-'));
  agent = new GuestAgent(folder);
  const first = Promise.withResolvers<void>();
  firstCommand = first.promise;
  let commands = 0;
  const answers: Record<string, unknown> = {
    'guest-exec': { pid: 7 },
    'guest-exec-status': { exited: true, exitcode: 0 },
  };
  const play = afterSync((socket, { execute }) => {
    commands += 1;
    if (commands === 1) {
      first.resolve();
    } else {
      socket.write(`${JSON.stringify({ return: answers[execute] ?? 1 })}\n`);
    }
  });
  peer = await ScriptedPeer.listen(join(folder, 'ga.sock'), play);
});

afterEach(async () => {
  vi.useRealTimers();
  await peer.close();
  await rm(folder, { recursive: true, force: true });
});

async function run(): Promise<GuestCommandResult> {
  const { signal } = new AbortController();
  return await executeInGuest(agent, { path: '/bin/sh', arguments: [], signal, reserve: () => true });
}

describe('a freeze', () => {
  it('interrupts a command without an answer, and comes before commands that wait', async () => {
    const silent = run().catch((error: unknown) => error);
    await firstCommand;
    const later = [run(), run()];
    const { signal } = new AbortController();
    const options = { agent, signal, remember: async () => undefined };
    const freeze = whileFrozen(options, async () => undefined);
    vi.advanceTimersByTime(PATIENCE_MILLISECONDS);
    expect(await freeze).toEqual({ frozen: true, confirmed: true, problems: [] });
    expect(await silent).toEqual(
      new StreamRefused(
        'The host no longer waits for the command, because a stop or copy of the VM began. Check in the guest whether the command still runs',
      ),
    );
    expect(await Promise.all(later)).toMatchObject([{ exitCode: 0 }, { exitCode: 0 }]);
    const order = peer.commands.filter((one) => /freeze|thaw|exec$/.test(one));
    expect(order).toEqual([
      'guest-exec',
      'guest-fsfreeze-freeze',
      'guest-fsfreeze-thaw',
      'guest-exec',
      'guest-exec',
    ]);
  });
});

describe('a thaw', () => {
  it('ends at once when its signal aborts, because a deletion of the machine waits for its renewal', async () => {
    const end = new AbortController();
    const thawing = thawIfFrozen(agent, end.signal);
    await firstCommand;
    end.abort(new Error('the machine is deleted'));
    await expect(thawing).rejects.toThrow('the machine is deleted');
  });
});

describe('the end of the connection to the machine', () => {
  it('ends a command without an answer, and those that wait', async () => {
    const commands = [run(), run()].map(async (one) => {
      await expect(one).rejects.toThrow(new StreamRefused('The connection to the machine was closed'));
    });
    await firstCommand;
    agent.close();
    await Promise.all(commands);
    expect(peer.commands.filter((one) => one === 'guest-exec')).toHaveLength(1);
  });
});
