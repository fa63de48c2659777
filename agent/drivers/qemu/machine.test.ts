import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { access, mkdir, mkdtemp, readdir, rm, symlink, writeFile } from 'node:fs/promises';
import { connect, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pino } from 'pino';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { isMissing } from '../../../base/errors.ts';
import { afterSync, type PeerCommand, ScriptedPeer } from '../../../test/wires/scriptedpeer.ts';
import { segmentName } from '../../console/logwriter.ts';
import { identify } from '../../processes/process.ts';
import type { MachineFolder } from '../driver.ts';
import { QemuDriver } from './driver.ts';
import { GuestAgent, whileFrozen } from './guestagent.ts';
import { type MachineFile, readCopyNote, readMachineFile, QemuState, writeCopyNote } from './state.ts';

/** Events in the form in which QEMU 7.2 to 10 sends them. */
const SAYS = {
  signal: '{"event":"SHUTDOWN","data":{"guest":false,"reason":"host-signal"}}',
  stop: '{"event":"STOP"}',
  powerOff: '{"event":"SHUTDOWN","data":{"guest":true,"reason":"guest-shutdown"}}',
};

/** An inspection waits 3 s for an answer, and other commands 30 s. A busy machine needs longer. */
const SOON_MILLISECONDS = 15_000;

let directory: string;
let folder: MachineFolder;
let driver: QemuDriver;
let peers: ScriptedPeer[];
let hypervisor: ReturnType<typeof spawn>;
/** Makes the hypervisor report an event. */
let report: (event: string) => void;

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
  await new QemuState(folder.path).replace({
    version: 1,
    architecture: 'amd64',
    machineType: 'pc',
    launched: { cpu: 1, memoryBytes: 2 ** 28, accelerator: 'tcg', screen: { dbus: false } },
    intent: 'run',
    process: identity,
    live: true,
    suspended: false,
  });
  driver = new QemuDriver({ dataDirectory: directory, logger: pino({ level: 'silent' }) });
});

afterEach(async () => {
  vi.restoreAllMocks();
  await driver.close();
  hypervisor.kill('SIGKILL');
  await Promise.all(peers.map(async (peer) => await peer.close()));
  await rm(directory, { recursive: true });
});

interface ListenOptions {
  /** Event that is sent before the answer to `query-status`. */
  event?: string | undefined;
  /** Whether a program in the guest has opened the guest agent's port. */
  hasAgent?: boolean;
  /** Returns whether the hypervisor leaves `query-status` without an answer. */
  isSilent?: () => boolean;
}

/** Answers in place of a hypervisor in the run state `status`. Sends `event`, if any, and ends after `quit`. */
async function listen(
  status: string,
  { event, hasAgent = false, isSilent = () => false }: ListenOptions = {},
): Promise<ScriptedPeer> {
  const disk = { qdev: '/disk', inserted: { 'node-name': 'disk', image: { 'virtual-size': 1 } } };
  const answers: Record<string, unknown> = {
    'query-status': { status },
    'query-block': [disk],
    'query-block-exports': [],
    'query-named-block-nodes': [],
    'query-migrate': { status: 'failed' },
    'query-chardev': [{ label: 'agent', filename: 'ga.sock', 'frontend-open': hasAgent }],
  };
  const answer = (socket: Socket, { execute, id }: PeerCommand): void => {
    if (execute === 'query-status' && event !== undefined) {
      socket.write(`${event}\n`);
    }
    if (execute !== 'query-status' || !isSilent()) {
      socket.write(`${JSON.stringify({ return: answers[execute] ?? {}, id })}\n`);
    }
    if (execute === 'quit') {
      hypervisor.kill('SIGKILL');
    }
    if (execute === 'system_powerdown') {
      socket.write(`${SAYS.powerOff}\n`);
    }
    report = (line) => socket.write(`${line}\n`);
  };
  const peer = await ScriptedPeer.listen(join(folder.path, 'qmp.sock'), answer);
  peers.push(peer);
  return peer;
}

/**
 * A hypervisor between its own end and the end of its process. With a real hypervisor, this moment is too short for a test. Its run state
 * is `shutdown`, and it ends on command.
 */
describe('a hypervisor in the run state shutdown', () => {
  it.each([
    ['that a signal ends has crashed, and its guest has not powered off', SAYS.signal, 'Crashed'],
    ['whose guest powered off says so', SAYS.powerOff, 'GuestShutdown'],
    ['that was met in it waits since its guest powered off', undefined, 'GuestShutdown'],
  ])('%s', async (_, event, reason) => {
    await listen('shutdown', { event });
    expect(await driver.inspect(folder)).toMatchObject({ kind: 'exited', reason });
  });

  it('has crashed also when the agent missed the event and finds the signal in its last words', async () => {
    const expected = 'qemu-system-x86_64: terminating on signal 15 from pid 1 (init)\n';
    await writeFile(join(folder.path, segmentName('hypervisor', 0)), expected);
    await listen('shutdown');
    expect(await driver.inspect(folder)).toMatchObject({ kind: 'exited', reason: 'Crashed' });
  });
});

/** A real QEMU rarely stops a guest for these causes, and then waits for ever. */
describe('a hypervisor whose guest cannot continue', () => {
  it.each([
    ['internal-error', 'The hypervisor stopped the guest after an internal error'],
    ['guest-panicked', 'The guest reported that its kernel crashed'],
  ])('in the run state %s is ended, and its machine has crashed', async (status, cause) => {
    const expected = 'KVM internal error. Suberror: 1';
    await writeFile(join(folder.path, segmentName('hypervisor', 0)), `${expected}\n`);
    const qmp = await listen(status);
    const crashed = { kind: 'exited', reason: 'Crashed', message: `${cause}: ${expected}` };
    expect(await driver.inspect(folder)).toEqual(crashed);
    expect(qmp.commands).toContain('quit');
    expect(await driver.inspect(folder)).toEqual(crashed);
  });

  it('is inspected as soon as it stops its guest, and not again for each of many reports', async () => {
    const changed: string[] = [];
    await listen('running');
    await driver.inspect(folder);
    driver.onChange((uid) => changed.push(uid));
    report(`${SAYS.stop}\n${SAYS.stop}\n${SAYS.stop}`);
    await driver.pause(folder);
    expect(changed).toEqual(['uid']);
  });

  it('is not inspected while it ends because its guest powered off', async () => {
    const ended: boolean[] = [];
    await listen('running');
    await driver.inspect(folder);
    driver.onChange(() => ended.push(hypervisor.killed));
    report(`${SAYS.powerOff}\n${SAYS.stop}`);
    await expect.poll(() => ended).toEqual([true]);
    expect(await driver.inspect(folder)).toMatchObject({ kind: 'exited', reason: 'GuestShutdown' });
  });
});

/** The incomplete file is as large as the memory of the guest, so the next suspension might have no room beside it. */
describe('an agent that dies while it saves the memory of a machine', () => {
  const incomplete = (): string => join(folder.path, 'memory.partial');

  beforeEach(async () => {
    await writeFile(incomplete(), 'half of the memory');
    await new QemuState(folder.path).update({ intent: 'suspend' });
  });

  it.each([
    ['whose guest continues', false, 'postmigrate'],
    ['whose guest stays paused', true, 'paused'],
  ])('leaves a file, which is removed from a machine %s', async (_, paused, status) => {
    await new QemuState(folder.path).update({ paused });
    const qmp = await listen(status);
    expect(await driver.inspect(folder)).toMatchObject({ kind: 'running', paused });
    expect(qmp.commands.includes('cont')).toBe(!paused);
    await expect(access(incomplete())).rejects.toSatisfy(isMissing);
  });

  it('leaves a file, which is removed when the machine is off', async () => {
    hypervisor.kill('SIGKILL');
    await once(hypervisor, 'exit');
    await driver.stop(folder, { graceMilliseconds: 0 });
    await expect(access(incomplete())).rejects.toSatisfy(isMissing);
  });
});

describe('an agent that dies after it has begun to end a machine', () => {
  it.each(['stop', 'suspend'] as const)(
    '(%s) leaves a guest that powers off without a crash',
    async (intent) => {
      await new QemuState(folder.path).update({ intent });
      await listen('running');
      expect(await driver.inspect(folder)).toMatchObject({ kind: 'running' });
      report(SAYS.powerOff);
      const ended = { kind: 'exited', reason: 'GuestShutdown' };
      await expect.poll(async () => await driver.inspect(folder)).toMatchObject(ended);
    },
  );
});

describe('a suspension whose record is written, but cannot be synced', () => {
  it('lets the guest continue, and the next inspection does not end it for its old memory', async () => {
    vi.spyOn(QemuState.prototype, 'update').mockImplementation(async function (this: QemuState, change) {
      const state = await this.change(() => change);
      if (change.suspended === true) {
        throw new Error('the disk has a fault');
      }
      return state;
    });
    const answers: Record<string, unknown> = {
      'query-status': { status: 'running' },
      'query-migrate': { status: 'completed' },
    };
    const peer = await ScriptedPeer.listen(join(folder.path, 'qmp.sock'), (socket, { execute, id }) => {
      if (execute === 'migrate') {
        connect(join(folder.path, 'migration.sock')).end('memory');
      }
      socket.write(`${JSON.stringify({ return: answers[execute] ?? {}, id })}\n`);
    });
    peers.push(peer);
    await expect(driver.suspend(folder)).rejects.toThrow('the disk has a fault');
    expect(peer.commands.at(-1)).toBe('cont');
    expect(await driver.inspect(folder)).toMatchObject({ kind: 'running' });
    await expect(access(join(folder.path, 'memory'))).rejects.toSatisfy(isMissing);
  });
});

/** The agent inspects only a few machines at once, so one that hangs must not hold up the others. */
describe('a hypervisor that does not answer', () => {
  it('delays its inspection for seconds only, and is inspected again over the same connection', async () => {
    let silent = true;
    await writeCopyNote(folder.path, { target: undefined, frozen: false, thawsFailed: 0 });
    const qmp = await listen('running', { isSilent: () => silent });
    const began = performance.now();
    const running = { kind: 'running', pid: hypervisor.pid, paused: false, accelerator: 'tcg' };
    expect(await driver.inspect(folder)).toEqual({ ...running, guestStarted: false });
    expect(performance.now() - began).toBeLessThan(SOON_MILLISECONDS);
    expect(qmp.commands).toEqual(['qmp_capabilities', 'query-status']);
    silent = false;
    expect(await driver.inspect(folder)).toEqual({ ...running, guestStarted: true });
    expect(qmp.commands.filter((command) => command === 'qmp_capabilities')).toHaveLength(1);
    expect(await readCopyNote(folder.path)).toBeUndefined();
  });
});

/** If a test kills the agent, the kill rarely comes at one of these moments. So these tests produce each moment directly. */
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

  it('asks for a thaw again after half a minute, also if the clock of the host is set back meanwhile', async () => {
    await writeCopyNote(folder.path, { target: undefined, frozen: true, thawsFailed: 0 });
    await listen('running');
    await driver.inspect(folder);
    expect(await readCopyNote(folder.path)).toMatchObject({ frozen: true, thawsFailed: 1 });
    const { commands } = await guestAgent();
    await driver.inspect(folder);
    expect(commands).toEqual([]);
    vi.spyOn(Date, 'now').mockReturnValue(Date.now() - 3_600_000);
    const now = performance.now();
    const clock = vi.spyOn(performance, 'now').mockReturnValue(now + 15_000);
    await driver.inspect(folder);
    expect(commands).toEqual([]);
    clock.mockReturnValue(now + 30_000);
    await driver.inspect(folder);
    expect(commands).toContain('guest-fsfreeze-thaw');
    expect(await readCopyNote(folder.path)).toBeUndefined();
  });

  it('keeps its note while the machine is suspended, because the memory contains the frozen guest', async () => {
    const target = join(directory, 'disk.raw');
    await writeFile(target, 'incomplete');
    await writeCopyNote(folder.path, { target, frozen: true, thawsFailed: 1 });
    const off = { process: undefined, live: false };
    await new QemuState(folder.path).update({ ...off, intent: 'suspend', suspended: true });
    expect(await driver.inspect(folder)).toEqual({ kind: 'suspended' });
    const kept = { frozen: true, thawsFailed: 1 };
    await expect.poll(async () => await readCopyNote(folder.path)).toEqual(kept);
    await expect(access(target)).rejects.toSatisfy(isMissing);
    await driver.stop(folder, { graceMilliseconds: 0 });
  });
});

/** The hypervisor has no use for other files in this folder, so only a hostile hypervisor makes them. */
describe('a hypervisor that puts other files into the folder of a copy', () => {
  const copy = (): string => join(folder.path, 'copy');
  const names = async (): Promise<string[]> =>
    (await readdir(folder.path)).filter((name) => name.startsWith('copy'));

  beforeEach(async () => {
    await mkdir(join(copy(), 'old.raw', 'deep'), { recursive: true });
    await symlink(directory, join(copy(), 'link'));
    await writeCopyNote(folder.path, { target: undefined, frozen: false, thawsFailed: 0 });
  });

  it('does not hold up a suspension, and the files are removed when it has ended', async () => {
    const qmp = await listen('running');
    await expect(driver.suspend(folder)).rejects.toThrow(
      'QEMU did not save the memory of the machine: failed',
    );
    expect(qmp.commands).toContain('migrate');
    expect(await names()).toEqual(['copy', 'copy.json']);
    hypervisor.kill('SIGKILL');
    await once(hypervisor, 'exit');
    expect(await driver.inspect(folder)).toMatchObject({ kind: 'exited' });
    await expect.poll(names).toEqual([]);
  });

  it('is removed with its machine, and what its links lead to stays', async () => {
    await listen('running');
    const kept = join(directory, 'kept');
    await writeFile(kept, '');
    await driver.delete(folder);
    await expect(access(folder.path)).rejects.toSatisfy(isMissing);
    await access(kept);
  });
});

describe('a guest agent', () => {
  const seen: PeerCommand[] = [];

  async function guestAgent(answer: (socket: Socket, command: PeerCommand) => void): Promise<ScriptedPeer> {
    seen.length = 0;
    const play = (socket: Socket, command: PeerCommand): void => {
      seen.push(command);
      answer(socket, command);
    };
    const peer = await ScriptedPeer.listen(join(folder.path, 'ga.sock'), afterSync(play));
    peers.push(peer);
    return peer;
  }

  it('shuts its guest down when the machine is stopped, instead of the power button', async () => {
    const qmp = await listen('running', { hasAgent: true });
    await guestAgent(() => report(SAYS.powerOff));
    await driver.stop(folder, { graceMilliseconds: 30_000 });
    expect(seen).toEqual([{ execute: 'guest-shutdown', arguments: { mode: 'powerdown' } }]);
    expect(qmp.commands).not.toContain('system_powerdown');
    expect(await driver.inspect(folder)).toEqual({ kind: 'stopped' });
  });

  it.each([
    ['refuses to shut its guest down', '{"error":{"desc":"disabled"}}\n'],
    ['ends its connection', undefined],
  ])('that %s leaves it to the power button', async (_, answer) => {
    const qmp = await listen('running', { hasAgent: true });
    await guestAgent((socket) => (answer === undefined ? socket.destroy() : socket.write(answer)));
    await driver.stop(folder, { graceMilliseconds: 30_000 });
    expect(seen.map(({ execute }) => execute)).toEqual(['guest-shutdown']);
    expect(qmp.commands).toContain('system_powerdown');
  });

  it('that is not there is not waited for', async () => {
    const qmp = await listen('running');
    const { commands } = await guestAgent(() => undefined);
    await driver.stop(folder, { graceMilliseconds: 30_000 });
    expect(commands).toEqual([]);
    expect(qmp.commands).toContain('system_powerdown');
  });

  it.each([
    ['was paused', async () => await driver.unpause(folder)],
    ['could not be suspended', async () => await expect(driver.suspend(folder)).rejects.toThrow('failed')],
  ])('sets the clock of a guest that %s', async (_, standStill) => {
    await listen('running', { hasAgent: true });
    const asked = Promise.withResolvers<void>();
    await guestAgent((socket) => {
      socket.write('{"return":{}}\n');
      asked.resolve();
    });
    await standStill();
    await asked.promise;
    const [command] = seen;
    expect(command?.execute).toBe('guest-set-time');
    const milliseconds = Number(command?.arguments?.['time']) / 1_000_000;
    expect(Math.abs(Date.now() - milliseconds)).toBeLessThan(60_000);
  });
});

/** A real QEMU rarely refuses these commands, so a substitute refuses them here. */
describe('ports forwarded for streams', () => {
  /** Answers commands of QEMU's human monitor with the result of `monitor`. Returns the list of these commands. */
  async function listenMonitor(monitor: (line: string) => string | undefined): Promise<string[]> {
    const lines: string[] = [];
    const answer = (socket: Socket, { execute, id, arguments: given }: PeerCommand): void => {
      let result: unknown = execute === 'query-status' ? { status: 'running' } : {};
      if (execute === 'human-monitor-command') {
        const line = String(given?.['command-line']);
        lines.push(line.replace(/\d+-/, 'PORT-'));
        result = monitor(line);
      }
      if (result === undefined) {
        socket.destroy();
      } else {
        socket.write(`${JSON.stringify({ return: result, id })}\n`);
      }
    };
    peers.push(await ScriptedPeer.listen(join(folder.path, 'qmp.sock'), answer));
    return lines;
  }
  const noted = async () => (await readMachineFile(folder.path))?.forwards;
  const added = 'hostfwd_add net0 tcp:127.0.0.1:PORT-:22';

  it('are noted before QEMU hears of them, and forgotten after their removal', async () => {
    let seen: Promise<number[] | undefined> = Promise.resolve(undefined);
    const lines = await listenMonitor(() => {
      seen = noted();
      return '';
    });
    const forward = await driver.forwardPort(folder, 22);
    expect(await seen).toEqual([forward.port]);
    await forward.close();
    expect(lines).toEqual([added, `hostfwd_remove net0 tcp:127.0.0.1:${forward.port}`]);
    expect(await seen).toEqual([forward.port]);
    expect(await noted()).toBeUndefined();
  });

  it('are tried on other ports, and the last refusal of QEMU is told', async () => {
    const asked: string[] = [];
    const lines = await listenMonitor((line) => `No rule ${asked.push(line)}\r\n`);
    await expect(driver.forwardPort(folder, 22)).rejects.toThrow(
      'cannot forward port 22 of the guest: No rule 3',
    );
    expect(lines).toEqual([added, added, added]);
    // The kernel can choose a port again, but hardly ever does.
    expect(new Set(asked).size).toBeGreaterThan(1);
    expect(await noted()).toBeUndefined();
  });

  it('are removed later when their removal failed, and ports in use stay', async () => {
    let answers = true;
    const lines = await listenMonitor(() => (answers ? '' : undefined));
    const [kept, closed] = [await driver.forwardPort(folder, 22), await driver.forwardPort(folder, 22)];
    answers = false;
    await closed.close();
    expect(await noted()).toEqual([kept.port, closed.port]);
    answers = true;
    lines.length = 0;
    await driver.inspect(folder);
    await driver.inspect(folder);
    expect(lines).toEqual([`hostfwd_remove net0 tcp:127.0.0.1:${closed.port}`]);
    expect(await noted()).toEqual([kept.port]);
  });

  it('of an agent that died are removed by the next agent', async () => {
    const state = await readMachineFile(folder.path);
    await new QemuState(folder.path).replace({ ...(state as MachineFile), forwards: [40_001, 40_002] });
    const lines = await listenMonitor(() => '');
    expect(await driver.inspect(folder)).toMatchObject({ kind: 'running' });
    const removed = [40_001, 40_002].map((port) => `hostfwd_remove net0 tcp:127.0.0.1:${port}`);
    expect(lines).toEqual(removed);
    expect(await noted()).toBeUndefined();
  });
});
