import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, it, vi } from 'vitest';
import type { Desired, Machine } from '../../api/v1alpha1/machine.ts';
import { ReasonedError } from '../../api/v1alpha1/reasons.ts';
import type { Pod } from '../../kube/core.ts';
import type { EventText } from '../../kube/events.ts';
import type { KubeObject } from '../../kube/objects.ts';
import { WarmStartRefused } from '../drivers/driver.ts';
import { driverOf, driverOfVM } from '../drivers/hostdrivers.ts';
import { nameOfISO } from '../images/local/catalog.ts';
import { consequenceOf } from './failure.ts';
import type { PodHost } from './host.ts';
import { newRecord, newRuntime, type MachineOperation } from './machine.ts';
import { plan, type Situation } from './plan.ts';
import { RecordStore } from './records.ts';
import { meanSpeed, STEPS } from './steps.ts';
import { makeFolder } from '../../test/support/folder.ts';

const CLAIM = { slots: 1, cpuMillis: 1000, memoryBytes: 2 ** 28, diskBytes: 0, ports: [] };
const VM = { namespace: 'platform-ci', name: 'x', uid: 'vm' };
const NETWORK = { kind: 'user', address: undefined };

/** Returns a host whose parts do nothing. `told` collects the kind, name and words of its Events. */
function hostOf(directory: string, reported: string[]): PodHost {
  const driver = {
    create: ({ path }: { path: string }) => mkdirSync(path),
    start: () => undefined,
    inspect: () => ({ kind: 'running', accelerator: 'tcg' }),
    suspend: () => undefined,
  };
  const host = {
    records: new RecordStore(directory),
    drivers: new Map([['qemu', { driver, accelerators: [{ architecture: 'amd64', accelerator: 'kvm' }] }]]),
    images: {
      ensure: async () => ({ digest: 'sha256:0', virtualSizeBytes: 2 ** 30 }),
      cloned: () => undefined,
      release: () => undefined,
    },
    network: { attach: () => NETWORK, address: () => undefined, isUsable: async () => true },
    ports: { vnc: '6000-6000' },
    boundPods: () => [],
    forwardAddress: '192.0.2.1',
    vncPassword: async () => 'aB3-_x9z',
    monitor: { checkOf: () => ({ healthy: true, faults: [], machines: {} }) },
    disk: { startsAnew: () => undefined },
    event: ({ kind, metadata }: KubeObject, { reason, message }: EventText<string>) =>
      reported.push(`${kind} ${metadata.name} ${reason}: ${message.replace(/\d+\.\d/, 'N')}`),
  };
  return host as unknown as PodHost;
}

/** Returns a new VM machine on a host whose parts do nothing. `told` collects what {@link hostOf} collects. */
function newVm(reported: string[] = []) {
  const directory = makeFolder();
  const machine = {
    vm: VM,
    architecture: 'amd64',
    image: { type: 'http', url: 'https://images.example/a.qcow2', sha256: '0' },
    hardware: { macAddress: '' },
    ports: [],
    automaticPorts: [{ purpose: 'vnc', protocol: 'TCP', guestPort: 0 }],
    sshAuthorizedKeys: [],
  } as unknown as Machine;
  const record = newRecord({ uid: 'pod', key: 'platform-ci/x', driver: 'qemu', machine, claim: CLAIM });
  const operation = {
    pod: {
      apiVersion: 'v1',
      kind: 'Pod',
      metadata: { name: 'x', namespace: 'platform-ci' },
      spec: {},
    } as Pod,
    desired: { powerState: 'Running', restartPolicy: 'Never', cpu: 1, memoryBytes: 2 ** 28 },
    abort: new AbortController(),
    changed: () => undefined,
  } as unknown as MachineOperation;
  return { host: hostOf(directory, reported), record, operation, runtime: newRuntime(record, directory) };
}

it('tells the VM how its machine was made and started, leaves to the operator what the Pod shows, and keeps the slot of a start', async () => {
  const reported: string[] = [];
  const { host, record, operation, runtime } = newVm(reported);
  await STEPS.create(host, runtime, operation);
  // The operator creates a deleted Secret again only before the machine is created.
  host.vncPassword = () => expect.unreachable();
  const started = STEPS.start(host, runtime, operation);
  // A Pod that is deleted now must not free the slot of a machine that is about to run.
  expect(record.released).toBe(false);
  await started;
  await STEPS.suspend(host, runtime, operation);
  expect(record.startedWith).toEqual({ cpu: 1, memoryBytes: 2 ** 27, diskSizeBytes: 2 ** 30 });
  expect(reported).toEqual([
    'VM x Pulling: The host is fetching https://images.example/a.qcow2',
    'VM x Pulled: The image is on the host as sha256:0 after N s',
    'VM x Cloned: The host cloned the image in N s',
    'VM x Started: The machine runs with TCG',
    'Pod x Suspended: The machine is suspended to disk',
  ]);
});

it('records why a machine does not start from the memory before it boots, because the agent can die just behind the start', async () => {
  const { host, record, operation, runtime } = newVm();
  await STEPS.create(host, runtime, operation);
  const memory = { ram: '', state: '', cpu: 1, memoryBytes: 1, key: '', savedAt: '' };
  host.records.update(record, { base: { path: '', digest: '', format: 'raw', virtualSizeBytes: 1, memory } });
  const driver = driverOfVM(host, record);
  driver.startFromMemory = async () =>
    await Promise.reject(new WarmStartRefused('KeyDiffers', 'The processor differs'));
  const recorded: unknown[] = [];
  driver.start = async () => void recorded.push(record.warmStart);
  await STEPS.start(host, runtime, operation);
  expect(recorded).toEqual([{ reason: 'KeyDiffers', message: 'The processor differs' }]);
});

it('does not fetch an IPSW on a host that cannot install macOS', async () => {
  const { host, record, operation, runtime } = newVm();
  const image = { type: 'ipsw', url: 'https://images.example/restore.ipsw', sha256: '0' } as const;
  host.records.update(record, { machine: { ...record.machine, image } as Machine });
  const fetch = vi.spyOn(host.images, 'ensure');
  await expect(STEPS.create(host, runtime, operation)).rejects.toMatchObject({ reason: 'NoAppleHost' });
  expect(fetch).not.toHaveBeenCalled();
});

it('tells the VM why its machine was not suspended, because the VM stays Running', async () => {
  const reported: string[] = [];
  const { host, record, operation, runtime } = newVm(reported);
  const fault = new Error('Migration is blocked');
  driverOfVM(host, record).suspend = async () => {
    throw fault;
  };
  await expect(STEPS.suspend(host, runtime, operation)).rejects.toBe(fault);
  expect(reported).toEqual(['VM x SuspendFailed: The machine was not suspended: Migration is blocked']);
});

it('does not ask a hypervisor to suspend a guest that it cannot suspend, and stops it as any other', () => {
  const { record, operation } = newVm();
  Object.assign(record, { created: true, running: true });
  const running = { kind: 'running', pid: 1, guestStarted: true, paused: false } as const;
  const state = { ...running, cannotSuspend: 'only guests with macOS' };
  const next = (powerState: Desired['powerState']) => {
    const desired = { ...operation.desired, powerState };
    return plan({ record, desired, state, fenced: false, graceMilliseconds: 9 } as Situation, 0);
  };
  expect(next('Suspended')).toEqual({ kind: 'wait', until: undefined });
  expect(next('Stopped')).toEqual({ kind: 'stop', graceMilliseconds: 9 });
});

it('counts no stop for a machine that was not suspended, because its emulators would lose their data', async () => {
  const { host, record, operation, runtime } = newVm();
  await STEPS.create(host, runtime, operation);
  await STEPS.start(host, runtime, operation);
  driverOfVM(host, record).suspend = async () => {
    throw new Error('Migration is blocked');
  };
  const suspending = {
    ...operation,
    desired: { ...operation.desired, powerState: 'Suspended' },
  } as MachineOperation;
  await expect(STEPS.suspend(host, runtime, suspending)).rejects.toThrow('Migration is blocked');
  expect(record.stops ?? 0).toBe(0);
});

it('tries again to restart a machine whose guest has shut down, after the start failed', async () => {
  const { host, record, operation, runtime } = newVm();
  await STEPS.create(host, runtime, operation);
  const end = { how: 'GuestShutdown', message: 'The guest powered off', at: 0 } as const;
  host.records.update(record, { everRan: true, end });
  const desired = { ...operation.desired, restartRequestedAt: '1' } as Desired;
  vi.spyOn(driverOf(host, record), 'start').mockRejectedValue(new Error('port 8080 is in use'));
  await expect(STEPS.start(host, runtime, { ...operation, desired })).rejects.toThrow('port 8080');
  const next = () => plan({ record, desired, state: { kind: 'stopped' }, fenced: false } as Situation, 0);
  const step = next();
  // The record first loses the size of the run that failed.
  if (step.kind === 'note') {
    host.records.update(record, step.change);
  }
  expect(next()).toEqual({ kind: 'start' });
});

it('tries again to start a machine that has run while the shared folder of its image is not mounted', async () => {
  const { host, record, operation, runtime } = newVm();
  await STEPS.create(host, runtime, operation);
  const path = join(runtime.folder.path, 'image');
  host.records.update(record, { everRan: true, base: { ...record.base, path } as typeof record.base });
  // QEMU refuses such a start, and the refusal ends the machine.
  const refusal = new ReasonedError('StartFailed', `Could not open '${path}'`);
  const starting = vi.spyOn(driverOf(host, record), 'start').mockRejectedValue(refusal);
  const error: unknown = await STEPS.start(host, runtime, operation).then(
    () => undefined,
    (reason: unknown) => reason,
  );
  const { desired } = operation;
  expect(consequenceOf({ kind: 'start', error, record, desired, attempts: 9, now: 0 })).toMatchObject({
    kind: 'retry',
    message: expect.stringMatching(/^This host cannot read an image of the machine: ENOENT/) as string,
  });
  writeFileSync(path, '');
  starting.mockRestore();
  await STEPS.start(host, runtime, operation);
  expect(record.running).toBe(true);
});

it.each([
  ['storedFile', 'qcow2'],
  ['http', 'raw'],
])('an ISO from the source %s is %s for the guest', async (type, format) => {
  const { host, record, operation, runtime } = newVm();
  const iso = { type, path: 'team/a.qcow2', url: 'https://images.example/a.iso', sha256: '0' };
  host.records.update(record, { machine: { ...record.machine, image: undefined, iso } as Machine });
  host.images.ensure = async () => ({
    path: '/store/iso',
    digest: 'sha256:0',
    virtualSizeBytes: 512,
    format: 'raw',
  });
  const create = vi.spyOn(driverOf(host, record), 'create');
  await STEPS.create(host, runtime, operation);
  expect(create.mock.calls[0]?.[1].guest).toMatchObject({ iso: { path: '/store/iso', format } });
});

it('gives an Image and an ISO of the same name different names in the store, because there each name has one content', async () => {
  const { host, record, operation, runtime } = newVm();
  const name = 'berth.dev/platform-ci/desktop';
  const iso = { type: 'http', url: 'https://images.example/a.iso', sha256: '1' };
  Object.assign(record.machine ?? {}, { imageName: name, isoName: name, iso });
  const names: (string | undefined)[] = [];
  const { ensure } = host.images;
  host.images.ensure = async (source, options) => {
    names.push(options.name);
    return await ensure(source, options);
  };
  await STEPS.create(host, runtime, operation);
  expect(names).toEqual([name, nameOfISO(name)]);
  expect(nameOfISO(name)).not.toBe(name);
});

it('the speed counts the bytes since the first call, and is unknown at first', () => {
  let at = 0;
  const speed = meanSpeed(() => at);
  expect(speed(undefined)).toBeUndefined();
  at = 10_000;
  // An earlier attempt had fetched these bytes.
  expect(speed(5_000_000)).toBeUndefined();
  at = 10_499;
  expect(speed(6_000_000)).toBeUndefined();
  at = 12_000;
  expect(speed(9_000_000)).toBe(2_000_000);
});
