import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdirSync, rmSync, writeFileSync } from 'node:fs';
import { createServer, type Server } from 'node:net';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { pino } from 'pino';
import { afterEach, beforeEach, describe, expect, it, onTestFinished, vi } from 'vitest';
import type { EmulatorMachine } from '../../api/v1alpha1/emulatormachine.ts';
import type { Machine } from '../../api/v1alpha1/machine.ts';
import { EmulatorDriver } from '../drivers/emulator/driver.ts';
import { allDrivers, type DriverOfEmulators, type HostDriver } from '../drivers/hostdrivers.ts';
import { QemuDriver } from '../drivers/qemu/driver.ts';
import { hostBootId, identify } from '../processes/process.ts';
import type { PodHost } from './host.ts';
import { newRecord, type Runtime, type MachineStep, type WantedMachine } from './machine.ts';
import { Machines } from './machines.ts';
import { RecordStore } from './records.ts';
import { makeFolder } from '../../test/support/folder.ts';

const UID = '3b6c1a52-8f0e-4d0b-9a53-7e1f2c4d5e6f';
const CLAIM = { slots: 1, cpuMillis: 1000, memoryBytes: 2 ** 28, diskBytes: 0, ports: [] };
const WANTED: WantedMachine = {
  pod: undefined,
  desired: { powerState: 'Running', restartPolicy: 'Never', cpu: 1, memoryBytes: 2 ** 28 },
  desiredHash: 'hash',
  deletion: undefined,
  activeDeadline: undefined,
  graceMilliseconds: 0,
};
/** The end of a process takes milliseconds, and longer on a busy machine. */
const SOON_MILLISECONDS = 15_000;

/** The two drivers, with the names of their files and with the arguments by which the agent finds each machine's process. */
const DRIVERS = {
  qemu: { state: 'state.json', data: 'disk.qcow2', mark: [`guest=berth-${UID}`], keeps: true },
  emulator: { state: 'emulator.json', data: 'avd/disk', mark: ['-id', UID], keeps: false },
};

let directory: string;
let folder: string;
let drivers: Map<string, HostDriver>;
let qemu: QemuDriver;
let emulators: DriverOfEmulators;
let processes: ChildProcess[];
/** Answers in place of the machine's hypervisor. */
let server: Server;
/** Commands that the hypervisor got. */
let asked: string[];

beforeEach(() => {
  directory = makeFolder();
  folder = join(directory, 'machines', UID);
  processes = [];
  const logger = pino({ level: 'silent' });
  const emulator = { dataDirectory: directory, sdk: undefined, program: undefined, logger };
  qemu = new QemuDriver({ dataDirectory: directory, logger });
  drivers = new Map([['qemu', { driver: qemu, accelerators: [] }]]);
  emulators = new EmulatorDriver(emulator);
});

afterEach(async () => {
  for (const driver of allDrivers({ drivers, emulators })) {
    await driver.close();
  }
  processes.forEach((process) => process.kill('SIGKILL'));
  server.close();
});

/** Returns the driver whose machines the test makes. */
function driverNamed(name: keyof typeof DRIVERS): QemuDriver | DriverOfEmulators {
  return name === 'qemu' ? qemu : emulators;
}

/** Makes a machine with a live process and a state file with this content. */
async function machineOf(
  driver: keyof typeof DRIVERS,
  content: string,
): Promise<{ machines: Machines; runtime: Runtime; hasProcess: () => boolean; hasData: () => boolean }> {
  const { state, data, mark } = DRIVERS[driver];
  mkdirSync(join(folder, 'avd'), { recursive: true });
  writeFileSync(join(folder, state), content);
  writeFileSync(join(folder, data), 'data');
  // The shell waits for input that never comes.
  const process = spawn('sh', ['-c', 'read line', ...mark], {
    stdio: ['pipe', 'ignore', 'ignore'],
    detached: true,
  });
  processes.push(process);
  await once(process, 'spawn');
  asked = [];
  server = createServer((socket) =>
    createInterface(socket).on('line', (line) => {
      const { execute, id } = JSON.parse(line) as { execute: string; id: number };
      asked.push(execute);
      const answer = { 'query-status': { status: 'running' }, 'query-chardev': [] }[execute] ?? {};
      socket.write(`${JSON.stringify({ return: answer, id })}\n`);
      if (execute === 'system_powerdown') {
        socket.write('{"event":"SHUTDOWN","data":{"guest":true,"reason":"guest-shutdown"}}\n');
      }
      if (execute === 'quit') {
        process.kill('SIGKILL');
      }
    }),
  );
  server.listen(join(folder, 'qmp.sock'));
  await once(server, 'listening');
  const host = {
    records: new RecordStore(join(directory, 'pods')),
    drivers,
    emulators,
    machinesDirectory: join(directory, 'machines'),
    network: { name: 'user', detach: async () => undefined },
    images: { release: () => undefined },
    monitor: { faultyChecks: 0 },
    disk: { wish: () => undefined, roomBytes: Number.POSITIVE_INFINITY },
    fenced: () => false,
    logger: pino({ level: 'silent' }),
  } as unknown as PodHost;
  const document =
    driver === 'qemu'
      ? { machine: { vnc: { enabled: false } } as Machine }
      : { machine: undefined, emulator: {} as EmulatorMachine };
  const record = newRecord({ uid: UID, key: 'default/a', driver, claim: CLAIM, ...document });
  Object.assign(record, { created: true, running: true, everRan: true, acknowledged: true, released: false });
  host.records.save(record);
  const machines = new Machines(host, () => undefined);
  return {
    machines,
    runtime: machines.runtime(record),
    hasProcess: () => process.exitCode === null && process.signalCode === null,
    hasData: () => existsSync(join(folder, data)),
  };
}

/** Drives the machine until it needs no further step. Returns the steps. */
async function stabilize(
  machines: Machines,
  runtime: Runtime,
  wanted: WantedMachine,
): Promise<MachineStep['kind'][]> {
  const kinds: MachineStep['kind'][] = [];
  while (kinds.at(-1) !== 'reached' && kinds.length < 10) {
    kinds.push((await machines.drive(runtime, wanted)).step.kind);
    await expect.poll(() => runtime.operation, { timeout: SOON_MILLISECONDS }).toBeUndefined();
  }
  return kinds;
}

describe.each(['qemu', 'emulator'] as const)('a machine of the driver %s', (driver) => {
  it.each([
    ['damaged', '{"version":1,'],
    ['of a newer agent', '{"version":2}'],
    ['empty', ''],
  ])(
    'whose state file is %s fails, and its folder goes with its Pod',
    async (_, content) => {
      const { machines, runtime, hasProcess, hasData } = await machineOf(driver, content);
      expect(await stabilize(machines, runtime, WANTED)).toEqual(['release', 'reached']);
      const { failure } = runtime.record;
      expect(failure?.reason).toBe('RecordDamaged');
      // Tenants read the message, and learn no folder of the host.
      expect(failure?.message).toContain(`(${DRIVERS[driver].state}: `);
      expect(failure?.message).not.toContain(folder);
      expect(runtime.record.released).toBe(true);
      await expect.poll(hasProcess).toBe(false);
      expect(asked.includes('system_powerdown')).toBe(driver === 'qemu');
      expect(hasData()).toBe(DRIVERS[driver].keeps);

      const deleted = { ...WANTED, deletion: { deadline: Date.now() } };
      expect(await stabilize(machines, runtime, deleted)).toEqual(['remove', 'reached']);
      expect(existsSync(folder)).toBe(false);
    },
    2 * SOON_MILLISECONDS,
  );

  it(
    'whose state file cannot be read from the disk does not fail, but is removed with its Pod',
    async () => {
      const { machines, runtime, hasProcess, hasData } = await machineOf(driver, '');
      const file = join(folder, DRIVERS[driver].state);
      rmSync(file);
      mkdirSync(file);
      await expect(machines.drive(runtime, WANTED)).rejects.toThrow(file);
      expect(runtime.record.failure).toBeUndefined();
      expect([hasProcess(), hasData()]).toEqual([true, true]);

      const deleted = { ...WANTED, deletion: { deadline: Date.now() } };
      expect(await stabilize(machines, runtime, deleted)).toEqual(['release', 'remove', 'reached']);
      await expect.poll(hasProcess).toBe(false);
      expect(existsSync(folder)).toBe(false);
    },
    2 * SOON_MILLISECONDS,
  );
});

describe.each(['qemu', 'emulator'] as const)('a machine of the driver %s', (driver) => {
  it('whose state file cannot be read for a moment is not stopped without a record of the stop', async () => {
    const { machines, runtime, hasProcess } = await machineOf(driver, '');
    const file = join(folder, DRIVERS[driver].state);
    rmSync(file);
    mkdirSync(file);
    const stopping = driverNamed(driver).stop(runtime.folder, { graceMilliseconds: 0 });
    await expect(stopping).rejects.toThrow(file);
    expect(hasProcess()).toBe(true);
    const deleted = { ...WANTED, deletion: { deadline: Date.now() } };
    expect(await stabilize(machines, runtime, deleted)).toContain('remove');
  });

  it('whose state file is damaged is found without /proc too, and ends before its folder goes', async () => {
    const { runtime, hasProcess } = await machineOf(driver, 'damage');
    // Only macOS has the program that reads the boot id there. The boot id that is read here is remembered.
    await hostBootId();
    vi.spyOn(process, 'platform', 'get').mockReturnValue('darwin');
    onTestFinished(() => void vi.restoreAllMocks());
    await driverNamed(driver).delete(runtime.folder);
    expect(existsSync(folder)).toBe(false);
    await expect.poll(hasProcess).toBe(false);
  });
});

it('a program that only searches for the uid of an emulator is not taken for it', async () => {
  const { runtime } = await machineOf('emulator', 'damage');
  processes.pop()?.kill('SIGKILL');
  const search = spawn('sh', ['-c', 'read line', '-r', UID], {
    stdio: ['pipe', 'ignore', 'ignore'],
    detached: true,
  });
  processes.push(search);
  await once(search, 'spawn');
  await emulators.delete(runtime.folder);
  expect(existsSync(folder)).toBe(false);
  expect([search.exitCode, search.signalCode, search.killed]).toEqual([null, null, false]);
  expect(await identify(search.pid ?? 0)).toBeDefined();
});

it(
  'a damaged note about a copy of the disk does not keep a machine from its removal',
  async () => {
    const { machines, runtime } = await machineOf('qemu', '');
    writeFileSync(join(folder, 'copy.json'), 'damage');
    const deleted = { ...WANTED, deletion: { deadline: Date.now() } };
    expect(await stabilize(machines, runtime, deleted)).toEqual(['release', 'remove', 'reached']);
    expect(existsSync(folder)).toBe(false);
  },
  SOON_MILLISECONDS,
);
