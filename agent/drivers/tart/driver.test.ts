/**
 * Agents that die at each of their calls, on a host with the stand-in for the program `tart`, whose machines sleep. Nothing here ran with the
 * real program.
 */
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import * as fc from 'fast-check';
import { pino } from 'pino';
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';
import { ReasonedError } from '../../../api/v1alpha1/reasons.ts';
import type * as exec from '../../../base/exec.ts';
import { assertAsyncHistories } from '../../../test/support/properties.ts';
import { unlistedCalls } from '../../../test/support/tartcalls.ts';
import { SimulatedMac } from '../../../test/worlds/simulatedmac.ts';
import { makeTartImage, readGuest, tartPlan, writeGuest } from '../../../test/worlds/tarthost.ts';
import type { BaseImage } from '../../disks/disk.ts';
import type * as processes from '../../processes/process.ts';
import type { MachineFolder, VmLaunchPlan } from '../driver.ts';
import { homeOf, TartDriver } from './driver.ts';
import { bundleOf, diskOf, STATE_FILE } from './files.ts';

const { asStep, host, Life, liveAs, NoCgroups, NoConsole, stepping } = await vi.hoisted(async () => ({
  ...(await import('../../../test/worlds/lives.ts')),
  host: {} as { mac: SimulatedMac },
}));

vi.mock('node:fs/promises', async (importOriginal) => stepping(await importOriginal<object>()));

vi.mock('../../../base/exec.ts', async (importOriginal) => {
  const run = asStep((_: string, parameters: readonly string[]) => host.mac.run(parameters));
  return { ...(await importOriginal<typeof exec>()), run };
});

vi.mock('./program.ts', async (importOriginal) => {
  type Sent = Parameters<SimulatedMac['send']>[1];
  const signal = asStep(({ pid }: { pid: number }, name: Sent) => host.mac.send(pid, name));
  return { ...(await importOriginal<object>()), signal };
});

vi.mock('../../processes/process.ts', async (importOriginal) => {
  type Identity = { pid: number };
  const isAlive = async ({ pid }: Identity) => await Promise.resolve(host.mac.processes.has(pid));
  const waitForExit = async (identity: Identity) => {
    await delay(1);
    return !(await isAlive(identity));
  };
  return {
    ...(await importOriginal<typeof processes>()),
    isAlive,
    waitForExit,
    killForCertain: asStep(({ pid }: Identity) => host.mac.end(pid)),
    findByArgument: async (command: string, name: string) =>
      await Promise.resolve(command === 'run' ? host.mac.find(name) : undefined),
    findAllByArgument: async () => await Promise.resolve([]),
    killByArgument: async () => await Promise.resolve(),
  };
});

vi.mock('../../processes/cgroup.ts', () => ({ MachineCgroups: NoCgroups }));
vi.mock('../../console/store.ts', () => ({ ConsoleStore: NoConsole }));

vi.mock('../machineprocess.ts', async (importOriginal) => {
  const launch = asStep((folder: MachineFolder, { command }: { command: string[] }) =>
    host.mac.launch(folder.path, command),
  );
  return { ...(await importOriginal<object>()), launch };
});

/** Three guests with macOS, of which two may run, and four with Linux. */
const NAMES = ['mac1', 'mac2', 'mac3', 'linux1', 'linux2', 'linux3', 'linux4'] as const;
type Name = (typeof NAMES)[number];
/** Folder in memory, because the agent writes its files to the disk at once. */
const PARENT = '/dev/shm';
/** Limit on a busy machine. On an idle one, all tests together take some seconds. */
const TEST_MILLISECONDS = 400_000;
const HISTORIES = 200;
const HISTORY_LENGTH = 16;
/** Steps after which an agent in a history dies at the latest. An act has fewer. */
const LONGEST_ACT = 40;
/** Time that a guest gets to shut down, in milliseconds. Guests with macOS do not obey. */
const GRACE_MILLISECONDS = 3;
const logger = pino({ level: 'silent' });

/** What the agent of a host has in its records about a machine. */
interface Known {
  created: boolean;
  reverting: boolean;
  leaving: boolean;
}

let directory: string;
let mac: SimulatedMac;
let images: Record<'darwin' | 'linux', BaseImage>;
let known: Map<Name, Known>;

beforeEach(() => {
  directory = mkdtempSync(join(PARENT, 'berth-tart-histories-'));
  mac = new SimulatedMac(homeOf(directory));
  host.mac = mac;
  images = {
    darwin: makeTartImage(join(directory, 'macos'), 'darwin'),
    linux: makeTartImage(join(directory, 'linux'), 'linux'),
  };
  known = new Map();
});

afterEach(() => {
  const unlisted = unlistedCalls(mac.tart.calls);
  rmSync(directory, { recursive: true });
  expect(unlisted).toEqual([]);
});

function folderOf(name: Name): MachineFolder {
  return { uid: name, path: join(directory, 'machines', name) };
}

function diskPath(name: Name): string {
  return diskOf(bundleOf(homeOf(directory), name));
}

function isMac(name: Name): boolean {
  return name.startsWith('mac');
}

function planOf(name: Name): VmLaunchPlan {
  return tartPlan(name, isMac(name) ? 'MacOS' : 'Linux');
}

function imageOf(name: Name): BaseImage {
  return isMac(name) ? images.darwin : images.linux;
}

function knownOf(name: Name): Known {
  const one = known.get(name) ?? { created: false, reverting: false, leaving: false };
  known.set(name, one);
  return one;
}

/** Runs `work` as an agent of its own that dies at the step `last`. */
async function asAgent(work: (driver: TartDriver) => Promise<void>, last?: number): Promise<boolean> {
  return await liveAs(
    new Life(last),
    new TartDriver({ dataDirectory: directory, program: 'tart', screens: true, logger }),
    work,
  );
}

/** Makes the machine as an agent does that has not recorded it as created. */
async function make(driver: TartDriver, name: Name): Promise<void> {
  const [folder, one] = [folderOf(name), knownOf(name)];
  if ((await driver.inspect(folder)).kind !== 'absent') {
    await driver.delete(folder);
  }
  await driver.create(folder, planOf(name), imageOf(name));
  one.created = true;
  writeGuest(diskPath(name), { ...readGuest(diskPath(name)), marker: name });
}

/** Starts a machine. The host may have no place for it, but only if two other guests with macOS run. */
async function unlessFull(name: Name, start: () => Promise<void>): Promise<void> {
  try {
    await start();
  } catch (error) {
    const isFull = error instanceof ReasonedError && error.reason === 'MacOSLimit';
    if (!isFull || !isMac(name) || mac.tart.runningMacOS < 2) {
      throw error;
    }
  }
}

const ACTS = {
  up: async (driver, name) => {
    const [folder, one] = [folderOf(name), knownOf(name)];
    await (one.leaving && ACTS.delete(driver, name));
    await (one.reverting && ACTS.revert(driver, name));
    await (!one.created && make(driver, name));
    const { kind } = await driver.inspect(folder);
    await unlessFull(name, async () => {
      const { boots } = readGuest(diskPath(name));
      await (kind === 'suspended' ? driver.resume(folder, planOf(name)) : driver.start(folder, planOf(name)));
      const isBooted = kind !== 'suspended' && kind !== 'running';
      expect(readGuest(diskPath(name)).boots).toBe(boots + (isBooted ? 1 : 0));
    });
  },
  /** Boots a machine that is suspended, as after a restart that its owner has asked for. */
  bootAnew: async (driver, name) => {
    const folder = folderOf(name);
    if ((await driver.inspect(folder)).kind === 'suspended') {
      await unlessFull(name, async () => {
        const { boots } = readGuest(diskPath(name));
        await driver.start(folder, planOf(name));
        expect(readGuest(diskPath(name)).boots).toBe(boots + 1);
      });
    }
  },
  suspend: async (driver, name) => {
    const isRunning = (await driver.inspect(folderOf(name))).kind === 'running';
    await (isRunning && isMac(name) && driver.suspend(folderOf(name)));
  },
  stop: async (driver, name) => {
    await driver.stop(folderOf(name), { graceMilliseconds: GRACE_MILLISECONDS });
  },
  revert: async (driver, name) => {
    const one = knownOf(name);
    if (one.created && !one.leaving) {
      one.reverting = true;
      await driver.revert(folderOf(name), planOf(name), imageOf(name));
      one.reverting = false;
      writeGuest(diskPath(name), { ...readGuest(diskPath(name)), marker: name });
    }
  },
  delete: async (driver, name) => {
    const one = knownOf(name);
    one.leaving = true;
    await driver.delete(folderOf(name));
    Object.assign(one, { created: false, reverting: false, leaving: false });
  },
  crash: async (_, name) => {
    const found = mac.find(`berth-${name}`);
    await Promise.resolve(found && mac.end(found.pid));
  },
  shutDown: async (_, name) => {
    const found = mac.find(`berth-${name}`);
    await Promise.resolve(found && mac.send(found.pid, 'SIGUSR2'));
  },
} satisfies Record<string, (driver: TartDriver, name: Name) => Promise<unknown>>;
type Act = keyof typeof ACTS;

/** Checks what holds at each moment. */
function expectSound(): void {
  expect(mac.tart.faults).toEqual([]);
  expect(mac.running).toEqual([...new Set(mac.running)]);
  expect(mac.running.filter((name) => name.startsWith('berth-mac')).length).toBeLessThanOrEqual(2);
  const orphans = mac.running.filter(
    (name) => !existsSync(join(directory, 'machines', name.replace('berth-', ''), STATE_FILE)),
  );
  expect(orphans).toEqual([]);
}

/** Checks that the next agent finds each machine that was made, with its disk. */
async function expectFound(): Promise<void> {
  await asAgent(async (driver) => {
    const found = (await driver.list()).map(({ uid }) => uid);
    for (const [name, { created, reverting, leaving }] of known) {
      if (created && !reverting && !leaving) {
        expect(found).toContain(name);
        expect(readGuest(diskPath(name)).marker).toBe(name);
        const { kind } = await driver.inspect(folderOf(name));
        expect(kind === 'running').toBe(mac.running.includes(`berth-${name}`));
      }
    }
  });
}

/** Checks that nothing is left once all machines are deleted. */
async function expectNothingLeft(): Promise<void> {
  await asAgent(async (driver) => {
    for (const name of NAMES) {
      await driver.delete(folderOf(name));
    }
  });
  known.clear();
  const left = ['machines', 'tart/vms'].flatMap((folder) => {
    const path = join(directory, folder);
    return existsSync(path) ? readdirSync(path) : [];
  });
  expect([...left.filter((name) => !name.startsWith('.')), ...mac.running]).toEqual([]);
}

const STEP = fc.record({
  act: fc.constantFrom(...(Object.keys(ACTS) as Act[]), 'up' as const, 'up' as const, 'up' as const),
  name: fc.constantFrom(...NAMES, ...NAMES.filter(isMac), ...NAMES.filter(isMac)),
  last: fc.option(fc.integer({ min: 1, max: LONGEST_ACT }), { nil: undefined }),
});

describe('an agent that dies', { timeout: TEST_MILLISECONDS }, () => {
  test('at any call: the next agent completes the work, and the machine is neither lost nor there twice', async () => {
    const days: readonly (readonly Act[])[] = [
      ['up'],
      ['up', 'suspend'],
      ['up', 'suspend', 'up'],
      ['up', 'stop'],
      ['up', 'suspend', 'stop'],
      ['up', 'suspend', 'revert'],
      ['up', 'delete'],
    ];
    for (const acts of days) {
      let hasDied = true;
      for (let last = 1; hasDied; last += 1) {
        for (const act of acts.slice(0, -1)) {
          await asAgent(async (driver) => await ACTS[act](driver, 'mac1'));
        }
        const act = acts.at(-1) ?? 'up';
        hasDied = await asAgent(async (driver) => await ACTS[act](driver, 'mac1'), last);
        expectSound();
        await expectFound();
        await asAgent(async (driver) => await ACTS[act](driver, 'mac1'));
        expect(mac.running).toEqual(act === 'up' ? ['berth-mac1'] : []);
        await expectNothingLeft();
      }
    }
  });

  test('in any history: no machine runs twice, none is lost, two guests with macOS run at most, and nothing is left', async (context) => {
    const steps = { step: STEP, maxLength: HISTORY_LENGTH, numRuns: HISTORIES };
    await assertAsyncHistories(context, steps, async (history) => {
      for (const { act, name, last } of history) {
        await asAgent(async (driver) => await ACTS[act](driver, name), last);
        expectSound();
      }
      await expectFound();
      await expectNothingLeft();
    });
  });
});

describe('the driver tart', { timeout: TEST_MILLISECONDS }, () => {
  const driver = (): TartDriver =>
    new TartDriver({ dataDirectory: directory, program: 'tart', screens: true, logger });

  async function start(one: TartDriver, name: Name, plan = planOf(name)): Promise<void> {
    await one.create(folderOf(name), plan, imageOf(name));
    await one.start(folderOf(name), plan);
  }

  test('runs two guests with macOS and four with Linux, and refuses a third with macOS before it calls the program', async () => {
    const one = driver();
    for (const name of ['mac1', 'mac2', 'linux1', 'linux2', 'linux3', 'linux4'] as const) {
      await start(one, name);
    }
    await expect(start(one, 'mac3')).rejects.toMatchObject({
      reason: 'MacOSLimit',
      message: 'This host runs 2 guests with macOS, and may run no more',
    });
    expect(mac.running).toHaveLength(6);
    expect(mac.tart.calls.filter(([command, name]) => command === 'run' && name === 'berth-mac3')).toEqual(
      [],
    );
  });

  test('installs no third guest with macOS, because the installation itself is one', async () => {
    const one = driver();
    await start(one, 'mac1');
    await start(one, 'mac2');
    const image = { type: 'ipsw', url: 'https://images.example/restore.ipsw', sha256: '0' } as const;
    const install = one.create(folderOf('mac3'), tartPlan('mac3', 'MacOS', { image }), images.darwin);
    await expect(install).rejects.toMatchObject({ reason: 'MacOSLimit' });
    expect(mac.tart.calls.map(([command]) => command)).not.toContain('create');
  });

  test('says that the hypervisor has kept the place of a guest, if it refuses a guest that it may run', async () => {
    const one = driver();
    mac.tart.give('leaked');
    await start(one, 'mac1');
    const refused = start(one, 'mac2');
    await expect(refused).rejects.toMatchObject({ reason: 'MacOSLimit' });
    await expect(refused).rejects.toThrow(/only 1 of 2.*restart the host.*exceeds the system limit/is);
    expect(await one.inspect(folderOf('mac2'))).toEqual({ kind: 'stopped' });
    mac.tart.take('leaked');
    await one.start(folderOf('mac2'), planOf('mac2'));
  });

  test('gives a machine the size, the display and the card of its VM, and the drives of its start', async () => {
    const one = driver();
    const display = { displayWidth: 1600, displayHeight: 900, displayDPI: 120 };
    const { guest, ...size } = tartPlan('mac1', 'MacOS', display);
    const plan = { ...size, guest: { ...guest, diskSizeBytes: 1_500_000_000 }, seed: { disk: 'seed.iso' } };
    await one.create(folderOf('mac1'), plan, imageOf('mac1'));
    writeFileSync(join(folderOf('mac1').path, 'seed.iso'), '');
    await one.start(folderOf('mac1'), plan);
    const calls = mac.tart.calls.map((call) => call.join(' ').replaceAll(directory, ''));
    expect(calls).toEqual([
      'set berth-mac1 --cpu 1 --memory 512 --display 1600x900px --disk-size 2',
      'run berth-mac1 --no-graphics --no-audio --no-clipboard --suspendable --disk /machines/mac1/seed.iso:ro',
      'get berth-mac1 --format json',
    ]);
    const config = JSON.parse(
      readFileSync(join(bundleOf(homeOf(directory), 'mac1'), 'config.json'), 'utf8'),
    ) as object;
    expect(config).toMatchObject({ os: 'darwin', ecid: 'ZWNpZA==', macAddress: '52:54:00:12:34:56' });
    expect(await one.inspect(folderOf('mac1'))).toMatchObject({
      kind: 'running',
      accelerator: 'vz',
      display: { ready: false, reason: 'NoDPI', message: expect.stringContaining('1600x900') as string },
    });
  });

  test('knows a hypervisor that has failed from a guest that has shut down, although both end with code 0', async () => {
    const one = driver();
    await start(one, 'linux1');
    mac.send(mac.find('berth-linux1')?.pid ?? 0, 'SIGUSR2');
    expect(await one.inspect(folderOf('linux1'))).toMatchObject({ kind: 'exited', reason: 'GuestShutdown' });
    await start(one, 'linux2');
    const stdout = 'guest has stopped the virtual machine due to error: gone\n';
    mac.end(mac.find('berth-linux2')?.pid ?? 0, { code: 0, stdout, stderr: '' });
    expect(await one.inspect(folderOf('linux2'))).toMatchObject({
      kind: 'exited',
      reason: 'Crashed',
      message: expect.stringContaining('due to error: gone') as string,
    });
  });

  test('says that a guest is lost whose memory could not be written, and suspends no guest with Linux', async () => {
    const one = driver();
    await start(one, 'mac1');
    mac.tart.give('suspend-fails');
    await expect(one.suspend(folderOf('mac1'))).rejects.toThrow('The memory of the guest was not written');
    expect(await one.inspect(folderOf('mac1'))).toMatchObject({ kind: 'exited', reason: 'Crashed' });
    await start(one, 'linux1');
    await expect(one.suspend(folderOf('linux1'))).rejects.toThrow('only guests with macOS');
    const cannotSuspend = expect.stringContaining('only guests with macOS') as string;
    expect(await one.inspect(folderOf('linux1'))).toMatchObject({ kind: 'running', cannotSuspend });
  });

  test('resumes a guest whose memory was written although a repeated suspend had failed', async () => {
    const one = driver();
    await start(one, 'mac1');
    vi.spyOn(mac.tart, 'call').mockReturnValueOnce({ code: 2, stdout: '', stderr: 'not now' });
    await expect(one.suspend(folderOf('mac1'))).rejects.toThrow('not now');
    mac.send(mac.find('berth-mac1')?.pid ?? 0, 'SIGUSR1');
    expect(await one.inspect(folderOf('mac1'))).toEqual({ kind: 'suspended' });
    await one.resume(folderOf('mac1'), planOf('mac1'));
    expect(readGuest(diskPath('mac1')).boots).toBe(1);
    await one.stop(folderOf('mac1'), { graceMilliseconds: 0 });
    expect(await one.inspect(folderOf('mac1'))).toEqual({ kind: 'stopped' });
  });

  test('knows a guest that has shut down after it was not suspended', async () => {
    const one = driver();
    await start(one, 'mac1');
    mac.tart.give('macos-shuts-down');
    vi.spyOn(mac.tart, 'call').mockReturnValueOnce({ code: 0, stdout: '', stderr: '' });
    await expect(one.suspend(folderOf('mac1'))).rejects.toThrow('The memory was not written within');
    mac.send(mac.find('berth-mac1')?.pid ?? 0, 'SIGUSR2');
    expect(await one.inspect(folderOf('mac1'))).toMatchObject({ kind: 'exited', reason: 'GuestShutdown' });
    expect(await one.inspect(folderOf('mac1'))).toMatchObject({ kind: 'exited', reason: 'GuestShutdown' });
  });

  test('starts a machine although one question to the program has failed, and takes its power away before it kills', async () => {
    const one = driver();
    const call = mac.tart.call.bind(mac.tart);
    let questions = 0;
    vi.spyOn(mac.tart, 'call').mockImplementation((parameters) => {
      questions += parameters[0] === 'get' ? 1 : 0;
      return questions === 1 ? { code: 1, stdout: '', stderr: 'busy' } : call(parameters);
    });
    await start(one, 'mac1');
    expect(questions).toBe(2);
    const pid = mac.find('berth-mac1')?.pid;
    const send = vi.spyOn(mac, 'send');
    await one.delete(folderOf('mac1'));
    expect(send.mock.calls).toEqual([[pid, 'SIGINT']]);
  });

  test('begins no start that is no longer wanted, and ends one that is under way', async () => {
    const one = driver();
    const [folder, plan] = [folderOf('mac1'), planOf('mac1')];
    await one.create(folder, plan, imageOf('mac1'));
    const call = mac.tart.call.bind(mac.tart);
    const unwanted = new AbortController();
    vi.spyOn(mac.tart, 'call').mockImplementation((parameters) => {
      if (parameters[0] !== 'get') {
        return call(parameters);
      }
      unwanted.abort(new Error('not wanted'));
      return { code: 2, stdout: '', stderr: '' };
    });
    await expect(one.start(folder, plan, unwanted.signal)).rejects.toThrow('not wanted');
    expect([mac.running, await one.inspect(folder)]).toEqual([[], { kind: 'stopped' }]);
    const launch = vi.spyOn(mac, 'launch');
    await expect(one.start(folder, plan, unwanted.signal)).rejects.toThrow('not wanted');
    expect(launch).not.toHaveBeenCalled();
  });

  test('refuses what it cannot run before it makes anything, and says what is allowed', async () => {
    const one = driver();
    const plain = { ...imageOf('mac1'), path: join(directory, 'plain', 'disk.raw') };
    const create = async (plan: VmLaunchPlan, base: BaseImage | undefined) =>
      await one.create(folderOf('mac1'), plan, base);
    await expect(create(planOf('mac1'), plain)).rejects.toThrow('only images in the layout of Tart');
    await expect(create(planOf('mac1'), undefined)).rejects.toThrow('only images in the layout of Tart');
    await expect(create(planOf('linux1'), images.darwin)).rejects.toThrow('Create the VM with os: MacOS');
    const automaticPorts = [{ protocol: 'TCP' as const, guestPort: 0, purpose: 'vnc' }];
    const screen = tartPlan('mac1', 'MacOS', { automaticPorts });
    await expect(create(screen, images.darwin)).rejects.toThrow('Leave out vnc.hostPort');
    writeFileSync(join(directory, 'linux', 'config.json'), `{"os":"${'x'.repeat(2 ** 20)}"}`);
    await expect(one.create(folderOf('linux1'), planOf('linux1'), images.linux)).rejects.toMatchObject({
      reason: 'CreateFailed',
      message: expect.stringContaining('The configuration of the image cannot be used') as string,
    });
    expect(existsSync(join(homeOf(directory), 'vms'))).toBe(false);
  });
});
