/** Machines and the life of the agent: found again, noticed when they end, suspended to disk; and starts that fail. */
import { readFile, writeFile } from 'node:fs/promises';
import { createServer } from 'node:net';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { LaunchPlan } from '../../../agent/drivers/driver.ts';
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
  page,
  planFor,
  powerOff,
} from '../../worlds/qemuguest.ts';

const MEBIBYTE = 1024 * 1024;

describe('a machine and its agent', { timeout: 3 * BOOT_DEADLINE_MILLISECONDS }, () => {
  let host: Host;
  let base: BaseImage;
  let plan: LaunchPlan;
  let port: number;
  const uid = '0b7e5c1a-9d7f-4a57-8d3b-5f1f6f0c0002';

  beforeAll(async () => {
    host = await makeHost();
    base = await guestBase('amd64');
    port = await freePort();
    plan = planFor('amd64', port);
    await host.driver.create(folder(), plan, base);
    await host.driver.start(folder(), plan);
  }, 300_000);

  afterAll(async () => await host.end());

  const folder = () => folderOf(host, uid);
  const state = async () => await host.driver.inspect(folder());
  const pid = async () => {
    const now = await state();
    if (now.kind !== 'running') {
      throw new Error(`the machine is ${now.kind}`);
    }
    return now.pid;
  };
  const changeState = async (change: (state: object) => object) => {
    const file = join(folder().path, 'state.json');
    await writeFile(file, JSON.stringify(change(JSON.parse(await readFile(file, 'utf8')) as object)));
  };
  const endOf = async (driver = host.driver) => {
    const changed: string[] = [];
    driver.onChange((name) => changed.push(name));
    return async () => {
      await waitFor('a change of the machine', () => changed.includes(uid));
      return await state();
    };
  };

  it('is found although the agent died before it could write down the process', async () => {
    const process = await pid();
    await host.driver.close();
    await changeState((state) => ({ ...state, process: undefined }));
    await host.restartAgent();
    expect(await state()).toEqual({ kind: 'running', pid: process, guestStarted: true, paused: false });
  });

  it('runs on when the agent died in the middle of a suspend', async () => {
    await host.driver.close();
    await changeState((state) => ({ ...state, intent: 'suspend' }));
    const qmp = await QmpConnection.connect(folder().path, 'qmp.sock', { timeoutMilliseconds: 10_000 });
    await qmp.execute('stop');
    qmp.close();
    await host.restartAgent();
    await state();
    expect(await state()).toMatchObject({ kind: 'running', guestStarted: true });
    await page(port);
  });

  it('its end is noticed when another agent had started it', async () => {
    const end = await endOf(await host.restartAgent());
    process.kill(await pid(), 'SIGKILL');
    expect(await end()).toMatchObject({ kind: 'exited', reason: 'Crashed' });
  });

  it('has not powered itself off when its hypervisor is ended by a signal', async () => {
    await host.driver.start(folder(), plan);
    const end = await endOf();
    process.kill(await pid(), 'SIGTERM');
    const message = expect.stringContaining('terminating on signal 15') as string;
    expect(await end()).toMatchObject({ kind: 'exited', reason: 'Crashed', message });
  });

  it('its power-off is known for what it is when no agent was there', async () => {
    await host.driver.start(folder(), plan);
    await page(port);
    await host.driver.close();
    await powerOff(port);
    const driver = await host.restartAgent();
    const end = await waitFor('the machine to be exited', async () => {
      const now = await driver.inspect(folder());
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

  async function failure(change: Partial<LaunchPlan>, spoil?: () => Promise<void>): Promise<unknown> {
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

  it('for a bad disk says what is wrong with it', async () => {
    const spoil = async () => await writeFile(join(folder().path, 'disk.qcow2'), 'this is no disk');
    expect(await failure({}, spoil)).toMatchObject({
      reason: 'DiskInvalid',
      message: expect.stringContaining('The disk of the machine ends within its header') as string,
    });
  });

  it('for want of memory says so', async () => {
    expect(await failure({ memoryBytes: 2 ** 46 })).toMatchObject({
      reason: 'OutOfMemory',
      message: expect.stringContaining('annot') as string,
    });
  });

  it('for a port that something holds says so', async () => {
    const server = createServer();
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
    const address = server.address();
    const held = typeof address === 'object' && address !== null ? address.port : 0;
    expect(await failure({ network: planFor('amd64', held).network })).toMatchObject({ reason: 'PortTaken' });
    server.close();
  });
});
