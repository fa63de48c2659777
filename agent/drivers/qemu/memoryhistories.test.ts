/** Agents that die at each step of their work on the memory of images. Only the hypervisors, their processes and qemu-img are simulated. */
import { existsSync, mkdirSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import * as fc from 'fast-check';
import { pino } from 'pino';
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';
import { machineDocument } from '../../../test/fixtures/machines.ts';
import { assertAsyncHistories } from '../../../test/support/properties.ts';
import { contentOf } from '../../../test/worlds/simulateddisk.ts';
import { SimulatedHost } from '../../../test/worlds/simulatedqemu.ts';
import type { BaseImage, MemoryFiles } from '../../disks/disk.ts';
import type * as time from '../../../base/time.ts';
import type * as processes from '../../processes/process.ts';
import { type MachineFolder, type VmLaunchPlan, WarmStartRefused } from '../driver.ts';
import { QemuDriver } from './driver.ts';

const { host, Life, liveAs, modules, NoCgroups, NoConsole, stepping } = await vi.hoisted(async () => {
  const { qemuModules } = await import('../../../test/worlds/qemumodules.ts');
  const only = {} as { world: SimulatedHost };
  return { ...(await import('../../../test/worlds/lives.ts')), host: only, modules: qemuModules(only) };
});

vi.mock('node:fs/promises', async (importOriginal) => stepping(await importOriginal<object>()));
vi.mock('../../../base/time.ts', async (importOriginal) => modules.time(await importOriginal<typeof time>()));
vi.mock('../../../base/files.ts', async (importOriginal) => modules.files(await importOriginal<object>()));
vi.mock('../../disks/qemuimg.ts', async (importOriginal) => modules.qemuimg(await importOriginal<object>()));
vi.mock('../../disks/qcow2.ts', () => ({ readQcow2: async () => ({}) }));
vi.mock('../../processes/process.ts', async (importOriginal) =>
  modules.processes(await importOriginal<typeof processes>()),
);
vi.mock('../../processes/cgroup.ts', () => ({ MachineCgroups: NoCgroups }));
vi.mock('../../console/store.ts', () => ({ ConsoleStore: NoConsole }));
vi.mock('../machineprocess.ts', async (importOriginal) =>
  modules.machineProcess(await importOriginal<object>()),
);
vi.mock('./platform.ts', async (importOriginal) => modules.platform(await importOriginal<object>()));

const MEMORY_BYTES = 2 ** 20;
const DISK_BYTES = 4096;
/** Folder in memory, because the agent writes its files to the disk at once. */
const PARENT = '/dev/shm';
/** Limit on a busy machine. On an idle one, all tests together take a few seconds. */
const TEST_MILLISECONDS = 400_000;
/** Numbers of steps that the work has at least. With fewer, the agents would not die at each of them. */
const LEAST_STEPS = { save: 100, start: 40 };
const HISTORIES = 40;
const HISTORY_LENGTH = 6;
/** Steps after which an agent in a history dies at the latest. */
const LONGEST_ACT = 160;
const logger = pino({ level: 'silent' });
const { signal } = new AbortController();

let directory: string;
let world: SimulatedHost;
let image: BaseImage;

beforeEach(() => {
  directory = mkdtempSync(join(PARENT, 'berth-histories-'));
  world = new SimulatedHost(MEMORY_BYTES);
  host.world = world;
  const path = join(directory, 'base');
  writeFileSync(path, JSON.stringify({ own: { count: 0, prepared: 0 } }));
  image = { path, digest: 'sha256:0', format: 'raw', virtualSizeBytes: DISK_BYTES };
});

afterEach(() => {
  [...world.processes.values()].forEach((one) => one.end());
  rmSync(directory, { recursive: true });
});

function folderOf(name: string): MachineFolder {
  return { uid: name, path: join(directory, 'machines', name) };
}

function planOf(name: string): VmLaunchPlan {
  const macAddress = '52:54:00:00:00:01';
  const vm = machineDocument({ namespace: 'team', name, uid: name }, {});
  return {
    guest: { vm, diskSizeBytes: undefined, iso: undefined },
    cpu: 1,
    memoryBytes: MEMORY_BYTES,
    network: { kind: 'tap', macAddress, address: undefined, device: 'tap0' },
  };
}

/** Runs `work` as an agent of its own that dies at the step `last`. Returns whether it has died. */
async function asAgent(work: (driver: QemuDriver) => Promise<void>, last?: number): Promise<boolean> {
  const life = new Life(last);
  world.life = life;
  return await liveAs(life, new QemuDriver({ dataDirectory: directory, logger }), work);
}

/** Saves the machine `source` as its task does: files of an earlier attempt are removed before. */
async function save(
  driver: QemuDriver,
  task = 'task',
  onStep: () => void = () => undefined,
): Promise<BaseImage & { memory: MemoryFiles }> {
  rmSync(join(directory, task), { recursive: true, force: true });
  mkdirSync(join(directory, task));
  const at = (name: string): string => join(directory, task, name);
  const target = at('raw');
  const { memory } = await driver.copyDisk(folderOf('source'), {
    target,
    memory: { ram: at('ram'), state: at('state') },
    signal,
    onStep,
    onProgress: () => undefined,
  });
  return { ...image, path: target, memory: memory as MemoryFiles };
}

/** Does what the agent does for a VM that is to run: inspects it, and starts it if it does not run. */
async function bringUp(driver: QemuDriver, name: string, from: BaseImage): Promise<void> {
  const [folder, plan] = [folderOf(name), planOf(name)];
  const state = await driver.inspect(folder);
  if (state.kind === 'running') {
    return;
  }
  if (state.kind === 'suspended') {
    await driver.resume(folder, plan);
    return;
  }
  if (state.kind === 'absent' || !existsSync(join(folder.path, 'state.json'))) {
    await driver.create(folder, plan, from);
  }
  try {
    if (from.memory !== undefined) {
      await driver.startFromMemory(folder, plan, from.memory);
      return;
    }
  } catch (error) {
    if (!(error instanceof WarmStartRefused)) {
      throw error;
    }
  }
  await driver.start(folder, plan);
}

/** Checks that the machine runs as itself, with its network, and that nothing of other work is left in its folder. */
async function expectWhole(name: string): Promise<void> {
  await asAgent(async (driver) => {
    const state = await driver.inspect(folderOf(name));
    expect(state.kind).toBe('running');
  });
  const running = world.of(name);
  expect(running).toMatchObject({
    status: 'running',
    hasLink: true,
    guest: { identity: name, isFrozen: false },
  });
  expect(world.faults).toEqual([]);
  const marks = [...world.processes.values()].map(({ uid }) => uid);
  expect(marks.filter((uid) => uid.startsWith(name))).toEqual([name]);
  const left = readdirSync(folderOf(name).path).filter((file) =>
    /^(image-memory|memory|migration|copy)(?!.*tmp$)/.test(file),
  );
  expect(left).toEqual([]);
}

/** Runs `work` once for each of its steps, as an agent that dies there, and then `check`. Returns the number of steps. */
async function dieAtEach(
  work: (driver: QemuDriver) => Promise<void>,
  check: (last: number) => Promise<void>,
): Promise<number> {
  for (let last = 1; ; last += 1) {
    const hasDied = await asAgent(work, last);
    await check(last);
    if (!hasDied) {
      return last;
    }
  }
}

const ACTS = {
  start: async (driver, saved) => await bringUp(driver, 'clone', saved),
  suspend: async (driver) => {
    const isRunning = (await driver.inspect(folderOf('clone'))).kind === 'running';
    await (isRunning && driver.suspend(folderOf('clone')));
  },
  stop: async (driver) => {
    const isThere = (await driver.inspect(folderOf('clone'))).kind !== 'absent';
    await (isThere && driver.stop(folderOf('clone'), { graceMilliseconds: 0 }));
  },
  revert: async (driver, saved) => {
    const isThere = (await driver.inspect(folderOf('clone'))).kind !== 'absent';
    await (isThere && driver.revert(folderOf('clone'), planOf('clone'), saved));
  },
  crash: async () => await Promise.resolve(world.of('clone')?.end()),
  save: async (driver) => void (await save(driver, 'task-2')),
} satisfies Record<string, (driver: QemuDriver, saved: BaseImage) => Promise<unknown>>;
type Act = keyof typeof ACTS;

const STEP = fc.record({
  act: fc.constantFrom(...(Object.keys(ACTS) as Act[])),
  last: fc.option(fc.integer({ min: 1, max: LONGEST_ACT }), { nil: undefined }),
});

describe('an agent that dies', { timeout: TEST_MILLISECONDS }, () => {
  test('at any step of a save: the VM goes on as it was, nothing is left, and the next save succeeds', async () => {
    await asAgent(async (driver) => await bringUp(driver, 'source', image));
    const steps = await dieAtEach(
      async (driver) => void (await save(driver)),
      async (last) => {
        await expectWhole('source');
        expect(world.of('source')?.guest?.prepared, `step ${last}`).toBe(0);
      },
    );
    expect(steps).toBeGreaterThan(LEAST_STEPS.save);
    await asAgent(async (driver) => {
      const { memory, path } = await save(driver);
      expect(contentOf(path)).toMatchObject({ prepared: 1 });
      expect([memory.ram, memory.state].filter((file) => existsSync(file))).toHaveLength(2);
    });
  });

  test('at any step of a start from memory: the next agent starts it from memory, and its guest is renewed', async () => {
    const saved = await makeSaved();
    const steps = await dieAtEach(
      async (driver) => await bringUp(driver, 'clone', saved),
      async (last) => {
        await asAgent(async (driver) => await bringUp(driver, 'clone', saved));
        await expectWhole('clone');
        expect(world.of('clone')?.guest?.prepared, `step ${last}`).toBe(1);
        await asAgent(async (driver) => await driver.delete(folderOf('clone')));
      },
    );
    expect(steps).toBeGreaterThan(LEAST_STEPS.start);
  });

  test('in any history: no guest is connected that is not itself, and no memory meets a disk of another moment', async (context) => {
    const saved = await makeSaved();
    const steps = { step: STEP, maxLength: HISTORY_LENGTH, numRuns: HISTORIES };
    await assertAsyncHistories(context, steps, async (history) => {
      for (const { act, last } of history) {
        await asAgent(async (driver) => await ACTS[act](driver, saved), last);
      }
      await asAgent(async (driver) => await bringUp(driver, 'clone', saved));
      await expectWhole('clone');
      await asAgent(async (driver) => await driver.delete(folderOf('clone')));
      await expectWhole('source');
    });
  });
});

describe('while the memory of an image is prepared', () => {
  const source = folderOf.bind(undefined, 'source');

  /** Saves the machine, and does `work` when the preparation has begun. Returns the outcome of the save. */
  async function saveBeside(work: (driver: QemuDriver) => Promise<unknown>): Promise<unknown> {
    let outcome: unknown;
    await asAgent(async (driver) => {
      const begun = Promise.withResolvers<void>();
      const saved = save(driver, 'task', begun.resolve).then(
        () => 'saved',
        (error: unknown) => error,
      );
      await begun.promise;
      await work(driver);
      outcome = await saved;
    });
    return outcome;
  }

  beforeEach(async () => {
    await asAgent(async (driver) => {
      await bringUp(driver, 'source', image);
      await driver.takeSnapshot(source(), 'removed', signal);
      await driver.takeSnapshot(source(), 'kept', signal);
      await driver.keepSnapshots(source(), new Set(['kept']));
    });
  });

  test.each([
    ['taken', async (driver: QemuDriver) => await driver.takeSnapshot(source(), 'new', signal)],
    ['removed', async (driver: QemuDriver) => await driver.keepSnapshots(source(), new Set())],
  ])('a snapshot that is %s ends it, and the reason says so and what to do', async (_, work) => {
    expect(await saveBeside(work)).toMatchObject({
      reason: 'Interrupted',
      message: expect.stringMatching(/snapshot .* was taken or removed.* no VMSnapshot .* until/) as string,
    });
    await expectWhole('source');
  });

  test('a merge of layers waits for its end', async () => {
    expect(await saveBeside(async (driver) => await driver.mergeLayers(source(), signal))).toBe('saved');
    await asAgent(async (driver) => expect(await driver.mergeLayers(source(), signal)).toBe(true));
    await expectWhole('source');
  });
});

/** Starts the machine `source` and saves it. */
async function makeSaved(): Promise<BaseImage> {
  let saved = image;
  await asAgent(async (driver) => {
    await bringUp(driver, 'source', image);
    saved = await save(driver);
  });
  return saved;
}
