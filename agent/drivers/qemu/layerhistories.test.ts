/** Agents that die at each step of their work on snapshots. Only the hypervisors, their processes and qemu-img are simulated. */
import { existsSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import * as fc from 'fast-check';
import { pino } from 'pino';
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';
import { ReasonedError } from '../../../api/v1alpha1/reasons.ts';
import type * as time from '../../../base/time.ts';
import { machineDocument } from '../../../test/fixtures/machines.ts';
import { assertAsyncHistories } from '../../../test/support/properties.ts';
import { contentOf, memoryOf, SimulatedHost } from '../../../test/worlds/simulatedqemu.ts';
import type { BaseImage } from '../../disks/disk.ts';
import { allocatedBytes } from '../../disks/diskio.ts';
import type * as processes from '../../processes/process.ts';
import { type VmLaunchPlan, WarmStartRefused } from '../driver.ts';
import { QemuDriver } from './driver.ts';
import { type Layer, readMachineFile } from './state.ts';

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
/** Folder in memory, because the agent writes its files to the disk at once. */
const PARENT = '/dev/shm';
/** Limit on a busy machine. On an idle one, all tests together take some seconds. */
const TEST_MILLISECONDS = 400_000;
/** Numbers of steps that the work has at least. With fewer, the agents would not die at each of them. */
const LEAST_STEPS = { disk: 30, memory: 80, revert: 15, drop: 8, start: 30 };
const MANY_LAYERS = 20;
const HISTORIES = 200;
const HISTORY_LENGTH = 6;
/** Steps after which an agent in a history dies at the latest. A snapshot with memory has about so many. */
const LONGEST_ACT = 150;
const NONE: ReadonlySet<string> = new Set();
const logger = pino({ level: 'silent' });
const { signal } = new AbortController();

let directory: string;
let world: SimulatedHost;
let image: BaseImage;
/** Content that each snapshot showed when it was seen first. */
let seen: Map<string, number>;

beforeEach(() => {
  directory = mkdtempSync(join(PARENT, 'berth-layers-'));
  world = new SimulatedHost(MEMORY_BYTES);
  host.world = world;
  const path = join(directory, 'base');
  writeFileSync(path, JSON.stringify({ own: { count: 0, prepared: 0 } }));
  image = { path, digest: 'sha256:0', format: 'raw', virtualSizeBytes: 4096 };
  seen = new Map();
});

afterEach(() => {
  [...world.processes.values()].forEach((one) => one.end());
  rmSync(directory, { recursive: true });
});

const UID = 'vm';

function folder(): { uid: string; path: string } {
  return { uid: UID, path: join(directory, 'machines', UID) };
}

function launchPlan(): VmLaunchPlan {
  const vm = machineDocument({ namespace: 'team', name: UID, uid: UID }, {});
  const network = {
    kind: 'tap',
    macAddress: '52:54:00:00:00:01',
    address: undefined,
    device: 'tap0',
  } as const;
  return {
    guest: { vm, diskSizeBytes: undefined, iso: undefined },
    cpu: 1,
    memoryBytes: MEMORY_BYTES,
    network,
  };
}

/** Runs `work` as an agent of its own that dies at the step `last`. Returns whether it has died. */
async function asAgent(work: (driver: QemuDriver) => Promise<unknown>, last?: number): Promise<boolean> {
  const life = new Life(last);
  world.life = life;
  return await liveAs(life, new QemuDriver({ dataDirectory: directory, logger }), async (driver) => {
    await work(driver);
  });
}

/** Does what the agent does for a VM that is to run. */
async function bringUp(driver: QemuDriver): Promise<void> {
  const state = await driver.inspect(folder());
  if (state.kind === 'running') {
    return;
  }
  if (state.kind === 'suspended') {
    await driver.resume(folder(), launchPlan());
    return;
  }
  if (state.kind === 'absent' || !existsSync(join(folder().path, 'state.json'))) {
    await driver.create(folder(), launchPlan(), image);
  }
  try {
    await driver.startFromMemory(folder(), launchPlan(), undefined);
    return;
  } catch (error) {
    if (!(error instanceof WarmStartRefused)) {
      throw error;
    }
  }
  await driver.start(folder(), launchPlan());
}

/** Takes a snapshot; does nothing if the machine cannot have it now. */
async function take(driver: QemuDriver, uid: string, memory: boolean): Promise<void> {
  try {
    await driver.takeSnapshot(folder(), uid, signal, { memory });
  } catch (error) {
    if (!(error instanceof ReasonedError && ['MemoryNotSaved', 'NoMachine'].includes(error.reason))) {
      throw error;
    }
  }
}

async function revert(driver: QemuDriver, uid?: string): Promise<void> {
  await driver.revert(folder(), launchPlan(), image, uid);
}

async function snapshots(): Promise<Map<string, Layer>> {
  const { layers = [] } = (await readMachineFile(folder().path)) ?? {};
  return new Map(layers.flatMap((layer) => (layer.snapshot ? [[layer.snapshot.uid, layer]] : [])));
}

async function diskContent(): Promise<number> {
  const { disk = 'disk.qcow2' } = (await readMachineFile(folder().path)) ?? {};
  return contentOf(join(folder().path, disk)).count;
}

/** Returns the files of disks and of memories of snapshots, and those that the state file names. The next start removes a suspended memory. */
async function files(): Promise<{ found: string[]; named: string[] }> {
  const { disk = 'disk.qcow2', layers = [] } = (await readMachineFile(folder().path)) ?? {};
  const ofLayers = layers.flatMap(({ file, snapshot }) => [
    file,
    snapshot?.memory?.ram,
    snapshot?.memory?.state,
  ]);
  const found = readdirSync(folder().path).filter((name) =>
    /^(?:disk|memory-|image-memory|copy|migration)(?!.*tmp$)/.test(name),
  );
  return {
    found: found.toSorted(),
    named: [disk, ...ofLayers.filter((one) => one !== undefined)].toSorted(),
  };
}

/** Checks that all snapshots of the machine are whole, and show what they showed before. */
async function expectWhole(): Promise<void> {
  await asAgent(async (driver) => await driver.inspect(folder()));
  expect(world.faults).toEqual([]);
  for (const [uid, { file, snapshot }] of await snapshots()) {
    const { count } = contentOf(join(folder().path, file));
    expect(count, `snapshot ${uid}`).toBe(seen.get(uid) ?? count);
    seen.set(uid, count);
    const { memory } = snapshot ?? {};
    if (memory !== undefined) {
      expect(memoryOf(join(folder().path, memory.ram)).count, `memory ${uid}`).toBe(count);
      expect(existsSync(join(folder().path, memory.state))).toBe(true);
    }
  }
  const marks = [...world.processes.values()].map(({ uid }) => uid);
  expect(marks.filter((uid) => uid !== UID)).toEqual([]);
}

/** Runs `work` once for each of its steps, as an agent that dies there, and then `check`. Returns the number of steps. */
async function dieAtEach(
  work: (driver: QemuDriver) => Promise<unknown>,
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

/** Removes all snapshots. Resets the disk before it has too many layers. */
async function startAnew(driver: QemuDriver): Promise<void> {
  await driver.keepSnapshots(folder(), NONE);
  const { layers = [] } = (await readMachineFile(folder().path)) ?? {};
  if (layers.length >= MANY_LAYERS) {
    await revert(driver);
    await bringUp(driver);
  }
  seen.clear();
}

describe('an agent that dies', { timeout: TEST_MILLISECONDS }, () => {
  beforeEach(async () => {
    await asAgent(bringUp);
  });

  test.each([false, true])(
    'at any step of a snapshot (memory: %s): the guest goes on, and the next agent takes it',
    async (memory) => {
      const steps = await dieAtEach(
        async (driver) => await driver.takeSnapshot(folder(), 'a', signal, { memory }),
        async (last) => {
          const pid = world.of(UID)?.pid;
          await expectWhole();
          expect(world.of(UID), `step ${last}`).toMatchObject({
            pid,
            status: 'running',
            guest: { isFrozen: false },
          });
          const before = await diskContent();
          await asAgent(async (driver) => {
            const taken = await driver.takeSnapshot(folder(), 'a', signal, { memory });
            expect(await driver.findSnapshot(folder(), 'a')).toEqual(taken);
            expect(taken.memory !== undefined).toBe(memory);
          });
          await expectWhole();
          expect(await diskContent()).toBeGreaterThanOrEqual(before);
          const { found, named } = await files();
          expect(found).toEqual(named);
          await asAgent(startAnew);
        },
      );
      expect(steps).toBeGreaterThan(memory ? LEAST_STEPS.memory : LEAST_STEPS.disk);
    },
  );

  test('at any step of a revert: the disk is that of before or that of the snapshot, and the next agent reverts', async () => {
    await asAgent(async (driver) => await take(driver, 'a', true));
    await expectWhole();
    const steps = await dieAtEach(
      async (driver) => await revert(driver, 'a'),
      async () => {
        await expectWhole();
        expect(await diskContent()).toBeGreaterThanOrEqual(seen.get('a') ?? 0);
        await asAgent(async (driver) => await revert(driver, 'a'));
        expect(await diskContent()).toBe(seen.get('a'));
        await asAgent(bringUp);
        expect(world.of(UID)).toMatchObject({ status: 'running', hasLink: true, guest: { isOld: false } });
      },
    );
    expect(steps).toBeGreaterThan(LEAST_STEPS.revert);
  });

  test('at any step of a deletion: the other snapshot and the disk stay, and nothing of the deleted one', async () => {
    await asAgent(async (driver) => await take(driver, 'kept', true));
    const steps = await dieAtEach(
      async (driver) => await driver.keepSnapshots(folder(), new Set(['kept'])),
      async () => {
        await expectWhole();
        const before = await diskContent();
        await asAgent(async (driver) => await driver.keepSnapshots(folder(), new Set(['kept'])));
        await expectWhole();
        const { found, named } = await files();
        expect([found, [...(await snapshots()).keys()]]).toEqual([named, ['kept']]);
        expect(await diskContent()).toBeGreaterThanOrEqual(before);
        await asAgent(async (driver) => {
          await revert(driver, 'kept');
          await bringUp(driver);
          await take(driver, 'a', true);
          await revert(driver, 'kept');
        });
      },
    );
    expect(steps).toBeGreaterThan(LEAST_STEPS.drop);
  });

  test('at any step of a renewal: a snapshot taken then has nothing of the guest that was not renewed', async () => {
    await asAgent(async (driver) => {
      await take(driver, 'a', true);
      await revert(driver, 'a');
    });
    await expectWhole();
    const steps = await dieAtEach(bringUp, async (last) => {
      await asAgent(async (driver) => {
        await driver.inspect(folder());
        await driver.takeSnapshot(folder(), 'later', signal, { memory: false });
        const { guest } = world.of(UID) ?? {};
        expect(guest?.isOld ?? false, `step ${last}`).toBe(false);
        const [{ count }, saved] = [
          contentOf(join(folder().path, (await snapshots()).get('later')?.file ?? '')),
          seen.get('a'),
        ];
        expect(guest !== undefined || count === saved, `step ${last}`).toBe(true);
        await bringUp(driver);
      });
      await expectWhole();
      await asAgent(async (driver) => {
        await revert(driver, 'a');
        await driver.keepSnapshots(folder(), new Set(['a']));
      });
      seen.delete('later');
    });
    expect(steps).toBeGreaterThan(LEAST_STEPS.start);
  });
});

const UIDS = ['a', 'b', 'c'] as const;
const STEP = fc.record({
  act: fc.constantFrom('take', 'takeMemory', 'revert', 'drop', 'start', 'stop', 'suspend', 'crash'),
  uid: fc.constantFrom(...UIDS),
  last: fc.option(fc.integer({ min: 1, max: LONGEST_ACT }), { nil: undefined }),
});
type Step = typeof STEP extends fc.Arbitrary<infer S> ? S : never;

const ACTS: Record<Step['act'], (driver: QemuDriver, uid: string) => Promise<unknown>> = {
  take: async (driver, uid) => await take(driver, uid, false),
  takeMemory: async (driver, uid) => await take(driver, uid, true),
  revert: async (driver, uid) => await ((await snapshots()).has(uid) && revert(driver, uid)),
  drop: async (driver, uid) => {
    const kept = [...(await snapshots()).keys()].filter((one) => one !== uid);
    await driver.keepSnapshots(folder(), new Set(kept));
  },
  start: bringUp,
  stop: async (driver) => await driver.stop(folder(), { graceMilliseconds: 0 }),
  suspend: async (driver) =>
    await ((await driver.inspect(folder())).kind === 'running' && driver.suspend(folder())),
  crash: async () => await Promise.resolve(world.of(UID)?.end()),
};

/** Does one step, and checks what must hold after it. */
async function live({ act, uid, last }: Step): Promise<void> {
  const before = await diskContent();
  const target = act === 'revert' ? seen.get(uid) : undefined;
  await asAgent(async (driver) => {
    await driver.inspect(folder());
    await ACTS[act](driver, uid);
  }, last);
  if (act === 'drop' && !(await snapshots()).has(uid)) {
    seen.delete(uid);
  }
  await expectWhole();
  const after = await diskContent();
  expect(after === target || after >= before, `${act}: ${after} after ${before}`).toBe(true);
}

describe('in any history of agents that die', { timeout: TEST_MILLISECONDS }, () => {
  test('snapshots are whole or not there, no disk is lost, the machine goes on, and nothing stays behind a deletion', async (context) => {
    const steps = { step: STEP, maxLength: HISTORY_LENGTH, numRuns: HISTORIES };
    await assertAsyncHistories(context, steps, async (history) => {
      await asAgent(bringUp);
      for (const step of history) {
        await live(step);
      }
      await asAgent(bringUp);
      await expectWhole();
      expect(world.of(UID)).toMatchObject({ status: 'running', hasLink: true, guest: { isFrozen: false } });
      await asAgent(async (driver) => await driver.keepSnapshots(folder(), NONE));
      const { found, named } = await files();
      expect(found).toEqual(named);
      await asAgent(async (driver) => await driver.delete(folder()));
      expect(existsSync(folder().path)).toBe(false);
      expect([...world.processes.values()]).toEqual([]);
      seen.clear();
    });
  });
});

describe('a reset to a snapshot with memory', () => {
  beforeEach(async () => {
    await asAgent(async (driver) => {
      await bringUp(driver);
      await take(driver, 'a', true);
      await revert(driver, 'a');
      await take(driver, 'b', false);
    });
    await expectWhole();
  });

  test('starts from it also if another snapshot is taken before the start', async () => {
    await asAgent(async (driver) => await driver.startFromMemory(folder(), launchPlan(), undefined));
    await expectWhole();
    expect(world.of(UID)).toMatchObject({ status: 'running', guest: { isOld: false } });
  });

  test('says that the memory is gone if the snapshot is deleted before the start', async () => {
    await asAgent(async (driver) => {
      await driver.keepSnapshots(folder(), new Set(['b']));
      const start = driver.startFromMemory(folder(), launchPlan(), undefined);
      await expect(start).rejects.toThrow('The host no longer has the memory of the snapshot');
      await bringUp(driver);
    });
    await expectWhole();
  });
});

test('a guest that refuses to freeze is not paused for its memory, gets no layer, and loses nothing', async () => {
  await asAgent(bringUp);
  Object.assign(world.of(UID) ?? {}, { refusesFreeze: true });
  await asAgent(async (driver) => {
    const { layers, disk } = (await readMachineFile(folder().path)) ?? {};
    await expect(driver.takeSnapshot(folder(), 'a', signal, { memory: true })).rejects.toMatchObject({
      reason: 'MemoryNotSaved',
      message: expect.stringContaining('freeze is disabled') as string,
    });
    const after = await readMachineFile(folder().path);
    expect(after?.layers).toEqual(layers);
    expect(after?.disk).toEqual(disk);
    expect(await snapshots()).toEqual(new Map());
  });
  expect(world.of(UID)).toMatchObject({ status: 'running', pauses: 0 });
});

test('the bytes of snapshots are those of layers and memories, and none of the file to which the guest writes', async () => {
  const bytes = async (driver: QemuDriver): Promise<number> => await driver.snapshotBytes(folder());
  await asAgent(async (driver) => {
    await bringUp(driver);
    expect(await bytes(driver)).toBe(0);
    await driver.takeSnapshot(folder(), 'a', signal, { memory: true });
    const { disk } = (await readMachineFile(folder().path)) ?? {};
    const frozen = (await files()).named.filter((name) => name !== disk);
    expect(frozen).toHaveLength(3);
    expect(await bytes(driver)).toBe(
      await allocatedBytes(...frozen.map((name) => join(folder().path, name))),
    );
    await revert(driver);
    await driver.keepSnapshots(folder(), NONE);
    expect(await bytes(driver)).toBe(0);
    writeFileSync(join(folder().path, 'state.json'), '{');
    expect(await bytes(driver)).toBe(0);
  });
});

test('a disk with too many layers gets no other one, and the message says how to go on', async () => {
  await asAgent(async (driver) => {
    await bringUp(driver);
    for (let index = 0; index < 32; index += 1) {
      await driver.takeSnapshot(folder(), `${index}`, signal);
      await driver.keepSnapshots(folder(), NONE);
    }
    await expect(driver.takeSnapshot(folder(), 'more', signal)).rejects.toMatchObject({
      reason: 'TooManySnapshots',
      message: 'The disk has 32 layers of snapshots. Save the VM as an Image and make a new one, or reset it',
    });
    await revert(driver);
    await driver.takeSnapshot(folder(), 'more', signal);
  });
  await expectWhole();
});
