/** Machines and restarts of the agent: machines are found again, their ends are noticed, and starts may fail. */
import { readFile, writeFile } from 'node:fs/promises';
import { createServer } from 'node:net';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { VmLaunchPlan } from '../../../agent/drivers/driver.ts';
import { QmpConnection } from '../../../agent/drivers/qemu/qmp.ts';
import type { BaseImage } from '../../../agent/disks/disk.ts';
import { freePort } from '../../../hack/cluster/ports.ts';
import { waitFor } from '../../../hack/wait.ts';
import {
  BOOT_DEADLINE_MILLISECONDS,
  folderOf,
  guestBase,
  type Host,
  makeHost,
  planFor,
  powerOff,
  TestMachine,
} from '../../worlds/qemuguest.ts';

const MEBIBYTE = 1024 * 1024;

describe('a machine and its agent', { timeout: 3 * BOOT_DEADLINE_MILLISECONDS }, () => {
  let machine: TestMachine;
  let base: BaseImage;

  beforeAll(async () => {
    machine = await TestMachine.make();
    base = await guestBase('amd64');
    await machine.create(base);
    await machine.start();
  }, 300_000);

  afterAll(async () => await machine.host.end());

  const changeState = async (change: (state: object) => object) => {
    const file = join(machine.folder.path, 'state.json');
    await writeFile(file, JSON.stringify(change(JSON.parse(await readFile(file, 'utf8')) as object)));
  };
  const endOf = async (driver = machine.driver) => {
    const changed: string[] = [];
    driver.onChange((name) => changed.push(name));
    return async () => {
      await waitFor('a change of the machine', () => changed.includes(machine.folder.uid));
      return await machine.state();
    };
  };

  it('is found although the agent died before it could record the process', async () => {
    const process = await machine.pid();
    await machine.driver.close();
    await changeState((state) => ({ ...state, process: undefined }));
    await machine.host.restartAgent();
    expect(await machine.state()).toEqual({
      kind: 'running',
      pid: process,
      guestStarted: true,
      paused: false,
      accelerator: expect.any(String),
    });
  });

  it('runs on when the agent died in the middle of a suspend', async () => {
    await machine.driver.close();
    await changeState((state) => ({ ...state, intent: 'suspend' }));
    const qmp = await QmpConnection.connect(machine.folder.path, 'qmp.sock', { timeoutMilliseconds: 10_000 });
    await qmp.execute('stop');
    qmp.close();
    await machine.host.restartAgent();
    await machine.state();
    expect(await machine.state()).toMatchObject({ kind: 'running', guestStarted: true });
    await machine.page();
  });

  it('is noticed at its end, although another agent started it', async () => {
    const end = await endOf(await machine.host.restartAgent());
    process.kill(await machine.pid(), 'SIGKILL');
    expect(await end()).toMatchObject({ kind: 'exited', reason: 'Crashed' });
  });

  it('has not powered itself off if its hypervisor is ended by a signal', async () => {
    await machine.start();
    const end = await endOf();
    process.kill(await machine.pid(), 'SIGTERM');
    const message = expect.stringContaining('terminating on signal 15') as string;
    expect(await end()).toMatchObject({ kind: 'exited', reason: 'Crashed', message });
  });

  it('has powered itself off, which the next agent sees although no agent was there', async () => {
    await machine.start();
    await machine.page();
    await machine.driver.close();
    await powerOff(machine.port);
    const driver = await machine.host.restartAgent();
    const end = await waitFor('the machine to be exited', async () => {
      const now = await driver.inspect(machine.folder);
      return now.kind === 'exited' && now;
    });
    expect(end.reason).toBe('GuestShutdown');
  });
});

describe('a start that fails', { timeout: BOOT_DEADLINE_MILLISECONDS }, () => {
  let host: Host;
  const uid = '0b7e5c1a-9d7f-4a57-8d3b-5f1f6f0c0003';

  beforeAll(async () => {
    host = await makeHost();
  });
  afterAll(async () => await host.end());

  const folder = () => folderOf(host, uid);

  async function failure(change: Partial<VmLaunchPlan>, spoil?: () => Promise<void>): Promise<unknown> {
    const plan = { ...planFor('amd64', await freePort(), 8 * MEBIBYTE), ...change };
    await host.driver.create(folder(), plan, undefined);
    await spoil?.();
    try {
      return await host.driver.start(folder(), plan).then(
        () => 'it started',
        (error: unknown) => error,
      );
    } finally {
      expect(await host.driver.inspect(folder())).toEqual({ kind: 'stopped' });
    }
  }

  it('because of a bad disk names the fault of the disk', async () => {
    const spoil = async () => await writeFile(join(folder().path, 'disk.qcow2'), 'this is no disk');
    expect(await failure({}, spoil)).toMatchObject({
      reason: 'DiskInvalid',
      message: expect.stringContaining('The disk of the machine ends within its header') as string,
    });
  });

  it('because of too little memory says so', async () => {
    expect(await failure({ memoryBytes: 2 ** 46 })).toMatchObject({
      reason: 'OutOfMemory',
      message: expect.stringContaining('annot') as string,
    });
  });

  it('because of a port in use says so', async () => {
    const server = createServer();
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
    const address = server.address();
    const held = typeof address === 'object' && address !== null ? address.port : 0;
    expect(await failure({ network: planFor('amd64', held).network })).toMatchObject({ reason: 'PortTaken' });
    server.close();
  });
});
