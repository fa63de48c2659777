/**
 * Tests the terms of agent/drivers/driver.ts for each driver: QEMU with a real guest, the stand-in that other tests use, the driver for
 * emulators with the stand-in for the Android emulator, and the driver tart with the stand-in for that program.
 */
import { once } from 'node:events';
import { existsSync } from 'node:fs';
import { access, mkdir, mkdtemp, readFile, rm, stat, writeFile } from 'node:fs/promises';
import { connect } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { Duplex } from 'node:stream';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import {
  type Driver,
  type DriverOfVMs,
  type LaunchPlan,
  type VmLaunchPlan,
  type MachineFolder,
  type PortForward,
} from '../../../agent/drivers/driver.ts';
import type { BaseImage } from '../../../agent/disks/disk.ts';
import { identify, isAlive } from '../../../agent/processes/process.ts';
import { freePort } from '../../../hack/cluster/ports.ts';
import { waitFor } from '../../../hack/wait.ts';
import { markerOn } from '../../fixtures/copydisk.ts';
import {
  BOOT_DEADLINE_MILLISECONDS,
  folderOf,
  guestBase,
  makeHost,
  page,
  planFor,
  powerOff,
  tell,
} from '../../worlds/qemuguest.ts';
import { DriverHost } from '../../worlds/driverhost.ts';
import { StandInDriver } from '../../worlds/standin.ts';
import { readGuest, TartHost, tartPlan, writeGuest } from '../../worlds/tarthost.ts';

const UID = '0b7e5c1a-9d7f-4a57-8d3b-5f1f6f0c0051';
const GRACE_MILLISECONDS = 30_000;
const NEVER = new AbortController().signal;

/** A driver with one machine, and the actions of a test on the machine that do not use the driver. */
interface Subject {
  driver: Driver;
  folder: MachineFolder;
  plan: LaunchPlan;
  base: BaseImage;
  /** Replaces the driver by a new one, as another agent makes it. The first driver is closed. */
  restartAgent: () => Promise<void>;
  /** Returns the number of boots from this disk, the guest's id for this boot, and the last note in the guest. */
  guest: () => Promise<{ boots: string; boot_id: string; marker: string }>;
  note: (marker: string) => Promise<void>;
  noteIn: (copy: string) => Promise<string | undefined>;
  powerOff: () => Promise<void>;
  kill: () => Promise<void>;
  /** A part of the text that the guest prints when it boots. */
  prints: string;
  end: () => Promise<void>;
}

async function qemu(): Promise<Subject> {
  const host = await makeHost();
  const port = await freePort();
  const folder = folderOf(host, UID);
  return {
    get driver() {
      return host.driver;
    },
    folder,
    plan: withScreen(planFor('amd64', port)),
    base: await guestBase('amd64'),
    restartAgent: async () => void (await host.restartAgent()),
    guest: async () => {
      const { boots = '', boot_id = '', marker = '' } = await page(port);
      return { boots, boot_id, marker };
    },
    note: async (marker) => void (await tell(port, `marker=${marker}`)),
    noteIn: markerOn,
    powerOff: async () => await powerOff(port),
    kill: async () => {
      const state = await host.driver.inspect(folder);
      process.kill(state.kind === 'running' ? state.pid : Number.NaN, 'SIGKILL');
    },
    prints: 'Linux version',
    end: async () => await host.end(),
  };
}

async function standIn(): Promise<Subject> {
  const driver = new StandInDriver();
  const path = await mkdtemp(join(tmpdir(), 'berth-contract-'));
  return {
    driver,
    folder: { uid: UID, path: join(path, 'machines', UID) },
    plan: planFor('amd64', 80),
    base: { path: '/stand-in', digest: 'sha256:0', format: 'raw', virtualSizeBytes: 1024 },
    restartAgent: async () => await driver.close(),
    guest: async () => ({ ...driver.guest(UID) }),
    note: async (marker) => void Object.assign(driver.guest(UID), { marker }),
    noteIn: async (copy) => await driver.markerOn(copy),
    powerOff: async () => driver.end(UID, 'GuestShutdown', 'The guest powered off'),
    kill: async () => driver.end(UID, 'Crashed', 'killed'),
    prints: 'a line of the console',
    end: async () => await rm(path, { recursive: true }),
  };
}

function withScreen(plan: VmLaunchPlan): VmLaunchPlan {
  const vm = { ...plan.guest.vm, vnc: { enabled: true } };
  return { ...plan, guest: { ...plan.guest, vm } };
}

/** Reads from a stream until it has given the text. */
async function untilText(stream: Duplex, wanted: string): Promise<void> {
  let text = '';
  for await (const chunk of stream.iterator({ destroyOnReturn: false })) {
    text += String(chunk);
    if (text.includes(wanted)) {
      return;
    }
  }
  throw new Error(`the stream ended after ${JSON.stringify(text)}`);
}

/** Connects to a port of the loopback address. @throws Error with the code ECONNREFUSED when nothing listens. */
async function reach(port: number): Promise<void> {
  const socket = connect(port, '127.0.0.1');
  await once(socket, 'connect');
  socket.destroy();
}

/** An emulator has no page. The number of starts in its log is that of its boots, and a file beside its disks holds the note. */
async function emulator(): Promise<Subject> {
  const host = await DriverHost.make();
  const { folder, plan } = host.machine(UID);
  const note = join(folder.path, 'avd', 'berth.avd', 'marker');
  const signal = async (name: NodeJS.Signals): Promise<void> => {
    const state = await host.driver.inspect(folder);
    process.kill(state.kind === 'running' ? state.pid : Number.NaN, name);
  };
  return {
    get driver() {
      return host.driver;
    },
    folder,
    plan,
    base: { path: '/none', digest: 'sha256:0', format: 'raw', virtualSizeBytes: 0 },
    restartAgent: async () => await host.restartAgent(),
    guest: async () => {
      const log = await printed(host.driver, folder);
      const state = await host.driver.inspect(folder);
      return {
        boots: String(log.split('Android emulator version').length - 1),
        boot_id: state.kind === 'running' ? String(state.pid) : '',
        marker: existsSync(note) ? await readFile(note, 'utf8') : '',
      };
    },
    note: async (marker) => await writeFile(note, marker),
    noteIn: async () => undefined,
    powerOff: async () => await signal('SIGTERM'),
    kill: async () => await signal('SIGKILL'),
    prints: 'Android emulator version',
    end: async () => await host[Symbol.asyncDispose](),
  };
}

/** A guest of the stand-in for `tart` sleeps. What it has on its disk is the test's. */
async function tart(): Promise<Subject> {
  const host = new TartHost();
  host.tart.give('macos-shuts-down');
  const folder = host.folder(UID);
  const signal = async (name: NodeJS.Signals): Promise<void> => {
    const state = await host.driver.inspect(folder);
    process.kill(state.kind === 'running' ? state.pid : Number.NaN, name);
  };
  return {
    get driver() {
      return host.driver;
    },
    folder,
    plan: tartPlan('mac', 'MacOS', { vnc: { enabled: true } }),
    base: host.images.darwin,
    restartAgent: async () => await host.restartAgent(),
    guest: async () => {
      const guest = readGuest(host.disk(UID));
      return { ...guest, boots: String(guest.boots) };
    },
    note: async (marker) => writeGuest(host.disk(UID), { ...readGuest(host.disk(UID)), marker }),
    noteIn: async () => undefined,
    powerOff: async () => await signal('SIGUSR2'),
    kill: async () => await signal('SIGKILL'),
    prints: 'running',
    end: async () => await host[Symbol.asyncDispose](),
  };
}

/** Returns all that the console of a machine has printed. */
async function printed(driver: Driver, folder: MachineFolder): Promise<string> {
  let text = '';
  for await (const piece of driver.console(folder).read({})) {
    text += piece;
  }
  return text;
}

/** Takes the place of `it` for tests that a driver does not have. A test that is declared and skipped counts as failed in CI. */
function undeclared(_title: string, _body: () => Promise<void>): void {}

describe.each([
  ['qemu', qemu],
  ['standin', standIn],
  ['emulator', emulator],
  ['tart', tart],
])('the driver %s', { timeout: 2 * BOOT_DEADLINE_MILLISECONDS }, (name, make) => {
  let subject: Subject;
  let copies: string;
  const isVm = name !== 'emulator';

  // The program tart has neither pauses, nor a console, nor forwards, nor copies of disks of machines that run. The driver says so.
  const hasAll = isVm && name !== 'tart';

  const itOfVMs = isVm ? it : undeclared;
  const itOfAll = hasAll ? it : undeclared;
  const itWithPauses = name === 'tart' ? undeclared : it;
  /** Returns the driver, which runs VMs in the tests of VMs alone. */
  const vms = (): DriverOfVMs => subject.driver as DriverOfVMs;

  beforeAll(async () => {
    subject = await make();
    copies = await mkdtemp(join(tmpdir(), 'berth-copies-'));
  }, BOOT_DEADLINE_MILLISECONDS);

  afterAll(async () => {
    await subject?.end();
    await rm(copies, { recursive: true });
  });

  const state = async () => await subject.driver.inspect(subject.folder);
  const start = async () => await subject.driver.start(subject.folder, subject.plan);
  const copy = async (target: string) =>
    await vms().copyDisk(subject.folder, { target, signal: NEVER, onProgress: () => undefined });

  /** Waits until the machine is in this state by itself. The driver must give notice of it. */
  async function untilExited(act: () => Promise<void>): Promise<unknown> {
    const changed: string[] = [];
    subject.driver.onChange((uid) => changed.push(uid));
    await act();
    await waitFor('a notice of the end', () => changed.includes(UID));
    return await waitFor('the machine to be exited', async () => {
      const now = await state();
      return now.kind === 'exited' && now;
    });
  }

  it('has a name', () => {
    expect(subject.driver.name).toBe(name);
  });

  it('reports that a machine that was not created does not exist', async () => {
    const { driver, folder } = subject;
    expect(await state()).toEqual({ kind: 'absent' });
    expect(await driver.list()).toEqual([]);
    await driver.stop(folder, { graceMilliseconds: 0 });
    await driver.delete(folder);
    expect(await state()).toEqual({ kind: 'absent' });
    if (hasAll) {
      await expect(copy(join(copies, 'nothing'))).rejects.toMatchObject({ reason: 'NoMachine' });
    }
  });

  it('runs a machine from the clone of an image, and stops it in order, also twice', async () => {
    const { driver, folder, plan, base } = subject;
    await mkdir(join(folder.path, '..'), { recursive: true });
    await driver.create(folder, plan, base);
    await driver.create(folder, plan, base);
    expect(await state()).toEqual({ kind: 'stopped' });
    expect(await driver.list()).toMatchObject([folder]);
    await start();
    expect(await state()).toMatchObject({ kind: 'running', guestStarted: true, paused: false });
    expect(await subject.guest()).toMatchObject({ boots: '1', marker: '' });
    await start();
    expect(await subject.guest()).toMatchObject({ boots: '1' });
    await subject.note('kept');
    await driver.stop(folder, { graceMilliseconds: GRACE_MILLISECONDS });
    await driver.stop(folder, { graceMilliseconds: 0 });
    expect(await state()).toEqual({ kind: 'stopped' });
    await start();
    expect(await subject.guest()).toMatchObject({ boots: '2', marker: 'kept' });
  });

  it('lets a machine outlive the agent, and the next agent finds it with its console', async () => {
    const [before, running] = [await subject.guest(), await state()];
    await subject.restartAgent();
    expect(await subject.driver.list()).toMatchObject([subject.folder]);
    expect(await state()).toEqual(running);
    expect(await subject.guest()).toEqual(before);
    expect(await printed(subject.driver, subject.folder)).toContain(subject.prints);
  });

  itOfAll('shows the console to several readers, and passes on the input of one of them', async () => {
    const { folder } = subject;
    const driver = vms();
    const [writer, reader] = await Promise.all([
      driver.connectConsole(folder, { input: true }),
      driver.connectConsole(folder, { input: false }),
    ]);
    const seen = [writer, reader].map(async (stream) => await untilText(stream, 'typed by one'));
    await expect(driver.connectConsole(folder, { input: true })).rejects.toThrow('Another user types');
    writer.write('typed by one');
    await Promise.all(seen);
    writer.destroy();
    await once(writer, 'close');
    const next = await driver.connectConsole(folder, { input: true });
    const closed = Promise.all([once(next, 'close'), once(reader, 'close')]);
    reader.resume();
    next.resume();
    await subject.restartAgent();
    await closed;
    expect(await state()).toMatchObject({ kind: 'running', guestStarted: true });
  });

  itOfVMs('shows the screen to several clients', async () => {
    const { folder } = subject;
    const driver = vms();
    const screens = await Promise.all([driver.connectScreen(folder), driver.connectScreen(folder)]);
    await Promise.all(screens.map(async (screen) => await untilText(screen, 'RFB 003.008\n')));
    screens.forEach((screen) => screen.destroy());
    expect(await state()).toMatchObject({ kind: 'running', guestStarted: true });
  });

  itOfAll('forwards ports of the guest until they are closed', async () => {
    const { folder } = subject;
    const driver = vms();
    const forwards = await Promise.all(
      Array.from({ length: 17 }, async () => await driver.forwardPort(folder, 80)),
    );
    const [first, second] = forwards as [PortForward, PortForward];
    expect(new Set(forwards.map(({ port }) => port)).size).toBe(17);
    await expect(driver.forwardPort(folder, 80)).rejects.toThrow('17 forwarded ports');
    expect(await page(first.port)).toMatchObject(await subject.guest());
    await first.close();
    await first.close();
    await expect(reach(first.port)).rejects.toThrow('ECONNREFUSED');
    await reach(second.port);
    const third = await driver.forwardPort(folder, 80);
    expect(await page(third.port)).toMatchObject(await subject.guest());
    // The next agent removes the ports that this agent does not close.
    await subject.restartAgent();
    expect(await state()).toMatchObject({ kind: 'running', guestStarted: true });
    for (const { port } of [second, third]) {
      await expect(reach(port)).rejects.toThrow('ECONNREFUSED');
    }
  });

  itWithPauses('pauses a machine until it is told to go on, also under another agent', async () => {
    const before = await subject.guest();
    await subject.driver.pause(subject.folder);
    await subject.restartAgent();
    expect(await state()).toMatchObject({ kind: 'running', guestStarted: false, paused: true });
    await subject.driver.unpause(subject.folder);
    expect(await state()).toMatchObject({ kind: 'running', guestStarted: true, paused: false });
    expect(await subject.guest()).toEqual(before);
  });

  itOfVMs('suspends a machine to disk, and another agent resumes it at the same point', async () => {
    const before = await subject.guest();
    await vms().suspend(subject.folder);
    expect(await state()).toEqual({ kind: 'suspended' });
    await subject.restartAgent();
    expect(await state()).toEqual({ kind: 'suspended' });
    await vms().resume(subject.folder, subject.plan);
    expect(await state()).toMatchObject({ kind: 'running', guestStarted: true, paused: false });
    expect(await subject.guest()).toEqual(before);
    await subject.note('after');
  });

  itOfAll('copies the disk of a running machine', async () => {
    const target = join(copies, 'running.raw');
    const { consistency, virtualSizeBytes } = await copy(target);
    expect(['Crash', 'FileSystem']).toContain(consistency);
    expect((await stat(target)).size).toBe(virtualSizeBytes);
    expect(await subject.noteIn(target)).toBe('after');
    expect(await vms().copyBytes(subject.folder)).toBeGreaterThan(0);
    const given = new AbortController();
    given.abort(new Error('not wanted'));
    const refused = {
      target: join(copies, 'refused.raw'),
      signal: given.signal,
      onProgress: () => undefined,
    };
    await expect(vms().copyDisk(subject.folder, refused)).rejects.toThrow('not wanted');
    await expect(access(refused.target)).rejects.toThrow('ENOENT');
  });

  it('distinguishes a crash from a power-off by the guest, and starts the machine again', async () => {
    expect(await untilExited(subject.kill)).toMatchObject({
      reason: 'Crashed',
      message: expect.stringMatching(/./) as string,
    });
    if (isVm) {
      await expect(vms().suspend(subject.folder)).rejects.toThrow('Only a running machine can be suspended');
    }
    await start();
    expect(await subject.guest()).toMatchObject({ boots: '3', marker: isVm ? 'after' : 'kept' });
    expect(await untilExited(subject.powerOff)).toMatchObject({ reason: 'GuestShutdown' });
  });

  itOfAll('copies the disk of a machine that has ended', async () => {
    expect(await copy(join(copies, 'still.raw'))).toMatchObject({ consistency: 'Stopped' });
  });

  itOfVMs('reverts a disk to its image', async () => {
    await vms().revert(subject.folder, subject.plan, subject.base);
    expect(await state()).toEqual({ kind: 'stopped' });
    await start();
    expect(await subject.guest()).toMatchObject({ boots: '1', marker: '' });
  });

  itOfAll('ends the console of a machine that stops, and opens no new streams', async () => {
    const { folder } = subject;
    const driver = vms();
    const console = await driver.connectConsole(folder, { input: true });
    const closed = once(console, 'close');
    console.resume();
    await driver.stop(folder, { graceMilliseconds: 0 });
    await closed;
    const attempts = [
      async () => await driver.connectConsole(folder, { input: false }),
      async () => await driver.connectScreen(folder),
      async () => await driver.forwardPort(folder, 80),
    ];
    for (const attempt of attempts) {
      await expect(attempt()).rejects.toThrow('The machine is not running');
    }
    await start();
  });

  it('deletes a running machine, and leaves nothing', async () => {
    await start();
    const now = await state();
    expect(now).toMatchObject({ kind: 'running' });
    // The stand-in has no process.
    const pid = now.kind === 'running' && name !== 'standin' ? now.pid : undefined;
    const process = pid && (await identify(pid));
    await subject.driver.delete(subject.folder);
    expect(await state()).toEqual({ kind: 'absent' });
    expect(await subject.driver.list()).toEqual([]);
    expect(existsSync(subject.folder.path)).toBe(false);
    expect(process && (await isAlive(process))).toBe(pid && false);
  });

  itOfAll('makes a machine without a disk, which cannot be copied', async () => {
    await subject.driver.create(subject.folder, subject.plan, undefined);
    expect(await vms().copyBytes(subject.folder)).toBe(0);
    await expect(copy(join(copies, 'none'))).rejects.toMatchObject({ reason: 'NoDisk' });
    await subject.driver.delete(subject.folder);
  });
});
