import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { pino } from 'pino';
import { expect, onTestFinished, test } from 'vitest';
import type { Desired } from '../../api/v1alpha1/machine.ts';
import {
  ADOPTS_ANNOTATION,
  DESIRED_ANNOTATION,
  MACHINE_ANNOTATION,
  MACHINE_CONTAINER,
} from '../../api/v1alpha1/names.ts';
import type { KubeClient } from '../../kube/client.ts';
import type { Pod } from '../../kube/core.ts';
import { createMetrics } from '../../kube/metrics.ts';
import { machineDocument } from '../../test/fixtures/machines.ts';
import { PodApi } from '../../test/worlds/podapi.ts';
import { StandInDriver, StandInImages, StandInNetwork } from '../../test/worlds/standin.ts';
import type { TaskRunner } from '../tasks/runner.ts';
import { PodController } from './controller.ts';
import type { PodHost } from './host.ts';
import { newRecord } from './machine.ts';
import { RecordStore } from './records.ts';
import { adoptMachines } from './recover.ts';
import { makeFolder } from '../../test/support/folder.ts';

const UID = 'uid-of-vm';
/** Uid of the Pod that continues the machine. */
const NEXT_UID = 'uid-of-next-pod';
const KEY = 'platform-ci/vm';
const [NAMESPACE, NAME] = ['platform-ci', 'vm'];
const LARGE = 1e15;
const MACHINE = machineDocument({ namespace: NAMESPACE, name: NAME, uid: 'x' }, { diskSizeBytes: 1024 });
const DESIRED: Desired = { powerState: 'Running', restartPolicy: 'Never', cpu: 1, memoryBytes: 2 ** 28 };
const NEVER = new Promise<never>(() => undefined);

interface World {
  api: PodApi;
  driver: StandInDriver;
  host: PodHost;
  controller: PodController;
  /** What the Node says to the agent. `slots` is undefined until the operator has set up the Node. */
  node: { isAwaited: boolean; slots: number | undefined };
  signal: AbortSignal;
}

/** Returns a host without records. If `isCutOff` is true, the API server does not answer, and the host is fenced. */
function worldOf({ isCutOff = false } = {}): World {
  const directory = makeFolder();
  const stop = new AbortController();
  const [api, driver, logger] = [new PodApi(), new StandInDriver(), pino({ level: 'silent' })];
  const node = { isAwaited: false, slots: 1 as number | undefined };
  const host = {
    drivers: new Map([[driver.name, { driver, accelerators: [] }]]),
    emulators: { list: async () => [], onChange: () => undefined },
    architecture: 'amd64',
    network: new StandInNetwork(),
    monitor: {
      faultyChecks: 0,
      host: undefined,
      checkOf: async () => ({ machines: {}, healthy: true, faults: [] }),
    },
    images: new StandInImages(),
    disk: { wish: () => undefined, startsAnew: () => undefined, roomBytes: LARGE },
    records: new RecordStore(join(directory, 'pods')),
    address: '127.0.0.1',
    forwardAddress: '127.0.0.1',
    ports: {},
    boundPods: () => [],
    machinesDirectory: join(directory, 'machines'),
    logger,
    isAwaited: () => node.isAwaited,
    capacity: () => ({ slots: node.slots, cpuMillis: LARGE, memoryBytes: LARGE, diskBytes: LARGE }),
    fenced: () => isCutOff,
    event: () => undefined,
  } as unknown as PodHost;
  const silent = {
    transport: { metrics: api.client.transport.metrics, stream: () => NEVER },
  } as unknown as KubeClient;
  const controller = new PodController({
    client: isCutOff ? silent : api.client,
    scope: { nodeName: 'host' },
    host,
    tasks: {
      state: () => undefined,
      sweep: () => undefined,
      forget: () => undefined,
    } as unknown as TaskRunner,
    logger,
    metrics: createMetrics(),
  });
  onTestFinished(async () => {
    stop.abort(new Error('the test is over'));
    await driver.close();
  });
  return { api, driver, host, controller, node, signal: stop.signal };
}

/** Creates the VM's Pod with this phase. */
function createPod({ api }: World, phase: 'Pending' | 'Running', adopts?: string): Pod {
  const annotations = {
    [MACHINE_ANNOTATION]: JSON.stringify(MACHINE),
    [DESIRED_ANNOTATION]: JSON.stringify(DESIRED),
    ...(adopts && { [ADOPTS_ANNOTATION]: adopts }),
  };
  const metadata = { name: NAME, namespace: NAMESPACE, annotations };
  return api.create(
    { metadata, spec: { containers: [{ name: MACHINE_CONTAINER, image: 'x' }] }, status: { phase } },
    adopts === undefined ? UID : NEXT_UID,
  );
}

/** Creates the machine's folder, without a record. */
function createDisk({ driver, host }: World): void {
  const path = join(host.machinesDirectory, UID);
  mkdirSync(path, { recursive: true });
  driver.machines.set(UID, { kind: 'running', pid: 1, guestStarted: true, paused: false });
}

test('an agent that starts while its host is cut off ends a machine that was never reported as running', async () => {
  const world = worldOf({ isCutOff: true });
  const { controller, driver, host, signal } = world;
  createDisk(world);
  const claim = { slots: 1, cpuMillis: 0, memoryBytes: 0, diskBytes: 0, ports: [] };
  const record = newRecord({ uid: UID, key: KEY, driver: driver.name, machine: MACHINE, claim });
  host.records.save({ ...record, created: true, running: true, everRan: true, released: false });
  void controller.start(signal, NEVER).catch(() => undefined);
  controller.touchAll();
  await expect.poll(() => driver.machines.get(UID)?.kind).toBe('stopped');
});

test('a new machine is not created before the Node is known, because the Node has the number of slots', async () => {
  const world = worldOf();
  createPod(world, 'Pending');
  const known = Promise.withResolvers<void>();
  const started = world.controller.start(world.signal, known.promise);
  await world.controller.informer.synced;
  world.controller.touchPod(KEY);
  // A host whose Node is known, and which begins later, shows how long a machine takes.
  const other = worldOf();
  createPod(other, 'Pending');
  await other.controller.start(other.signal, Promise.resolve());
  await expect.poll(() => other.driver.calls).toContain(`create ${UID}`);
  expect([world.driver.calls, world.host.records.list()]).toEqual([[], []]);
  known.resolve();
  await started;
  await expect.poll(() => world.driver.calls).toContain(`create ${UID}`);
});

test('a Pod that is Running without a record and a disk fails, and gets no new machine with an empty disk', async () => {
  const world = worldOf();
  createPod(world, 'Running');
  await adoptMachines(world.host, world.controller.machines);
  await world.controller.start(world.signal, Promise.resolve());
  await expect
    .poll(() => world.api.pods[0]?.status)
    .toMatchObject({
      phase: 'Failed',
      reason: 'DiskLost',
      message: 'The Pod has run, but the host has no record and no disk of its machine',
    });
  expect([world.driver.calls, world.host.records.list()]).toEqual([[], []]);
});

test('a machine whose record is missing fails, and keeps its disk until its Pod is deleted', async () => {
  const world = worldOf();
  const { api, controller, driver, host } = world;
  const pod = createPod(world, 'Running');
  createDisk(world);
  await adoptMachines(host, controller.machines);
  await controller.start(world.signal, Promise.resolve());
  await expect
    .poll(() => api.pods[0]?.status)
    .toMatchObject({
      phase: 'Failed',
      reason: 'RecordDamaged',
      message:
        "The agent's record of this machine is missing. The disk stays on the host until the VM is deleted",
    });
  expect(driver.calls).toEqual([`power ${UID}`, `stop ${UID}`]);
  api.delete(api.pods[0] ?? pod);
  await expect.poll(() => [api.pods, host.records.list()]).toEqual([[], []]);
  expect(driver.calls).toContain(`delete ${UID}`);
});

test('a machine whose record is missing is removed if it has no Pod', async () => {
  const world = worldOf();
  createDisk(world);
  await adoptMachines(world.host, world.controller.machines);
  await world.controller.start(world.signal, Promise.resolve());
  await expect.poll(() => world.host.records.list()).toEqual([]);
  expect(world.driver.calls).toContain(`delete ${UID}`);
});

/** Starts the agent, and resolves with the Pod of a machine that the API server shows as running. */
async function runMachine(world: World): Promise<Pod> {
  createPod(world, 'Pending');
  await world.controller.start(world.signal, Promise.resolve());
  await expect.poll(() => world.host.records.get(UID)?.acknowledged).toBe(true);
  return world.api.pods[0] as Pod;
}

const ends = ({ driver }: World) => driver.calls.filter((call) => /^(power|stop|delete) /.test(call));

test('no-lost-disk: a Pod that is deleted by force leaves its machine running, and the next Pod takes it over', async () => {
  const world = worldOf();
  const { api, controller, host, node } = world;
  api.delete(await runMachine(world), 0);
  node.isAwaited = true;
  controller.touchPod(KEY);
  await expect.poll(() => api.pods[0]?.metadata.deletionTimestamp).toBeDefined();
  api.release(api.pods[0] as Pod);
  await expect.poll(() => controller.informer.cache.list()).toEqual([]);
  controller.touchPod(KEY);
  createPod(world, 'Pending', UID);
  await expect.poll(() => api.pods[0]?.status).toMatchObject({ phase: 'Running' });
  node.isAwaited = false;
  expect(host.records.list().map(({ uid, podUid }) => [uid, podUid])).toEqual([[UID, NEXT_UID]]);
  expect(world.driver.calls.filter((call) => call.startsWith('create '))).toEqual([`create ${UID}`]);
  expect(ends(world)).toEqual([]);
  api.delete(api.pods[0] as Pod);
  await expect.poll(() => [api.pods, host.records.list()]).toEqual([[], []]);
  expect(ends(world)).toContain(`delete ${UID}`);
});

test('no-orphan: a machine whose Pod was deleted by force ends when the operator orders it', async () => {
  const world = worldOf();
  const { api, host } = world;
  api.delete(await runMachine(world), 0);
  const desired = JSON.stringify({ ...DESIRED, deletion: { graceSeconds: 5 } });
  api.annotate(api.pods[0] as Pod, { [DESIRED_ANNOTATION]: desired });
  await expect.poll(() => api.pods[0]?.status?.phase).toBe('Failed');
  api.release(api.pods[0] as Pod);
  await expect.poll(() => host.records.list()).toEqual([]);
});

test('no-orphan: a machine without a Pod is removed, once the Node is set up and does not list its VM', async () => {
  const world = worldOf();
  const { api, controller, host, node } = world;
  api.delete(await runMachine(world), 0);
  node.slots = undefined;
  await expect.poll(() => api.pods[0]?.metadata.deletionTimestamp).toBeDefined();
  api.release(api.pods[0] as Pod);
  await expect.poll(() => controller.informer.cache.list()).toEqual([]);
  controller.touchPod(KEY);
  await controller.isUpToDate(world.signal).catch(() => undefined);
  expect(ends(world)).toEqual([]);
  node.slots = 1;
  await expect.poll(() => host.records.list()).toEqual([]);
  expect(ends(world)).toContain(`delete ${UID}`);
});

test('no-lost-disk: a Pod that continues a machine which the host does not have fails, and gets no new machine', async () => {
  const world = worldOf();
  createPod(world, 'Pending', UID);
  await world.controller.start(world.signal, Promise.resolve());
  await expect.poll(() => world.api.pods[0]?.status).toMatchObject({ phase: 'Failed', reason: 'DiskLost' });
  expect([world.driver.calls, world.host.records.list()]).toEqual([[], []]);
});
