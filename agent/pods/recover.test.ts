import { cpSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { pino } from 'pino';
import { describe, expect, it } from 'vitest';
import type { Desired, Machine, MachinePort } from '../../api/v1alpha1/machine.ts';
import { DESIRED_ANNOTATION, MACHINE_ANNOTATION, MACHINE_CONDITION } from '../../api/v1alpha1/names.ts';
import type { Pod } from '../../kube/core.ts';
import type { MachineState } from '../drivers/driver.ts';
import { QemuDriver } from '../drivers/qemu/driver.ts';
import { readMachineFile } from '../drivers/qemu/state.ts';
import type { PodHost } from './host.ts';
import type { MachineRecord } from './machine.ts';
import { Machines } from './machines.ts';
import { wantedWithoutPod } from './pod.ts';
import { RecordStore } from './records.ts';
import { adoptDamaged, adoptMachines } from './recover.ts';
import { makeFolder } from '../../test/support/folder.ts';

/** Data folder of an agent with one running machine. */
const FOLDER = join(import.meta.dirname, '..', '..', 'test', 'fixtures', 'datafolder');
const IMAGE = '/var/lib/berth/images/guest.qcow2';
const RUNNING: MachineState = { kind: 'running', pid: 1, guestStarted: true, paused: false };
const DESIRED: Desired = { powerState: 'Running', restartPolicy: 'Never', cpu: 1, memoryBytes: 2 ** 28 };

/** Returns a host whose hypervisors run. `called` collects the calls of its parts. */
function hostOf(directory: string, called: unknown[]): PodHost {
  const machinesDirectory = join(directory, 'machines');
  const logger = pino({ level: 'silent' });
  const driver = new QemuDriver({ dataDirectory: directory, logger });
  driver.inspect = async () => RUNNING;
  const host = {
    records: new RecordStore(join(directory, 'pods')),
    machinesDirectory,
    logger,
    drivers: new Map([[driver.name, { driver, accelerators: [] }]]),
    emulators: { list: async () => [] },
    images: { adopt: (holder: string, path: string) => called.push(['image', holder, path]) },
    network: {
      name: 'user',
      attached: () => [],
      address: () => undefined,
      attach: (uid: string, options: object) => {
        called.push(['network', uid, options]);
        return { kind: 'user', macAddress: '', address: undefined, hostAddress: '127.0.0.1', ports: [] };
      },
    },
    monitor: { faultyChecks: 0 },
    disk: { wish: () => undefined, roomBytes: 2 ** 40 },
    fenced: () => false,
    ports: { automatic: '20000-20999', ssh: '8000-8999', screen: '5900-5999', vnc: '5900-5999' },
  };
  return host as unknown as PodHost;
}

it('a machine that the agent started before runs on', async () => {
  const directory = makeFolder();
  cpSync(FOLDER, directory, { recursive: true });
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
  expect(progress.step).toEqual({ kind: 'reached' });
});

it('a machine that was found running and then crashed is not taken for one that ended with its host', async () => {
  const directory = makeFolder();
  cpSync(FOLDER, directory, { recursive: true });
  const host = hostOf(directory, []);
  const machines = new Machines(host, () => undefined);
  await adoptMachines(host, machines);
  // While the API server does not answer, the agent does not drive machines.
  const { driver } = host.drivers.get('qemu')!;
  driver.inspect = async () => ({ kind: 'exited', reason: 'Crashed', message: 'x' });
  const [record] = host.records.list();
  await machines.drive(machines.runtime(record!), { ...wantedWithoutPod(undefined), desired: DESIRED });
  expect(record?.end?.how).toBe('Crashed');
});

it('a machine whose record is missing keeps its image, because its disk may stay', async () => {
  const directory = makeFolder();
  cpSync(FOLDER, directory, { recursive: true });
  rmSync(join(directory, 'pods'), { recursive: true });
  const [uid] = readdirSync(join(directory, 'machines'));
  const called: unknown[] = [];
  const host = hostOf(directory, called);
  await adoptMachines(host, new Machines(host, () => undefined));
  expect(called).toEqual([['image', `machine/${uid}`, IMAGE]]);
});

describe('a machine whose record is damaged', () => {
  const automaticPorts: Machine['automaticPorts'] = [
    { purpose: 'ssh', protocol: 'TCP', guestPort: 22 },
    { protocol: 'UDP', guestPort: 53 },
  ];

  function chosen(hostPort: number, protocol: 'TCP' | 'UDP', guestPort: number): MachinePort {
    return { protocol, hostPort, guestPort, automatic: true };
  }

  /** Returns the new record of a damaged machine whose Pod has this report. Another machine of the host has the ports 8998 and 8999. */
  async function adopted(message: string): Promise<MachineRecord | undefined> {
    const directory = makeFolder();
    cpSync(FOLDER, directory, { recursive: true });
    const { records } = hostOf(directory, []);
    const other = records.list()[0]!;
    const claim = { ...other.claim, ports: [{ hostPort: 8998, protocol: 'TCP' as const }] };
    records.update(other, { claim, automaticPorts: [chosen(8999, 'TCP', 22)] });
    writeFileSync(join(directory, 'pods', 'a.json'), 'damage');
    const pod: Pod = {
      apiVersion: 'v1',
      kind: 'Pod',
      metadata: {
        name: 'a',
        namespace: 'platform-default',
        uid: 'a',
        annotations: {
          [MACHINE_ANNOTATION]: JSON.stringify({ ...other.machine, automaticPorts }),
          [DESIRED_ANNOTATION]: JSON.stringify(DESIRED),
        },
      },
      spec: { containers: [] },
      status: { conditions: [{ type: MACHINE_CONDITION, status: 'True', message }] },
    };
    const host = hostOf(directory, []);
    await adoptDamaged(host, [pod]);
    expect(host.records.get('a')?.failure?.reason).toBe('RecordDamaged');
    return host.records.get('a');
  }

  it('keeps the ports that the host chose, as its Pod has them', async () => {
    expect((await adopted('{"endpoints":[8900,20500]}'))?.automaticPorts).toEqual([
      chosen(8900, 'TCP', 22),
      chosen(20500, 'UDP', 53),
    ]);
  });

  it.each([
    ['is no report', 'x'],
    ['has no ports', '{}'],
    ['has fewer ports', '{"endpoints":[8900]}'],
    ['has more ports', '{"endpoints":[8900,20500,20501]}'],
    ['has a port outside its range', '{"endpoints":[22,20500]}'],
    ['has a port that another machine was given', '{"endpoints":[8999,20500]}'],
    ['has a port that another machine reserves', '{"endpoints":[8998,20500]}'],
  ])('has no such ports if the text in its Pod %s', async (_, message) => {
    expect((await adopted(message))?.automaticPorts).toEqual([]);
  });
});
