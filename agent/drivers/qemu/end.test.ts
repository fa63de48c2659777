import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdirSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pino } from 'pino';
import { afterEach, beforeEach, expect, it, vi } from 'vitest';
import { ScriptedPeer } from '../../../test/wires/scriptedpeer.ts';
import { MachineCgroups } from '../../processes/cgroup.ts';
import { identify } from '../../processes/process.ts';
import { QemuDriver } from './driver.ts';
import { QemuState } from './state.ts';

/** The agent looks once a second whether a process lives. A busy machine needs longer. */
const SOON_MILLISECONDS = 15_000;

let directory: string;
let hypervisor: ChildProcess;
let peer: ScriptedPeer;
let driver: QemuDriver;

beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), 'berth-end-'));
  hypervisor = spawn('sleep', ['60']);
  driver = new QemuDriver({ dataDirectory: directory, logger: pino({ level: 'silent' }) });
});

afterEach(async () => {
  vi.restoreAllMocks();
  await driver.close();
  hypervisor.kill('SIGKILL');
  await peer.close();
  rmSync(directory, { recursive: true });
});

it(
  'an end that is noticed twice is recorded once, so that it never counts for the next process',
  async () => {
    const folder = { uid: 'uid', path: join(directory, 'machines', 'uid') };
    mkdirSync(folder.path, { recursive: true });
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
    peer = await ScriptedPeer.listen(join(folder.path, 'qmp.sock'), (socket, { id }) =>
      socket.write(`${JSON.stringify({ return: { status: 'running' }, id })}\n`),
    );
    const count = Promise.withResolvers<number>();
    const kills = vi.spyOn(MachineCgroups.prototype, 'memoryKills').mockReturnValueOnce(count.promise);
    expect((await driver.inspect(folder)).kind).toBe('running');

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

/** Resolves when an inspection that began earlier has read the state file. */
async function afterReads(): Promise<void> {
  const file = new QemuState(join(directory, 'machines', 'uid'));
  for (let reads = 0; reads < 50; reads += 1) {
    await file.read();
  }
}
