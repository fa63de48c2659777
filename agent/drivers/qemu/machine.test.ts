import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { access, mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import type { Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pino } from 'pino';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { isMissing } from '../../../base/errors.ts';
import { afterSync, type PeerCommand, ScriptedPeer } from '../../../test/wires/scriptedpeer.ts';
import { segmentName } from '../../console/logwriter.ts';
import { identify } from '../../processes/process.ts';
import type { MachineFolder } from '../driver.ts';
import { QemuDriver } from './driver.ts';
import { whileFrozen } from './freeze.ts';
import { GuestAgent } from './guestagent.ts';
import { readCopyNote, writeCopyNote, writeMachineFile } from './state.ts';

/** Events in the words of QEMU 7.2 to 10. */
const SAYS = {
  signal: '{"event":"SHUTDOWN","data":{"guest":false,"reason":"host-signal"}}',
  powerOff: '{"event":"SHUTDOWN","data":{"guest":true,"reason":"guest-shutdown"}}',
};

let directory: string;
let folder: MachineFolder;
let driver: QemuDriver;
let peers: ScriptedPeer[];
let hypervisor: ReturnType<typeof spawn>;

beforeEach(async () => {
  peers = [];
  directory = await mkdtemp(join(tmpdir(), 'berth-machine-'));
  folder = { uid: 'uid', path: join(directory, 'machines', 'uid') };
  await mkdir(folder.path, { recursive: true });
  hypervisor = spawn('sleep', ['60']);
  await once(hypervisor, 'spawn');
  const identity = await identify(hypervisor.pid ?? 0);
  if (identity === undefined) {
    throw new Error('the process has no identity');
  }
  await writeMachineFile(folder.path, {
    version: 1,
    architecture: 'amd64',
    machineType: 'pc',
    intent: 'run',
    process: identity,
    live: true,
    suspended: false,
  });
  driver = new QemuDriver({ dataDirectory: directory, logger: pino({ level: 'silent' }) });
});

afterEach(async () => {
  await driver.close();
  hypervisor.kill('SIGKILL');
  await Promise.all(peers.map(async (peer) => await peer.close()));
  await rm(directory, { recursive: true });
});

/** Answers for the hypervisor, whose run state is `status`. It tells `event` before it is asked, and ends on command. */
async function listen(status: string, event?: string): Promise<void> {
  const disk = { qdev: '/disk', inserted: { 'node-name': 'disk', image: { 'virtual-size': 1 } } };
  const answers: Record<string, unknown> = {
    'query-status': { status },
    'query-block': [disk],
    'query-block-exports': [],
    'query-named-block-nodes': [],
  };
  const answer = (socket: Socket, { execute, id }: PeerCommand): void => {
    if (execute === 'query-status' && event !== undefined) {
      socket.write(`${event}\n`);
    }
    socket.write(`${JSON.stringify({ return: answers[execute] ?? {}, id })}\n`);
    if (execute === 'quit') {
      hypervisor.kill('SIGKILL');
    }
  };
  peers.push(await ScriptedPeer.listen(join(folder.path, 'qmp.sock'), answer));
}

/**
 * A hypervisor between its own end and the end of its process. A real hypervisor passes this moment too fast for a test to meet
 * it each time. Its run state is `shutdown`, and it ends on command.
 */
describe('a hypervisor in the run state shutdown', () => {
  it.each([
    ['that a signal ends has crashed, and its guest has not powered off', SAYS.signal, 'Crashed'],
    ['whose guest powered off says so', SAYS.powerOff, 'GuestShutdown'],
    ['that was met in it waits since its guest powered off', undefined, 'GuestShutdown'],
  ])('%s', async (_, event, reason) => {
    await listen('shutdown', event);
    expect(await driver.inspect(folder)).toMatchObject({ kind: 'exited', reason });
  });

  it('has crashed also when the agent missed the event and finds the signal in its last words', async () => {
    const words = 'qemu-system-x86_64: terminating on signal 15 from pid 1 (init)\n';
    await writeFile(join(folder.path, segmentName('hypervisor', 0)), words);
    await listen('shutdown');
    expect(await driver.inspect(folder)).toMatchObject({ kind: 'exited', reason: 'Crashed' });
  });
});

/** A kill of the agent meets these moments too rarely: they are shown by their parts. */
describe('an agent that dies between its note of a freeze and the freeze', () => {
  /** Guest agent that calls `seen` before it answers a command. */
  async function guestAgent(seen: (command: string) => void = () => undefined): Promise<ScriptedPeer> {
    const answer = (socket: Socket, { execute }: PeerCommand): void => {
      seen(execute);
      socket.write('{"return":1}\n');
    };
    const peer = await ScriptedPeer.listen(join(folder.path, 'ga.sock'), afterSync(answer));
    peers.push(peer);
    return peer;
  }

  it('has noted it before the guest hears of it, and forgets it after the thaw', async () => {
    const order: string[] = [];
    await guestAgent((command) => order.push(command));
    const remember = async (frozen: boolean): Promise<void> => void order.push(`noted ${frozen}`);
    const signal = new AbortController().signal;
    const work = async (): Promise<void> => void order.push('work');
    expect(await whileFrozen({ agent: new GuestAgent(folder.path), signal, remember }, work)).toMatchObject({
      frozen: true,
    });
    const during = ['guest-fsfreeze-freeze', 'work', 'guest-fsfreeze-thaw'];
    expect(order).toEqual(['noted true', ...during, 'noted false']);
  });

  it('leaves a note, for which the next agent thaws the guest and removes what was copied', async () => {
    const target = join(directory, 'disk.raw');
    await writeFile(target, 'incomplete');
    await writeCopyNote(folder.path, { target, frozen: true, thawsFailed: 0 });
    await listen('running');
    const guest = await guestAgent();
    expect(await driver.inspect(folder)).toMatchObject({ kind: 'running', guestStarted: true });
    expect(guest.commands.filter((command) => command !== 'guest-sync-delimited')).toEqual([
      'guest-fsfreeze-thaw',
    ]);
    expect(await readCopyNote(folder.path)).toBeUndefined();
    await expect(access(target)).rejects.toSatisfy(isMissing);
  });
});
