/** Machines of one QEMU that continue with a newer one, as after an upgrade of a host. The machine that runs the tests has a single QEMU. */
import { readdir, readFile, readlink } from 'node:fs/promises';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { unless } from '../../support/unless.ts';
import { freePort } from '../../../hack/cluster/ports.ts';
import {
  BOOT_DEADLINE_MILLISECONDS,
  folderOf,
  guestBase,
  page,
  planFor,
  TestMachine,
} from '../../worlds/qemuguest.ts';
import { saveWithMemory, type WarmImage } from '../../worlds/warmimage.ts';

const { BERTH_NEWER_QEMU: newer, PATH: path } = process.env;
const why =
  newer === undefined
    ? 'BERTH_NEWER_QEMU does not name the folder of a newer QEMU: BERTH_NEWER_QEMU=$(node hack/qemu.ts)'
    : undefined;
/** Access mode in the flags of an open file (octal). */
const ACCESS_MODE = 0o3;

describe('a machine of an older QEMU', { timeout: 3 * BOOT_DEADLINE_MILLISECONDS, ...unless(why) }, () => {
  let machine: TestMachine;
  let image: WarmImage;

  beforeAll(async () => {
    machine = await startGuest();
    image = await saveWithMemory(machine.host, machine.folder, 'older');
  }, 300_000);

  afterAll(async () => {
    process.env['PATH'] = path;
    await machine?.host.end();
  });

  it('resumes with a newer one, and is suspended and resumed by it', async () => {
    const before = await machine.page();
    await machine.driver.suspend(machine.folder);
    process.env['PATH'] = `${newer}:${path}`;
    await machine.host.restartAgent();
    await machine.driver.resume(machine.folder, machine.plan);
    expect(await machine.page()).toEqual(before);
    await machine.driver.suspend(machine.folder);
    await machine.driver.resume(machine.folder, machine.plan);
    expect(await machine.page()).toEqual(before);
  });

  it('left an image from which a machine of the newer one boots, because its memory does not fit', async () => {
    process.env['PATH'] = `${newer}:${path}`;
    const { host } = machine;
    const driver = await host.restartAgent();
    const port = await freePort();
    const [folder, plan] = [folderOf(host, `later-${process.pid}`), planFor('amd64', port)];
    await driver.create(folder, plan, image);
    await expect(driver.startFromMemory(folder, plan, image.memory)).rejects.toMatchObject({
      reason: 'KeyDiffers',
      message: 'The version of the hypervisor differs from the saved VM',
    });
    await driver.start(folder, plan);
    expect(await page(port)).toMatchObject({ boots: '2', marker: 'saved' });
    await driver.delete(folder);
  });

  it('of the newer one is saved more than once, and its memory is opened only for reading', async () => {
    await using parts = new AsyncDisposableStack();
    process.env['PATH'] = `${newer}:${path}`;
    const source = parts.adopt(await startGuest(), async ({ host }) => await host.end());
    const { host, folder, driver, plan } = source;
    await saveWithMemory(host, folder, 'first');
    const image = await saveWithMemory(host, folder, 'second');
    const memory = { ...image.memory, isShared: true };
    await driver.stop(folder, { graceMilliseconds: 0 });
    await driver.revert(folder, plan, image);
    await driver.startFromMemory(folder, plan, memory);
    expect(await source.page()).toMatchObject({ marker: 'saved', boots: '1' });
    expect(await accessModes(await source.pid(), memory.ram)).toEqual([0]);
  });
});

/** Boots a guest with its guest agent and a note on its disk. */
async function startGuest(): Promise<TestMachine> {
  const machine = await TestMachine.make();
  await machine.create(await guestBase('amd64'));
  await machine.start();
  await machine.page();
  expect(await machine.tell('agent=0')).toBe('listening\n');
  expect(await machine.tell('marker=saved')).toBe('saved\n');
  return machine;
}

/** Returns the access modes with which a process has opened a file: 0 is only for reading. */
async function accessModes(pid: number, file: string): Promise<number[]> {
  const modes: number[] = [];
  for (const descriptor of await readdir(`/proc/${pid}/fd`)) {
    if ((await readlink(`/proc/${pid}/fd/${descriptor}`)) === file) {
      const info = await readFile(`/proc/${pid}/fdinfo/${descriptor}`, 'utf8');
      modes.push(Number.parseInt(/^flags:\s+(\d+)$/m.exec(info)?.[1] ?? '', 8) & ACCESS_MODE);
    }
  }
  return modes;
}
