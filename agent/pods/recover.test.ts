import { cpSync, mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pino } from 'pino';
import { expect, it, onTestFinished } from 'vitest';
import type { Desired } from '../../api/v1alpha1/machine.ts';
import type { MachineState } from '../drivers/driver.ts';
import { readMachineFile } from '../drivers/qemu/state.ts';
import { QemuDriver } from '../drivers/qemu/driver.ts';
import type { Host } from './host.ts';
import { Machines } from './machines.ts';
import { wantedWithoutPod } from './pod.ts';
import { RecordStore } from './records.ts';
import { adoptMachines } from './recover.ts';

/** Path of data folders that agents of earlier commits wrote. Each contains one running machine. */
const FOLDERS = join(import.meta.dirname, '..', '..', 'test', 'fixtures', 'datafolders');
const IMAGE = '/var/lib/berth/images/guest.qcow2';
const RUNNING: MachineState = { kind: 'running', pid: 1, guestStarted: true, paused: false };
const DESIRED: Desired = { power: 'Running', restartPolicy: 'Never', cpu: 1, memoryBytes: 2 ** 28 };

/** Returns a host whose hypervisors run. `called` collects the calls of its parts. */
function hostOf(directory: string, called: unknown[]): Host {
  const machinesDirectory = join(directory, 'machines');
  const logger = pino({ level: 'silent' });
  const driver = new QemuDriver({ dataDirectory: directory, logger });
  driver.inspect = async () => RUNNING;
  const host = {
    records: new RecordStore(join(directory, 'pods')),
    machinesDirectory,
    logger,
    drivers: new Map([[driver.name, { driver, accelerators: [] }]]),
    images: { adopt: (holder: string, path: string) => called.push(['image', holder, path]) },
    network: {
      name: 'user',
      attached: () => [],
      address: () => undefined,
      attach: (uid: string, options: object) => {
        called.push(['network', uid, options]);
        return { kind: 'user', macAddress: '', address: undefined, forwards: [] };
      },
    },
    monitor: { faultyChecks: 0 },
    disk: { wish: () => undefined, roomBytes: 2 ** 40 },
    fenced: () => false,
  };
  return host as unknown as Host;
}

it.each(readdirSync(FOLDERS))('a machine that an agent of %s started runs on', async (commit) => {
  const directory = mkdtempSync(join(tmpdir(), 'berth-recover-'));
  onTestFinished(() => rmSync(directory, { recursive: true }));
  cpSync(join(FOLDERS, commit), directory, { recursive: true });
  const called: unknown[] = [];
  const host = hostOf(directory, called);
  const machines = new Machines(host, () => undefined);
  await adoptMachines(host, machines);

  expect(host.records.damaged).toEqual([]);
  const [record] = host.records.list();
  expect(host.records.list()).toEqual([
    expect.objectContaining({
      key: 'platform-default/x',
      driver: 'qemu',
      running: true,
      everRan: true,
      acknowledged: true,
    }),
  ]);
  const { uid = '', machine, runAs } = record ?? {};
  const { hardware, ports } = machine ?? {};
  expect(called).toEqual([
    ['image', `machine/${uid}`, IMAGE],
    [
      'network',
      uid,
      { macAddress: hardware?.macAddress, ports, running: true, ...(runAs === undefined ? {} : { runAs }) },
    ],
  ]);
  expect(await readMachineFile(join(host.machinesDirectory, uid))).toMatchObject({
    live: true,
    suspended: false,
    base: { path: IMAGE, format: 'qcow2' },
    process: { pid: expect.any(Number) as unknown },
  });
  const wanted = { ...wantedWithoutPod(undefined), desired: DESIRED };
  const progress = await machines.drive(machines.runtime(record!), wanted);
  expect(progress.step).toEqual({ kind: 'settled' });
});
