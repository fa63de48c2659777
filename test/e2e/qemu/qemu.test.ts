/** The life of one machine with a real guest under QEMU. */
import { execFileSync } from 'node:child_process';
import { readFile, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { VmLaunchPlan } from '../../../agent/drivers/driver.ts';
import type { BaseImage } from '../../../agent/disks/disk.ts';
import { identify, isAlive } from '../../../agent/processes/process.ts';
import { waitFor } from '../../../hack/wait.ts';
import { displayFields } from '../../fixtures/display.ts';
import { Viewer } from '../../wires/rfb.ts';
import {
  BOOT_DEADLINE_MILLISECONDS,
  folderOf,
  guestBase,
  IGNITION,
  seedFor,
  TestMachine,
} from '../../worlds/qemuguest.ts';

const GRACE_MILLISECONDS = 30_000;
const OWN_USER = { uid: 1_900_000_007, gid: 1_900_000_007 };

describe('an amd64 guest', { timeout: 3 * BOOT_DEADLINE_MILLISECONDS }, () => {
  let machine: TestMachine;
  let base: BaseImage;

  beforeAll(async () => {
    machine = await TestMachine.make({ runAs: OWN_USER });
    base = await guestBase('amd64');
  }, 300_000);

  afterAll(async () => await machine.host.end());

  const exited = async (reason: string) =>
    await waitFor(`the machine to be exited for ${reason}`, async () => {
      const now = await machine.state();
      return now.kind === 'exited' && now.reason === reason ? now : undefined;
    });

  /** Waits until the log has the text. The log writer may store the last output after the hypervisor has ended. */
  const untilLogged = async (text: string) =>
    await waitFor(`the log to have "${text}"`, async () =>
      (await readFile(join(machine.folder.path, 'serial.0.log'), 'utf8')).includes(text),
    );

  it('has its seed and a disk of the requested size, and reacts to its power button', async () => {
    await machine.create(base);
    const seed = await seedFor(machine.folder, machine.plan);
    await machine.driver.start(machine.folder, {
      ...machine.plan,
      seed,
      guest: { ...machine.plan.guest, diskSizeBytes: 128 * 1024 * 1024 },
    });
    expect(await machine.page()).toMatchObject({ architecture: 'x86_64', disk_sectors: '262144' });
    expect(JSON.parse(await machine.tell('seed=meta-data'))).toMatchObject({ 'local-hostname': 'guest' });
    expect([await machine.tell('seed=user-data'), await machine.tell('ignition')]).toEqual([
      IGNITION,
      IGNITION,
    ]);
    const identity = await identify(await machine.pid());
    await machine.stop(GRACE_MILLISECONDS);
    expect(identity !== undefined && (await isAlive(identity))).toBe(false);
    await untilLogged('berth-guest: power button');
  });

  it('gives facts by its guest agent, runs commands, gets the time after a pause, and shuts down', async () => {
    const { driver, folder } = machine;
    await machine.start();
    await machine.page();
    const { signal } = new AbortController();
    expect(await driver.askGuest(folder, { facts: true, signal })).toEqual({ kind: 'silent' });
    await machine.tell('agent=0');
    // A busy guest may answer after the time limit of a question.
    const answer = await waitFor('an answer of the guest agent', async () => {
      const given = await driver.askGuest(folder, { facts: true, signal });
      return given.kind === 'answers' && given;
    });
    expect(answer).toEqual({
      kind: 'answers',
      facts: {
        addresses: expect.arrayContaining(['10.0.2.15']) as string[],
        os: 'Berth guest',
        hostName: 'berth-guest',
      },
    });
    const run = async (script: string, input?: Buffer) => {
      const command = { path: '/bin/sh', arguments: ['-c', script], signal, reserve: () => true };
      return await driver.execute(folder, { ...command, ...(input && { input }) });
    };
    const result = await run('cat; sleep 1; echo problem >&2; exit 7', Buffer.from('input'));
    expect(result).toEqual({
      exitCode: 7,
      stdout: [Buffer.from('input')],
      stderr: [Buffer.from('problem\n')],
      truncated: false,
    });
    expect(await run('date -s @1000000000')).toMatchObject({ exitCode: 0 });
    await driver.pause(folder);
    await driver.unpause(folder);
    await waitFor('the clock of the guest', async () => {
      const { stdout } = await run('date +%s');
      return Math.abs(Date.now() / 1_000 - Number(stdout)) < 60;
    });
    await machine.stop(GRACE_MILLISECONDS);
    await untilLogged('berth-guest: shutdown by the guest agent');
  });

  it('reports the signal that killed its hypervisor', async () => {
    await machine.start();
    process.kill(await machine.pid(), 'SIGKILL');
    expect((await exited('Crashed')).message).toContain('SIGKILL');
  });

  it('runs without the rights of root, in a control group of its own', async ({ skip }) => {
    if (process.getuid?.() !== 0) {
      skip('only root can give up rights and make control groups');
    }
    await machine.start();
    const status = await readFile(`/proc/${await machine.pid()}/status`, 'utf8');
    expect(status).toMatch(/^Uid:(\t1900000007){4}$/m);
    expect(status).toMatch(/^Gid:(\t1900000007){4}$/m);
    expect(status).toMatch(/^Groups:\t1900000007 *$/m);
    const disk = await stat(join(machine.folder.path, 'disk.qcow2'));
    expect({ uid: disk.uid, mode: (disk.mode & 0o777).toString(8) }).toEqual({
      uid: OWN_USER.uid,
      mode: '600',
    });
    expect(status).toMatch(/^CapEff:\t0+$/m);
    expect(status).toMatch(/^Seccomp:\t2$/m);
    const groups = (await readFile(`/proc/${await machine.pid()}/cgroup`, 'utf8')).trim().split('\n');
    const outside = groups.filter(
      (line) => !line.endsWith(`/berth/${machine.folder.uid}`) && !/:(cpuset|):/.test(line),
    );
    expect(outside).toEqual([]);
    const known = await machine.driver.probe();
    const accelerator = known.find(({ architecture }) => architecture === 'amd64')?.accelerator;
    expect(await limitsIn(groups)).toEqual({
      // Memory of the guest, 256 MiB, 16 MiB for the processor, a 64th of the guest's memory, and 1 GiB for emulation.
      memory: String((128 + 256 + 16 + 2 + (accelerator === 'tcg' ? 1024 : 0)) * 1024 ** 2),
      pids: '129',
      cpu: '1024',
    });
    await machine.stop(0);
  });

  it('boots from an ISO when its disk is empty, with a screen', async () => {
    const iso = join(machine.host.directory, 'guest.iso');
    execFileSync('qemu-img', ['convert', '-f', 'qcow2', '-O', 'raw', base.path, iso]);
    const other = folderOf(machine.host, '0b7e5c1a-9d7f-4a57-8d3b-5f1f6f0c0005');
    const installing: VmLaunchPlan = {
      ...machine.plan,
      guest: {
        iso: { path: iso, format: 'raw' },
        diskSizeBytes: 64 * 1024 * 1024,
        vm: {
          ...machine.plan.guest.vm,
          vnc: { enabled: true },
          ...displayFields(1280, 800, 96),
        },
      },
    };
    await machine.driver.create(other, installing, undefined);
    await machine.driver.start(other, installing);
    expect(await machine.page()).toMatchObject({ boots: '1' });
    const viewer = await Viewer.open(await machine.driver.connectScreen(other));
    // The kernel of this guest has no driver for the card, so the screen has the text of the boot.
    const { width, height, pixels } = await viewer.frame();
    expect({ width, height, isBlack: pixels.every((byte) => byte === 0) }).toMatchObject({
      width: 720,
      height: 400,
      isBlack: false,
    });
    viewer.close();
    await machine.driver.delete(other);
  });

  it('boots from an ISO that the image storage keeps as a qcow2 file, if its image does not boot', async () => {
    const path = join(machine.host.directory, 'blank.qcow2');
    const virtualSizeBytes = 1024 ** 2;
    execFileSync('qemu-img', ['create', '-q', '-f', 'qcow2', path, String(virtualSizeBytes)]);
    const blank = { ...base, path, virtualSizeBytes };
    const other = folderOf(machine.host, '0b7e5c1a-9d7f-4a57-8d3b-5f1f6f0c0006');
    const guest = { ...machine.plan.guest, iso: { path: base.path, format: 'qcow2' as const } };
    const installing: VmLaunchPlan = { ...machine.plan, guest };
    await machine.driver.create(other, installing, blank);
    await machine.driver.start(other, installing);
    expect(await machine.page()).toMatchObject({ boots: '1' });
    await machine.driver.delete(other);
  });

  it('gets the DPI of its screen without the rights of root, also from a restarted agent', async () => {
    const screen = folderOf(machine.host, 'c52dc9f5-4a5c-4c8e-a0bb-3c2a8bb7c0a1');
    const vm = { ...machine.plan.guest.vm, ...displayFields(2560, 1440, 144) };
    const plan = { ...machine.plan, guest: { ...machine.plan.guest, diskSizeBytes: 1024 ** 2, vm } };
    const reported = async () =>
      await waitFor('the agent to set the DPI', async () => {
        const state = await machine.driver.inspect(screen);
        return state.kind === 'running' ? state.display : undefined;
      });
    await machine.driver.create(screen, plan, undefined);
    await machine.driver.start(screen, plan);
    const message = 'The graphics card offers the guest a screen of 2560×1440 pixels and 144 DPI';
    expect(await reported()).toEqual({ ready: true, reason: 'DisplaySet', message });
    await machine.host.restartAgent();
    expect(await reported()).toEqual({ ready: true, reason: 'DisplaySet', message });
    await machine.driver.delete(screen);
  });
});

/** Returns the limits of the machine's control groups. `groups` are the lines of `/proc/PID/cgroup`. */
async function limitsIn(groups: readonly string[]): Promise<Record<string, string>> {
  const files = { memory: 'memory.limit_in_bytes', pids: 'pids.max', cpu: 'cpu.shares' };
  const limits = Object.entries(files).map(async ([controller, file]) => {
    const line = groups.find((one) => one.split(':')[1]?.split(',').includes(controller)) ?? '';
    const [, names, path] = line.split(':');
    const text = await readFile(join('/sys/fs/cgroup', names ?? '', path ?? '', file), 'utf8');
    return [controller, text.trim()] as const;
  });
  return Object.fromEntries(await Promise.all(limits));
}
