/** Requests to keep a memory that are refused. Images of other tenants stay on the host then. Only hypervisors and qemu-img are simulated. */
import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { pino } from 'pino';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import type { Desired } from '../../api/v1alpha1/machine.ts';
import { TASK_API_VERSION, type Task } from '../../api/v1alpha1/task.ts';
import type * as time from '../../base/time.ts';
import { machineDocument } from '../../test/fixtures/machines.ts';
import { LayeredMachine, UID } from '../../test/worlds/layeredmachine.ts';
import type { SimulatedHost } from '../../test/worlds/simulatedqemu.ts';
import { freeDisk } from '../disks/freedisk.ts';
import type { DriverOfVMs } from '../drivers/driver.ts';
import type { Catalog } from '../images/local/catalog.ts';
import { StoreLayout } from '../images/local/layout.ts';
import { Space } from '../images/local/space.ts';
import type { OwnRoot } from '../processes/ownroot.ts';
import type * as processes from '../processes/process.ts';
import type { TaskContext } from '../tasks/runner.ts';
import { type TaskHost, taskWork } from '../tasks/work.ts';
import type { PodHost } from './host.ts';
import { type MachineOperation, newRecord, newRuntime } from './machine.ts';
import { RecordStore } from './records.ts';
import { SnapshotShares } from './snapshotshares.ts';
import { STEPS } from './steps.ts';

const { host, modules, NoCgroups, NoConsole } = await vi.hoisted(async () => {
  const { qemuModules } = await import('../../test/worlds/qemumodules.ts');
  const only = {} as { world: SimulatedHost };
  return { ...(await import('../../test/worlds/lives.ts')), host: only, modules: qemuModules(only) };
});

vi.mock('../../base/time.ts', async (importOriginal) => modules.time(await importOriginal<typeof time>()));
vi.mock('../disks/qemuimg.ts', async (importOriginal) => modules.qemuimg(await importOriginal<object>()));
vi.mock('../disks/qcow2.ts', () => ({ readQcow2: async () => ({}) }));
vi.mock('../processes/process.ts', async (importOriginal) =>
  modules.processes(await importOriginal<typeof processes>()),
);
vi.mock('../processes/cgroup.ts', () => ({ MachineCgroups: NoCgroups }));
vi.mock('../console/store.ts', () => ({ ConsoleStore: NoConsole }));
vi.mock('../drivers/machineprocess.ts', async (importOriginal) =>
  modules.machineProcess(await importOriginal<object>()),
);
vi.mock('../drivers/qemu/platform.ts', async (importOriginal) =>
  modules.platform(await importOriginal<object>()),
);

const GIBIBYTE = 1024 ** 3;
const logger = pino({ level: 'silent' });
const { signal } = new AbortController();
const machine = new LayeredMachine(host);
const vm = { namespace: 'team', name: UID, uid: UID };

let driver: DriverOfVMs;
/** Images of another tenant that were removed. */
let removed: number;
let images: PodHost['images'];

beforeEach(async () => {
  machine.begin();
  const own = machine.makeDriver();
  await machine.bringUp(own);
  driver = own;
  removed = 0;
  const layout = new StoreLayout(machine.directory);
  await layout.prepare();
  const image = { metadata: { tenants: ['other'], sizeBytes: 1024 * GIBIBYTE }, usedAt: Date.now() };
  const discard = async (): Promise<void> => void (removed += 1);
  const catalog = {
    all: () => [image],
    evictable: () => [image],
    kept: () => [],
    discard,
  } as unknown as Catalog;
  // The disk lacks room for everything until an image is removed.
  const minimumFree = (await freeDisk(layout.root)).bytes + GIBIBYTE;
  const space = new Space({ layout, catalog, logger, minimumFree, onEviction: () => undefined });
  images = {
    withRoom: async (need, outer, work) =>
      await space.within(need, outer, async (watched) => await work(watched.signal)),
    freeBytes: async () => GIBIBYTE,
  } as PodHost['images'];
});

afterEach(async () => {
  await driver.close();
  machine.end();
});

/** Asks for a snapshot with memory, as a VMSnapshot does. Returns the reason of its failure. */
async function takeSnapshot(): Promise<string | undefined> {
  const claim = { slots: 1, cpuMillis: 0, memoryBytes: 1, diskBytes: 0, ports: [] };
  const document = machineDocument(vm);
  const record = newRecord({ uid: UID, key: `team/${UID}`, driver: 'qemu', machine: document, claim });
  const podHost = {
    records: new RecordStore(machine.directory),
    drivers: new Map([['qemu', { driver }]]),
    logger,
    event: () => undefined,
    images,
    snapshotShares: new SnapshotShares(),
    machinesDirectory: join(machine.directory, 'machines'),
  } as unknown as PodHost;
  const desired = { snapshots: [{ uid: 'a', name: 'a', memory: true }] } as unknown as Desired;
  const parts = { desired, abort: new AbortController(), changed: () => undefined };
  const operation = parts as unknown as MachineOperation;
  const runtime = newRuntime(record, podHost.machinesDirectory);
  await STEPS.snapshot(podHost, runtime, operation);
  return runtime.record.snapshots?.[0]?.failure?.reason;
}

/** Asks for an Image with memory, as `source.fromVM.memory` does. Returns the reason of its failure. */
async function save(): Promise<string | undefined> {
  const task: Task = {
    apiVersion: TASK_API_VERSION,
    type: 'save',
    vm,
    memory: true,
    target: { type: 'folder', path: 'team/golden.qcow2' },
  };
  const found = { folder: machine.folder, machine: machineDocument(vm), driver, memoryBytes: 1 };
  const publisher = { store: async () => ({}) };
  const taskHost = { machineOf: () => found, images, publisher } as unknown as TaskHost;
  const pod = { metadata: { namespace: 'team' } };
  const nothing = (): void => undefined;
  const folder = join(machine.directory, 'task');
  mkdirSync(folder);
  const context = { uid: 'save', pod, folder, signal, log: nothing, progress: nothing };
  const done = taskWork(taskHost)(task, context as unknown as TaskContext);
  return await done.then(
    () => undefined,
    (error: { reason?: string }) => error.reason,
  );
}

const ASK = { 'a VMSnapshot': takeSnapshot, 'an Image': save } as const;
const REFUSED: Record<string, () => Promise<unknown>> = {
  'does not run': async () => await driver.stop(machine.folder, { graceMilliseconds: 0 }),
  'is suspended': async () => await driver.suspend(machine.folder),
  'is paused': async () => await driver.pause(machine.folder),
  'has an ISO': async () => {
    await driver.stop(machine.folder, { graceMilliseconds: 0 });
    const plan = machine.launchPlan();
    const iso = { path: machine.image.path, format: 'raw' } as const;
    await driver.start(machine.folder, { ...plan, guest: { ...plan.guest, iso } });
  },
  'has no guest agent': async () => Object.assign(host.world.of(UID) ?? {}, { hasAgent: false }),
  'cannot be renewed': async () => Object.assign(host.world.of(UID) ?? {}, { failsPrograms: true }),
  'is on a host that cannot start from memory': async () => {
    await driver.close();
    driver = machine.makeDriver({ ownRoot: {} as OwnRoot });
  },
};

describe.each(Object.keys(ASK) as (keyof typeof ASK)[])('%s with the memory of a VM', (kind) => {
  it.each(Object.keys(REFUSED))(
    'that %s is refused before an image of another tenant is removed',
    async (how) => {
      await REFUSED[how]?.();
      expect(await ASK[kind]()).toBe('MemoryNotSaved');
      expect(removed).toBe(0);
    },
  );

  it('that can be kept has the room before the guest is paused', async () => {
    expect(await ASK[kind]()).toBeUndefined();
    expect(removed).toBeGreaterThan(0);
  });
});
