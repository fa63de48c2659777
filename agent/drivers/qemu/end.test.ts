import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdirSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pino } from 'pino';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { ScriptedPeer } from '../../../test/wires/scriptedpeer.ts';
import { MachineCgroups } from '../../processes/cgroup.ts';
import { identify } from '../../processes/process.ts';
import type { MachineFolder, VmPlan } from '../driver.ts';
import { QemuDriver } from './driver.ts';
import { HostPlatforms } from './platform.ts';
import { QemuState } from './state.ts';

/** The agent looks once a second whether a process lives. A busy machine needs longer. */
const SOON_MILLISECONDS = 15_000;

/** Time within which a hypervisor must answer a command. */
const ANSWER_MILLISECONDS = 30_000;
/** The deletion of a machine promises this time. */
const DELETION_MILLISECONDS = 2_000;
/** Far less than a hypervisor gets to end, and enough on a busy machine. */
const REVERT_MILLISECONDS = 5_000;

let directory: string;
let folder: MachineFolder;
let hypervisor: ChildProcess;
let peer: ScriptedPeer;
let driver: QemuDriver;
/** Whether the hypervisor leaves commands without an answer. */
let hangs: boolean;

beforeEach(async () => {
  directory = mkdtempSync(join(tmpdir(), 'berth-end-'));
  folder = { uid: 'uid', path: join(directory, 'machines', 'uid') };
  mkdirSync(folder.path, { recursive: true });
  hypervisor = spawn('sleep', ['60']);
  await once(hypervisor, 'spawn');
  await new QemuState(folder.path).replace({
    version: 1,
    architecture: 'amd64',
    machineType: 'pc',
    intent: 'run',
    process: (await identify(hypervisor.pid ?? 0))!,
    live: true,
    suspended: false,
  });
  hangs = false;
  peer = await ScriptedPeer.listen(join(folder.path, 'qmp.sock'), (socket, { id }) => {
    if (!hangs) {
      socket.write(`${JSON.stringify({ return: { status: 'running' }, id })}\n`);
    }
  });
  driver = new QemuDriver({ dataDirectory: directory, logger: pino({ level: 'silent' }) });
  expect((await driver.inspect(folder)).kind).toBe('running');
});

afterEach(async () => {
  vi.useRealTimers();
  vi.restoreAllMocks();
  await driver.close();
  hypervisor.kill('SIGKILL');
  await peer.close();
  rmSync(directory, { recursive: true });
});

it(
  'an end that is noticed twice is recorded once, so that it never counts for the next process',
  async () => {
    const count = Promise.withResolvers<number>();
    const kills = vi.spyOn(MachineCgroups.prototype, 'memoryKills').mockReturnValueOnce(count.promise);
    hypervisor.kill('SIGKILL');
    await expect.poll(() => kills.mock.calls.length, { timeout: SOON_MILLISECONDS }).toBe(1);
    // The watch of the process is still recording the end when an inspection notices the end, too.
    const inspected = driver.inspect(folder);
    await afterReads();
    count.resolve(0);
    expect((await inspected).kind).toBe('exited');
    expect(kills).toHaveBeenCalledOnce();
  },
  SOON_MILLISECONDS,
);

describe('a hypervisor that hangs', () => {
  it('is killed in less than two seconds if its machine is deleted', async () => {
    hangs = true;
    const began = performance.now();
    expect(await driver.inspect(folder, { isDiscarded: true })).toMatchObject({ kind: 'running' });
    await driver.stop(folder, { graceMilliseconds: 0, discard: AbortSignal.abort() });
    expect(performance.now() - began).toBeLessThan(DELETION_MILLISECONDS);
    expect(hypervisor.signalCode).toBe('SIGKILL');
  });

  it('is killed in less than two seconds if its machine is deleted while its guest has time to shut down', async () => {
    hangs = true;
    const [hurry, discard] = [new AbortController(), new AbortController()];
    const signals = { hurry: hurry.signal, discard: discard.signal };
    const asked = peer.commands.length;
    const stopped = driver.stop(folder, { graceMilliseconds: 600_000, ...signals });
    await vi.waitFor(() => expect(peer.commands.length).toBeGreaterThan(asked), SOON_MILLISECONDS);
    const began = performance.now();
    hurry.abort();
    discard.abort();
    await stopped;
    expect(performance.now() - began).toBeLessThan(DELETION_MILLISECONDS);
    expect(hypervisor.signalCode).toBe('SIGKILL');
  });

  it('is killed soon if its machine is reverted', async () => {
    vi.spyOn(HostPlatforms.prototype, 'of').mockRejectedValue(new Error('no disk is made here'));
    hangs = true;
    const began = performance.now();
    const plan = { guest: { vm: {} } } as unknown as VmPlan;
    await expect(driver.revert(folder, plan, undefined)).rejects.toThrow('no disk is made here');
    expect(performance.now() - began).toBeLessThan(REVERT_MILLISECONDS);
    expect(hypervisor.signalCode).toBe('SIGKILL');
  });

  it('gets its whole time to answer if its disk stays', async () => {
    vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout'] });
    hangs = true;
    const stopped = driver.stop(folder, { graceMilliseconds: 0, discard: new AbortController().signal });
    await vi.waitFor(() => expect(peer.commands.at(-1)).toBe('quit'), SOON_MILLISECONDS);
    await vi.advanceTimersByTimeAsync(ANSWER_MILLISECONDS - 1_000);
    expect(hypervisor.signalCode).toBeNull();
    await vi.advanceTimersByTimeAsync(1_000);
    await stopped;
    expect(hypervisor.signalCode).toBe('SIGKILL');
  });
});

/** Resolves when an inspection that began earlier has read the state file. */
async function afterReads(): Promise<void> {
  const file = new QemuState(join(directory, 'machines', 'uid'));
  for (let reads = 0; reads < 50; reads += 1) {
    await file.read();
  }
}
