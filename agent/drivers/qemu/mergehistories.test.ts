/** Agents that die at each step of a merge of layers. Only the hypervisors, their processes and qemu-img are simulated. */
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';
import type * as time from '../../../base/time.ts';
import { LayeredMachine, UID } from '../../../test/worlds/layeredmachine.ts';
import { dueMerge, mergeIfDue, noteMerge } from '../../../test/worlds/mergerecord.ts';
import type { SimulatedHost } from '../../../test/worlds/simulatedqemu.ts';
import type * as processes from '../../processes/process.ts';
import type { QemuDriver, QemuDriverOptions } from './driver.ts';

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
/** Numbers of steps that a merge has at least. With fewer, the agents would not die at each of them. */
const LEAST_STEPS = { running: 25, stopped: 12 };
/** Wait after the first attempt to merge layers. */
const MINUTE_MILLISECONDS = 60_000;
/** More than the layers that a disk can have. */
const MANY = 40;
/** Steps after which an agent that fails to take a snapshot dies, one after the other. */
const DEATHS = [20, 45, 70, 95];
const { signal } = new AbortController();
const machine = new LayeredMachine(host);

beforeEach(async () => {
  vi.useFakeTimers({ toFake: ['Date'] });
  machine.begin();
  await machine.asAgent(machine.bringUp);
});
afterEach(() => {
  machine.end();
  vi.useRealTimers();
});

async function merge(driver: QemuDriver): Promise<void> {
  await driver.mergeLayers(machine.folder, signal);
}

async function stop(driver: QemuDriver): Promise<void> {
  await driver.stop(machine.folder, { graceMilliseconds: 0 });
}

/** Does what the agent does for a VM whose snapshots are these. */
async function keep(driver: QemuDriver, uids: readonly string[]): Promise<void> {
  await driver.keepSnapshots(machine.folder, new Set(uids));
  await merge(driver);
}

describe('an agent that dies at any step of a merge', { timeout: TEST_MILLISECONDS }, () => {
  test.each(['running', 'stopped'] as const)(
    'of a machine that is %s: snapshots and disk show the same, and the next agent merges',
    async (state) => {
      let round = 0;
      const merged = async (driver: QemuDriver) => await mergeIfDue(machine, driver);
      const prepare = async (driver: QemuDriver): Promise<void> => {
        round += 1;
        await machine.bringUp(driver);
        for (const name of ['removed', 'kept']) {
          await machine.take(driver, `${name}-${round}`, false);
        }
        await (state === 'stopped' && stop(driver));
        await driver.keepSnapshots(machine.folder, new Set([`kept-${round}`]));
        noteMerge(machine);
      };
      await machine.asAgent(prepare);
      const steps = await machine.dieAtEach(merged, async (last) => {
        const before = await machine.diskContent();
        await machine.expectWhole();
        vi.setSystemTime(Date.now() + MINUTE_MILLISECONDS);
        await machine.asAgent(merged);
        await machine.expectWhole();
        await machine.expectMerged();
        expect(dueMerge(machine), `step ${last}`).toBeUndefined();
        await machine.asAgent(
          async (driver) => await driver.keepSnapshots(machine.folder, new Set([`kept-${round}`])),
        );
        const { found, named } = await machine.files();
        expect(found, `step ${last}`).toEqual(named);
        expect(await machine.diskContent()).toBeGreaterThanOrEqual(before);
        await machine.asAgent(async (driver) => {
          await machine.revert(driver, `kept-${round}`);
          expect(await machine.diskContent()).toBe(machine.seen.get(`kept-${round}`));
          await machine.bringUp(driver);
        });
        expect(host.world.of(UID)).toMatchObject({ status: 'running' });
        await machine.asAgent(prepare);
      });
      expect(steps).toBeGreaterThan(LEAST_STEPS[state]);
    },
  );
});

test(
  'snapshots that fail add no layers, also if agents die behind some of them',
  async () => {
    for (let index = 0; index < MANY; index += 1) {
      await machine.asAgent(
        async (driver) => await machine.fail(driver, `failed-${index}`),
        index % 2 === 0 ? undefined : DEATHS[(index >> 1) % DEATHS.length],
      );
      host.world.breaksMemory = false;
      await machine.expectWhole();
      expect((await machine.layers()).length).toBeLessThanOrEqual(3);
    }
    await machine.asAgent(async (driver) => expect(await machine.take(driver, 'taken', true)).toBe(true));
    await machine.expectWhole();
  },
  TEST_MILLISECONDS,
);

test(
  'a VM with a snapshot each day of which it keeps two never has more than three layers',
  async () => {
    for (let day = 1; day <= MANY; day += 1) {
      await machine.asAgent(async (driver) => {
        expect(await machine.take(driver, `day-${day}`, false)).toBe(true);
        await keep(driver, [`day-${day - 1}`, `day-${day}`]);
      });
      await machine.expectWhole();
      expect((await machine.layers()).length).toBeLessThanOrEqual(3);
    }
    const { found, named } = await machine.files();
    expect(found).toEqual(named);
  },
  TEST_MILLISECONDS,
);

test('a disk that is full of needless layers gets a snapshot all the same', async () => {
  await machine.asAgent(async (driver) => {
    for (let index = 0; index < MANY; index += 1) {
      expect(await machine.take(driver, `${index}`, false)).toBe(true);
      await driver.keepSnapshots(machine.folder, new Set());
    }
  });
  await machine.expectWhole();
});

describe('layers stay two', () => {
  /** Checks that nothing is merged, for the reason `why`, and that a later agent merges all when `work` has corrected what hindered it. */
  async function expectMergedAfter(
    why: string | false,
    work: () => unknown,
    options?: Partial<QemuDriverOptions>,
  ): Promise<void> {
    const result = async (driver: QemuDriver): Promise<void> => {
      const merged = driver.mergeLayers(machine.folder, signal);
      if (why === false) {
        expect(await merged).toBe(false);
      } else {
        await expect(merged).rejects.toThrow(why);
      }
    };
    await machine.asAgent(result, undefined, options);
    expect(await machine.layers()).toHaveLength(2);
    const { found, named } = await machine.files();
    expect(found).toEqual(named);
    await machine.expectWhole();
    await work();
    await machine.asAgent(async (driver) =>
      expect(await driver.mergeLayers(machine.folder, signal)).toBe(true),
    );
    expect(await machine.layers()).toHaveLength(1);
    await machine.expectWhole();
  }

  beforeEach(async () => {
    await machine.asAgent(async (driver) => {
      await machine.take(driver, 'removed', false);
      await machine.take(driver, 'kept', false);
      await driver.keepSnapshots(machine.folder, new Set(['kept']));
    });
  });

  test('while QEMU does not tell which files it has', async () => {
    host.world.hidesNodes = true;
    await expectMergedAfter('does not show the lower layer', () => (host.world.hidesNodes = false));
  });

  test('if QEMU has not made the lower one read-only again', async () => {
    host.world.keepsWritable = true;
    await expectMergedAfter('does not show the lower layer', async () => {
      host.world.keepsWritable = false;
      await machine.asAgent(stop);
    });
  });

  test('while the merge would leave less of the disk free than it must', async () => {
    await expectMergedAfter('images.minimumFree', () => undefined, { minimumFree: Number.MAX_SAFE_INTEGER });
  });

  test('on another branch than the disk until the machine is off', async () => {
    await machine.asAgent(async (driver) => {
      await machine.revert(driver);
      await machine.bringUp(driver);
    });
    await expectMergedAfter(false, async () => await machine.asAgent(stop));
  });
});
