/** The driver for emulators, with the stand-in for the Android emulator without a guest. */
import { access, mkdir, readdir, readFile, readlink, rm, stat, symlink, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import type { EmulatorLaunchPlan, MachineFolder, MachineState } from '../../../agent/drivers/driver.ts';
import { stateFile } from '../../../agent/drivers/emulator/files.ts';
import { isMissing, undefinedIf } from '../../../base/errors.ts';
import { run } from '../../../base/exec.ts';
import { waitFor } from '../../../hack/wait.ts';
import type { Cue } from '../../standins/emulator/program/cues.ts';
import { DriverHost, processesOf } from '../../worlds/driverhost.ts';

const GRACE_MILLISECONDS = 30_000;
const COMMAND = { timeoutMilliseconds: 60_000 };
/** Life of an emulator that ends during its boot. The driver must have connected to its console by then, also on a busy machine. */
const BOOTING_MILLISECONDS = 3_000;

let host: DriverHost;
let folder: MachineFolder;
let plan: EmulatorLaunchPlan;
let user: number;

beforeEach(async () => {
  host = await DriverHost.make();
  ({ folder, plan } = host.machine());
  user = plan.runAs?.uid ?? 0;
});

afterEach(async () => await host[Symbol.asyncDispose]());

const state = async (): Promise<MachineState> => await host.driver.inspect(folder);

async function create(): Promise<void> {
  await host.driver.create(folder, plan);
}

async function start(): Promise<void> {
  await host.driver.start(folder, plan);
}

async function log(): Promise<string> {
  let text = '';
  for await (const piece of host.driver.console(folder).read({})) {
    text += piece;
  }
  return text;
}

/** Returns the group without which a user cannot open the device of KVM. The result is empty if there is none. */
async function groupOfKVM(): Promise<string> {
  const device = await undefinedIf(isMissing, stat('/dev/kvm'));
  const isForGroup =
    device !== undefined && (device.mode & 0o006) !== 0o006 && (device.mode & 0o060) === 0o060;
  return isForGroup && device.gid !== 0 ? String(device.gid) : '';
}

/** Nothing of the machine is left: no folder, no process of its user, no control group. */
async function expectNothing(): Promise<void> {
  expect(await state()).toEqual({ kind: 'absent' });
  expect([...(await processesOf(user))]).toEqual([]);
  // Machines of other tests come and go meanwhile.
  const parameters = ['/sys/fs/cgroup', '-ignore_readdir_race', '-name', folder.uid];
  const groups = await run('find', parameters, COMMAND);
  expect(groups).toBe('');
}

describe('a machine of the stand-in for the emulator', () => {
  it('runs as its own user without privileges, and sees its folder under a short path', async () => {
    await create();
    await start();
    const now = await state();
    const pid = now.kind === 'running' ? now.pid : 0;
    const status = await readFile(`/proc/${pid}/status`, 'utf8');
    expect(status).toMatch(new RegExp(`^Uid:\\s+${user}\\s+${user}\\s+${user}\\s+${user}$`, 'm'));
    expect(status).toMatch(new RegExp(`^Groups:\\s*${await groupOfKVM()}\\s*$`, 'm'));
    expect(status).toMatch(/^NoNewPrivs:\s+1$/m);
    expect(status).toMatch(/^CapBnd:\s+0+$/m);
    const variables = (await readFile(`/proc/${pid}/environ`, 'utf8')).split('\0');
    expect(variables).toContain('HOME=/run/berth-machine/home');
    expect(variables).toContain('ANDROID_AVD_HOME=/run/berth-machine/avd');
    expect(await readdir(join(folder.path, 'run', 'avd', 'running'))).toEqual([`pid_${pid}.ini`]);
    // The emulators of other machines, and programs of the host, see another folder there.
    await expect(access('/run/berth-machine/home')).rejects.toThrow('ENOENT');
  });

  it('ends in order within its grace, and its log stays until it is deleted', async () => {
    await create();
    await start();
    await host.driver.stop(folder, { graceMilliseconds: GRACE_MILLISECONDS });
    expect(await state()).toEqual({ kind: 'stopped' });
    expect(await log()).toContain('Wait for emulator to shut down completely');
    await host.driver.delete(folder);
    await expectNothing();
  });

  it('that has failed keeps its log, and nothing that its user wrote', async () => {
    await create();
    await start();
    await host.driver.stop(folder, { graceMilliseconds: 0 });
    await writeFile(join(folder.path, 'avd', 'berth.avd', 'userdata-qemu.img'), 'data');
    await host.driver.discard(folder);
    await host.restartAgent();
    expect(await state()).toEqual({ kind: 'stopped' });
    expect(await log()).not.toBe('');
    const owned = await run('find', [folder.path, '-user', String(user)], COMMAND);
    const entries = await readdir(folder.path, { withFileTypes: true });
    const folders = entries.filter((entry) => entry.isDirectory()).map(({ name }) => name);
    expect([owned, folders]).toEqual(['', ['console']]);
    expect(await host.driver.list()).toMatchObject([{ ...folder, runAs: undefined }]);
  });

  it.each([
    ['no-acceleration', 'AccelerationMissing', 'requires hardware acceleration'],
    ['image-missing', 'SystemImageMissing', 'Broken AVD system path'],
    ['port-taken', 'PortTaken', 'too many emulator instances'],
    ['disk-full', 'StartFailed', 'does not have enough disk space'],
    ['avd-locked', 'StartFailed', 'Running multiple emulators with the same AVD'],
  ] satisfies [Cue, string, string][])('says why it does not start: %s', async (cue, reason, expected) => {
    await host.sdk.give(cue);
    await create();
    await expect(start()).rejects.toMatchObject({
      reason,
      message: expect.stringContaining(expected) as string,
    });
    expect(await state()).toEqual({ kind: 'stopped' });
    expect([...(await processesOf(user))]).toEqual([]);
    await host.sdk.take(cue);
    await start();
    expect(await state()).toMatchObject({ kind: 'running' });
  });

  it('is refused if the host has no such system image, or no SDK any more', async () => {
    const other = { ...plan, guest: { emulator: { ...plan.guest.emulator, platform: 'android-35' } } };
    await expect(host.driver.create(folder, other)).rejects.toMatchObject({
      reason: 'SystemImageMissing',
      message: 'This host has no system image android-35.google_apis. It has android-36.google_apis',
    });
    await create();
    await run('mv', [host.sdk.root, `${host.sdk.root}.away`], COMMAND);
    await expect(start()).rejects.toMatchObject({ reason: 'SystemImageMissing' });
    await host.driver.delete(folder);
    await expectNothing();
  });

  it('that does not follow the console nor SIGTERM ends after its grace, or when the stop has to hurry', async () => {
    await host.sdk.give('hangs-at-kill');
    await create();
    await start();
    const hurry = new AbortController();
    const stopped = host.driver.stop(folder, { graceMilliseconds: 600_000, hurry: hurry.signal });
    await waitFor('the refusal of the console', async () => (await log()).includes('kill does nothing'));
    hurry.abort();
    await stopped;
    expect([...(await processesOf(user))]).toEqual([]);
    await start();
    await host.driver.stop(folder, { graceMilliseconds: 500 });
    expect(await state()).toEqual({ kind: 'stopped' });
  });

  it('takes all its processes with it, also those in sessions of their own', async () => {
    await host.wrap(['setsid sleep 3600 &', 'setsid sleep 3600 &']);
    await create();
    await start();
    await waitFor('the companions', async () => (await processesOf(user)).size === 3);
    const changed: string[] = [];
    host.driver.onChange((uid) => changed.push(uid));
    const now = await state();
    process.kill(now.kind === 'running' ? now.pid : Number.NaN, 'SIGKILL');
    await waitFor('a notice of the end', () => changed.includes(folder.uid));
    expect(await state()).toMatchObject({
      kind: 'exited',
      reason: 'Crashed',
      message: expect.stringContaining('The emulator was ended by SIGKILL') as string,
    });
    expect([...(await processesOf(user))]).toEqual([]);
    await start();
    await waitFor('the companions', async () => (await processesOf(user)).size === 3);
    await host.driver.delete(folder);
    await expectNothing();
  });

  it('stands still with all its processes while it is paused, also under the next agent', async () => {
    await host.wrap(['setsid sleep 3600 &']);
    await create();
    await start();
    await waitFor('the companion', async () => (await processesOf(user)).size === 2);
    await host.driver.pause(folder);
    await host.restartAgent();
    expect(await state()).toMatchObject({ kind: 'running', guestStarted: false, paused: true });
    const stand = async () => [...(await processesOf(user)).values()].join('') === 'TT';
    await waitFor('all processes to stand', stand);
    await host.driver.unpause(folder);
    expect(await state()).toMatchObject({ kind: 'running', guestStarted: true, paused: false });
    expect([...(await processesOf(user)).values()]).not.toContain('T');
    await host.driver.pause(folder);
    // A paused machine has no grace.
    await host.driver.stop(folder, { graceMilliseconds: 600_000 });
    expect(await state()).toEqual({ kind: 'stopped' });
  });

  it('is found by the next agent, also if its start was not recorded', async () => {
    await create();
    await start();
    const running = await state();
    await stateFile(folder.path).update({ process: undefined });
    await host.restartAgent();
    expect(await state()).toEqual(running);
    expect(await host.driver.list()).toMatchObject([{ ...folder, runAs: plan.runAs }]);
    await host.driver.stop(folder, { graceMilliseconds: GRACE_MILLISECONDS });
    expect([...(await processesOf(user))]).toEqual([]);
  });

  it('tells the end of the guest from a failure, with the last words', async () => {
    await create();
    await start();
    const now = await state();
    process.kill(now.kind === 'running' ? now.pid : Number.NaN, 'SIGTERM');
    await waitFor('the end', async () => (await state()).kind === 'exited');
    expect(await state()).toMatchObject({ reason: 'GuestShutdown' });
    await host.sdk.give('ends-during-boot', BOOTING_MILLISECONDS);
    await start();
    await waitFor('the failure', async () => (await state()).kind === 'exited');
    expect(await state()).toEqual({
      kind: 'exited',
      reason: 'Crashed',
      message: 'The emulator ended with code 1: FATAL   | Stand-in: the emulator ends during the boot on cue',
    });
  });
});

describe('a hostile user of a machine', () => {
  it('leads root nowhere by links, and cannot prevent the removal', async () => {
    const target = join(host.directory, 'target');
    await mkdir(target);
    await writeFile(join(target, 'kept.lock'), 'kept');
    await create();
    // All that the machine's user may do in its folder, as links of the user would be.
    const disks = join(folder.path, 'avd', 'berth.avd');
    const home = join(folder.path, 'home');
    await symlink(join(target, 'kept.lock'), join(disks, 'hardware-qemu.ini.lock'));
    await symlink(target, join(disks, 'folder.lock'));
    await symlink(join(target, 'token'), join(home, '.emulator_console_auth_token'));
    const dig = "chdir $ARGV[0]; for (1 .. 2100) { mkdir 'd'; chdir 'd' }";
    await run('perl', ['-e', dig, home], COMMAND);
    await start();
    await host.driver.delete(folder);
    await expectNothing();
    expect(await readdir(target)).toEqual(['kept.lock']);
    expect(await readFile(join(target, 'kept.lock'), 'utf8')).toBe('kept');
  });

  it('leaves no file and no shared memory in the folders that all users share, and sees none of others', async () => {
    const shared = ['/tmp', '/var/tmp', '/dev/shm'];
    const foreign = `berth-foreign-${folder.uid}`;
    const left = `berth-left-${folder.uid}`;
    const results = '/run/berth-machine/home/results';
    await host.wrap([
      `cat /dev/shm/${foreign} /tmp/${foreign} /var/tmp/${foreign} > ${results} 2>/dev/null`,
      `readlink /proc/self/ns/ipc >> ${results}`,
      ...shared.map((one) => `echo x > ${one}/${left} || echo ${one} refuses >> ${results}`),
      `head -c 128M /dev/zero > /dev/shm/large 2>/dev/null && echo unlimited >> ${results}`,
      `echo end >> ${results}`,
    ]);
    try {
      await Promise.all(shared.map(async (one) => await writeFile(join(one, foreign), 'foreign')));
      await create();
      await start();
      for (const one of shared) {
        expect(await readdir(one)).not.toContain(left);
      }
    } finally {
      await Promise.all(shared.map(async (one) => await rm(join(one, foreign), { force: true })));
    }
    expect(await readdir(join(folder.path, 'tmp'))).toContain(left);
    const [ipc = '', ...rest] = (await readFile(join(folder.path, 'home', 'results'), 'utf8')).split('\n');
    expect(ipc).toMatch(/^ipc:/);
    expect(ipc).not.toBe(await readlink('/proc/self/ns/ipc'));
    expect(rest).toEqual(['end', '']);
  });

  it('cannot replace its AVD, write beside its own folders, or read those of other machines', async () => {
    const results = '/run/berth-machine/tmp/results';
    const other = host.machine();
    await host.driver.create(other.folder, other.plan);
    await host.wrap([
      'cd /run/berth-machine',
      `mv avd/berth.avd avd/other 2>/dev/null && echo moved >> ${results}`,
      `echo x > emulator.json 2>/dev/null && echo wrote >> ${results}`,
      `cat emulator.json > /dev/null 2>&1 && echo read >> ${results}`,
      `ls ${other.folder.path}/home > /dev/null 2>&1 && echo entered >> ${results}`,
      `echo end >> ${results}`,
    ]);
    await create();
    await start();
    expect(await readFile(join(folder.path, 'tmp', 'results'), 'utf8')).toBe('end\n');
  });
});
