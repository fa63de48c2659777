/** Agents that die at each step of their work on snapshots. Only the hypervisors, their processes and qemu-img are simulated. */
import { existsSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import * as fc from 'fast-check';
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';
import type * as time from '../../../base/time.ts';
import { assertAsyncHistories } from '../../../test/support/properties.ts';
import { unless } from '../../../test/support/unless.ts';
import { LayeredMachine, UID } from '../../../test/worlds/layeredmachine.ts';
import { contentOf } from '../../../test/worlds/simulateddisk.ts';
import type { SimulatedHost } from '../../../test/worlds/simulatedqemu.ts';
import { allocatedBytes } from '../../disks/diskio.ts';
import type * as processes from '../../processes/process.ts';
import type { QemuDriver } from './driver.ts';
import { readMachineFile } from './state.ts';

const { host, modules, NoCgroups, NoConsole, stepping } = await vi.hoisted(async () => {
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
const { signal } = new AbortController();

const machine = new LayeredMachine(host);

beforeEach(machine.begin);
afterEach(machine.end);

/** Removes all snapshots. Resets the disk before it has too many layers. */
async function startAnew(driver: QemuDriver): Promise<void> {
  await driver.keepSnapshots(machine.folder, NONE);
  const { layers = [] } = (await readMachineFile(machine.folder.path)) ?? {};
  if (layers.length >= MANY_LAYERS) {
    await machine.revert(driver);
    await machine.bringUp(driver);
  }
  machine.seen.clear();
}

describe('an agent that dies', { timeout: TEST_MILLISECONDS }, () => {
  beforeEach(async () => {
    await machine.asAgent(machine.bringUp);
  });

  test.each([false, true])(
    'at any step of a snapshot (memory: %s): the guest goes on, and the next agent takes it',
    async (memory) => {
      const steps = await machine.dieAtEach(
        async (driver) => await driver.takeSnapshot(machine.folder, 'a', signal, { memory }),
        async (last) => {
          const pid = host.world.of(UID)?.pid;
          await machine.expectWhole();
          expect(host.world.of(UID), `step ${last}`).toMatchObject({
            pid,
            status: 'running',
            guest: { isFrozen: false },
          });
          const before = await machine.diskContent();
          await machine.asAgent(async (driver) => {
            const taken = await driver.takeSnapshot(machine.folder, 'a', signal, { memory });
            expect(await driver.findSnapshot(machine.folder, 'a')).toEqual(taken);
            expect(taken.memory !== undefined).toBe(memory);
          });
          await machine.expectWhole();
          expect(await machine.diskContent()).toBeGreaterThanOrEqual(before);
          const { found, named } = await machine.files();
          expect(found).toEqual(named);
          await machine.asAgent(startAnew);
        },
      );
      expect(steps).toBeGreaterThan(memory ? LEAST_STEPS.memory : LEAST_STEPS.disk);
    },
  );

  test('at any step of a revert: the disk is that of before or that of the snapshot, and the next agent reverts', async () => {
    await machine.asAgent(async (driver) => await machine.take(driver, 'a', true));
    await machine.expectWhole();
    const steps = await machine.dieAtEach(
      async (driver) => await machine.revert(driver, 'a'),
      async () => {
        await machine.expectWhole();
        expect(await machine.diskContent()).toBeGreaterThanOrEqual(machine.seen.get('a') ?? 0);
        await machine.asAgent(async (driver) => await machine.revert(driver, 'a'));
        expect(await machine.diskContent()).toBe(machine.seen.get('a'));
        await machine.asAgent(machine.bringUp);
        expect(host.world.of(UID)).toMatchObject({
          status: 'running',
          hasLink: true,
          guest: { isOld: false },
        });
      },
    );
    expect(steps).toBeGreaterThan(LEAST_STEPS.revert);
  });

  test('at any step of a deletion: the other snapshot and the disk stay, and nothing of the deleted one', async () => {
    await machine.asAgent(async (driver) => await machine.take(driver, 'kept', true));
    const steps = await machine.dieAtEach(
      async (driver) => await driver.keepSnapshots(machine.folder, new Set(['kept'])),
      async () => {
        await machine.expectWhole();
        const before = await machine.diskContent();
        await machine.asAgent(
          async (driver) => await driver.keepSnapshots(machine.folder, new Set(['kept'])),
        );
        await machine.expectWhole();
        const { found, named } = await machine.files();
        expect([found, [...(await machine.snapshots()).keys()]]).toEqual([named, ['kept']]);
        expect(await machine.diskContent()).toBeGreaterThanOrEqual(before);
        await machine.asAgent(async (driver) => {
          await machine.revert(driver, 'kept');
          await machine.bringUp(driver);
          await machine.take(driver, 'a', true);
          await machine.revert(driver, 'kept');
        });
      },
    );
    expect(steps).toBeGreaterThan(LEAST_STEPS.drop);
  });

  test('at any step of a renewal: a snapshot taken then has nothing of the guest that was not renewed', async () => {
    await machine.asAgent(async (driver) => {
      await machine.take(driver, 'a', true);
      await machine.revert(driver, 'a');
    });
    await machine.expectWhole();
    const steps = await machine.dieAtEach(machine.bringUp, async (last) => {
      await machine.asAgent(async (driver) => {
        await driver.inspect(machine.folder);
        await driver.takeSnapshot(machine.folder, 'later', signal, { memory: false });
        const { guest } = host.world.of(UID) ?? {};
        expect(guest?.isOld ?? false, `step ${last}`).toBe(false);
        const [{ count }, saved] = [
          contentOf(join(machine.folder.path, (await machine.snapshots()).get('later')?.file ?? '')),
          machine.seen.get('a'),
        ];
        expect(guest !== undefined || count === saved, `step ${last}`).toBe(true);
        await machine.bringUp(driver);
      });
      await machine.expectWhole();
      await machine.asAgent(async (driver) => {
        await machine.revert(driver, 'a');
        await driver.keepSnapshots(machine.folder, new Set(['a']));
      });
      machine.seen.delete('later');
    });
    expect(steps).toBeGreaterThan(LEAST_STEPS.start);
  });
});

const UIDS = ['a', 'b', 'c'] as const;
const STEP = fc.record({
  act: fc.constantFrom('take', 'takeMemory', 'fail', 'revert', 'drop', 'start', 'stop', 'suspend', 'crash'),
  uid: fc.constantFrom(...UIDS),
  last: fc.option(fc.integer({ min: 1, max: LONGEST_ACT }), { nil: undefined }),
});
type Step = typeof STEP extends fc.Arbitrary<infer S> ? S : never;

const ACTS: Record<Step['act'], (driver: QemuDriver, uid: string) => Promise<unknown>> = {
  take: async (driver, uid) => await machine.take(driver, uid, false),
  takeMemory: async (driver, uid) => await machine.take(driver, uid, true),
  fail: async (driver, uid) => await ((await machine.snapshots()).has(uid) || machine.fail(driver, uid)),
  revert: async (driver, uid) => await ((await machine.snapshots()).has(uid) && machine.revert(driver, uid)),
  drop: async (driver, uid) => {
    const kept = [...(await machine.snapshots()).keys()].filter((one) => one !== uid);
    await driver.keepSnapshots(machine.folder, new Set(kept));
    await driver.mergeLayers(machine.folder, signal);
  },
  start: machine.bringUp,
  stop: async (driver) => await driver.stop(machine.folder, { graceMilliseconds: 0 }),
  suspend: async (driver) =>
    await ((await driver.inspect(machine.folder)).kind === 'running' && driver.suspend(machine.folder)),
  crash: async () => await Promise.resolve(host.world.of(UID)?.end()),
};

/** Does one step, and checks what must hold after it. */
async function live({ act, uid, last }: Step): Promise<void> {
  const before = await machine.diskContent();
  const target = act === 'revert' ? machine.seen.get(uid) : undefined;
  await machine.asAgent(async (driver) => {
    await driver.inspect(machine.folder);
    await ACTS[act](driver, uid);
  }, last);
  if (act === 'drop' && !(await machine.snapshots()).has(uid)) {
    machine.seen.delete(uid);
  }
  await machine.expectWhole();
  const after = await machine.diskContent();
  expect(after === target || after >= before, `${act}: ${after} after ${before}`).toBe(true);
}

describe('in any history of agents that die', { timeout: TEST_MILLISECONDS }, () => {
  test('snapshots are whole or not there, no disk is lost, the machine goes on, and nothing stays behind a deletion', async (context) => {
    const steps = { step: STEP, maxLength: HISTORY_LENGTH, numRuns: HISTORIES };
    await assertAsyncHistories(context, steps, async (history) => {
      await machine.asAgent(machine.bringUp);
      for (const step of history) {
        await live(step);
      }
      await machine.asAgent(machine.bringUp);
      await machine.expectWhole();
      expect(host.world.of(UID)).toMatchObject({
        status: 'running',
        hasLink: true,
        guest: { isFrozen: false },
      });
      await machine.asAgent(async (driver) => {
        const uids = [...(await machine.snapshots()).keys()];
        await driver.keepSnapshots(machine.folder, new Set(uids));
        await driver.mergeLayers(machine.folder, signal);
      });
      await machine.expectWhole();
      await machine.expectMerged();
      await machine.asAgent(async (driver) => {
        await ACTS.stop(driver, '');
        await driver.mergeLayers(machine.folder, signal);
      });
      await machine.expectWhole();
      await machine.expectMerged();
      await machine.asAgent(async (driver) => await driver.keepSnapshots(machine.folder, NONE));
      const { found, named } = await machine.files();
      expect(found).toEqual(named);
      await machine.asAgent(async (driver) => await driver.delete(machine.folder));
      expect(existsSync(machine.folder.path)).toBe(false);
      expect([...host.world.processes.values()]).toEqual([]);
      machine.seen.clear();
    });
  });
});

describe('a reset to a snapshot with memory', () => {
  beforeEach(async () => {
    await machine.asAgent(async (driver) => {
      await machine.bringUp(driver);
      await machine.take(driver, 'a', true);
      await machine.revert(driver, 'a');
      await machine.take(driver, 'b', false);
    });
    await machine.expectWhole();
  });

  test('starts from it also if another snapshot is taken before the start', async () => {
    await machine.asAgent(
      async (driver) => await driver.startFromMemory(machine.folder, machine.launchPlan(), undefined),
    );
    await machine.expectWhole();
    expect(host.world.of(UID)).toMatchObject({ status: 'running', guest: { isOld: false } });
  });

  test('says that the memory is gone if the snapshot is deleted before the start', async () => {
    await machine.asAgent(async (driver) => {
      await driver.keepSnapshots(machine.folder, new Set(['b']));
      const start = driver.startFromMemory(machine.folder, machine.launchPlan(), undefined);
      await expect(start).rejects.toThrow('The host no longer has the memory of the snapshot');
      await machine.bringUp(driver);
    });
    await machine.expectWhole();
  });
});

test(
  'a snapshot of a VM that has never started leaves the new file of its disk to the user of the VM, and the old one to root',
  unless(process.getuid?.() === 0 ? undefined : 'only root can give a file to another user'),
  async () => {
    const runAs = { uid: 20_001, gid: 20_002 };
    await machine.asAgent(async (driver) => {
      await driver.create(machine.folder, { ...machine.launchPlan(), runAs }, machine.image);
      await driver.takeSnapshot(machine.folder, 'a', signal);
    });
    const { disk = '', layers = [] } = (await readMachineFile(machine.folder.path)) ?? {};
    const owners = [disk, ...layers.map(({ file }) => file)].map((name) =>
      statSync(join(machine.folder.path, name)),
    );
    expect(owners).toMatchObject([runAs, { uid: 0, gid: 0 }]);
  },
);

test('a guest that refuses to freeze is not paused for its memory, gets no layer, and loses nothing', async () => {
  await machine.asAgent(machine.bringUp);
  Object.assign(host.world.of(UID) ?? {}, { refusesFreeze: true });
  await machine.asAgent(async (driver) => {
    const { layers, disk } = (await readMachineFile(machine.folder.path)) ?? {};
    await expect(driver.takeSnapshot(machine.folder, 'a', signal, { memory: true })).rejects.toMatchObject({
      reason: 'MemoryNotSaved',
      message: expect.stringContaining('freeze is disabled') as string,
    });
    const after = await readMachineFile(machine.folder.path);
    expect(after?.layers).toEqual(layers);
    expect(after?.disk).toEqual(disk);
    expect(await machine.snapshots()).toEqual(new Map());
  });
  expect(host.world.of(UID)).toMatchObject({ status: 'running', pauses: 0 });
});

test('the bytes of snapshots are those of layers and memories, and none of the file to which the guest writes', async () => {
  const bytes = async (driver: QemuDriver): Promise<number> => await driver.snapshotBytes(machine.folder);
  await machine.asAgent(async (driver) => {
    await machine.bringUp(driver);
    expect(await bytes(driver)).toBe(0);
    await driver.takeSnapshot(machine.folder, 'a', signal, { memory: true });
    const { disk } = (await readMachineFile(machine.folder.path)) ?? {};
    const frozen = (await machine.files()).named.filter((name) => name !== disk);
    expect(frozen).toHaveLength(3);
    expect(await bytes(driver)).toBe(
      await allocatedBytes(...frozen.map((name) => join(machine.folder.path, name))),
    );
    await machine.revert(driver);
    await driver.keepSnapshots(machine.folder, NONE);
    expect(await bytes(driver)).toBe(0);
    writeFileSync(join(machine.folder.path, 'state.json'), '{');
    expect(await bytes(driver)).toBe(0);
  });
});

test('a disk with too many layers gets no other one, and the message says how to go on', async () => {
  await machine.asAgent(async (driver) => {
    await machine.bringUp(driver);
    for (let index = 0; index < 32; index += 1) {
      await driver.takeSnapshot(machine.folder, `${index}`, signal);
    }
    await expect(driver.takeSnapshot(machine.folder, 'more', signal)).rejects.toMatchObject({
      reason: 'TooManySnapshots',
      message: 'The disk has 32 layers of snapshots. Save the VM as an Image and make a new one, or reset it',
    });
    await machine.revert(driver);
    await driver.takeSnapshot(machine.folder, 'more', signal);
  });
  await machine.expectWhole();
});
