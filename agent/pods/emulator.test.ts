/** Tests what the agent does differently for emulators: their documents, steps, ports and recovery. */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pino } from 'pino';
import { describe, expect, it, onTestFinished, vi } from 'vitest';
import {
  EMULATOR_API_VERSION,
  EMULATOR_MEMORY_OVERHEAD_BYTES,
  type EmulatorMachine,
} from '../../api/v1alpha1/emulatormachine.ts';
import type { Desired, Machine } from '../../api/v1alpha1/machine.ts';
import { DESIRED_ANNOTATION, MACHINE_ANNOTATION, MACHINE_CONDITION } from '../../api/v1alpha1/names.ts';
import { ReasonedError } from '../../api/v1alpha1/reasons.ts';
import type { Pod } from '../../kube/core.ts';
import type { MachineState } from '../drivers/driver.ts';
import { driverOf } from '../drivers/hostdrivers.ts';
import { MachineUsers } from '../processes/users.ts';
import { resizeConditions } from './admission.ts';
import { consequenceOf, failed } from './failure.ts';
import type { PodHost } from './host.ts';
import { type MachineRecord, newRecord, newRuntime, type MachineOperation, type Runtime } from './machine.ts';
import { Machines } from './machines.ts';
import { claimOf, roleOf } from './pod.ts';
import { awaitedPort } from './ports.ts';
import { RecordStore } from './records.ts';
import { adoptDamaged, adoptMachines } from './recover.ts';
import { STEPS } from './steps.ts';

const NAMESPACE = 'platform-ci';
const RUNNING: MachineState = { kind: 'running', pid: 1, guestStarted: true, paused: false };
const GIBIBYTE = 2 ** 30;
const DESIRED: Desired = { powerState: 'Running', restartPolicy: 'Never', cpu: 2, memoryBytes: 4 * GIBIBYTE };
const DOCUMENT: EmulatorMachine = {
  apiVersion: EMULATOR_API_VERSION,
  emulator: { namespace: NAMESPACE, name: 'phone', uid: 'emulator' },
  vm: { namespace: NAMESPACE, name: 'desk', uid: 'vm' },
  platform: 'android-36',
  device: 'pixel_9',
  imageType: 'google_apis',
  exposure: 'PairedVM',
};
const USERS = new MachineUsers({ first: 1_900_000_000, count: 10 });
const NETWORK = { kind: 'namespace', path: '/run/netns/x', address: '10.0.0.16', dnsServer: '10.0.0.1' };

function podOf(document: object, message?: string): Pod {
  const memory = String(DESIRED.memoryBytes + EMULATOR_MEMORY_OVERHEAD_BYTES);
  const requests = { cpu: '2', memory, 'berth.dev/slot': '1' };
  return {
    apiVersion: 'v1',
    kind: 'Pod',
    metadata: {
      name: 'phone.emulator',
      namespace: NAMESPACE,
      uid: 'pod',
      annotations: {
        [MACHINE_ANNOTATION]: JSON.stringify(document),
        [DESIRED_ANNOTATION]: JSON.stringify(DESIRED),
      },
    },
    spec: { containers: [{ name: 'machine', image: 'x', resources: { requests } }] },
    ...(message !== undefined && {
      status: { conditions: [{ type: MACHINE_CONDITION, status: 'True', message }] },
    }),
  };
}

class TestHost {
  readonly directory = mkdtempSync(join(tmpdir(), 'berth-emulator-'));
  /** Calls of the parts of the host, with their arguments. */
  readonly calls: unknown[] = [];
  /** Folders of machines. Both the drivers of VMs and the driver of emulators list them. */
  found: { uid: string }[] = [];
  /** Removes the data of a failed emulator. */
  discard = async (): Promise<void> => void this.calls.push(['discard']);
  /** Whether the VM's machine has a process. */
  vmHasProcess = true;
  /** Number of inspections of the VM's machine. */
  vmInspections = 0;
  readonly host: PodHost;

  constructor() {
    onTestFinished(() => rmSync(this.directory, { recursive: true }));
    this.host = this.agent();
  }

  agent(): PodHost {
    const call =
      <T>(name: string, answer: T) =>
      (...args: unknown[]): T => {
        this.calls.push([name, ...args.slice(1)]);
        return answer;
      };
    const emulators = {
      name: 'emulator',
      create: call('create', undefined),
      start: call('start', undefined),
      stop: call('stop', undefined),
      discard: async () => await this.discard(),
      inspect: async () => RUNNING,
      list: async () => this.found,
    };
    const vms = {
      name: 'qemu',
      hasProcess: async () => this.vmHasProcess,
      inspect: async () => {
        this.vmInspections += 1;
        return RUNNING;
      },
      list: async () => this.found,
    };
    const host = {
      records: new RecordStore(join(this.directory, 'pods')),
      machinesDirectory: join(this.directory, 'machines'),
      architecture: 'amd64',
      drivers: new Map<string, object>([
        ['qemu', { driver: vms, accelerators: [{ architecture: 'amd64', accelerator: 'kvm' }] }],
      ]),
      emulators,
      // Images, seeds and passwords are only for VMs. The host has none of these parts, so their use would be an error.
      images: { adopt: () => undefined },
      network: {
        attachNamespace: async (_: string, options: object) => call('attach', NETWORK)(_, options),
        attached: async () => [],
        attach: () => ({ address: undefined }),
        address: async () => undefined,
        detach: call('detach', undefined),
        isUsable: async () => true,
      },
      ports: { emulators: '5554-5555' },
      users: USERS,
      boundPods: () => [],
      monitor: { checkOf: () => ({ healthy: true, faults: [], machines: {} }) },
      disk: { startsAnew: () => undefined },
      event: ({ kind, metadata }: Pod, { message }: { message: string }) =>
        this.calls.push(['event', `${kind} ${metadata.name}: ${message}`]),
      logger: pino({ level: 'silent' }),
    };
    return host as unknown as PodHost;
  }

  saveVM(change: Partial<MachineRecord> = {}): void {
    const machine = { vm: DOCUMENT.vm, hardware: { macAddress: '' }, ports: [] } as unknown as Machine;
    const claim = { slots: 1, cpuMillis: 0, memoryBytes: 0, diskBytes: 0, ports: [] };
    const record = newRecord({ uid: 'vm-pod', key: `${NAMESPACE}/desk`, driver: 'qemu', machine, claim });
    this.host.records.save({ ...record, running: true, ...change });
  }

  emulator(change: Partial<EmulatorMachine> = {}): Runtime {
    const emulator = { ...DOCUMENT, ...change };
    const key = `${NAMESPACE}/phone.emulator`;
    const claim = claimOf(podOf(emulator));
    const record = newRecord({ uid: 'pod', key, driver: 'emulator', machine: undefined, emulator, claim });
    this.host.records.save(record);
    return newRuntime(record, this.host.machinesDirectory);
  }
}

const OPERATION = {
  pod: undefined,
  desired: DESIRED,
  abort: new AbortController(),
} as unknown as MachineOperation;

describe('the document of an emulator', () => {
  it('makes its Pod a machine', () => {
    expect(roleOf(podOf(DOCUMENT))).toMatchObject({
      kind: 'machine',
      machine: undefined,
      emulator: DOCUMENT,
      desired: DESIRED,
    });
  });

  it.each([
    ['a path', { platform: '../../etc' }],
    ['a line of a configuration file', { device: 'pixel_9\nhw.ramSize=1' }],
    ['an option', { imageType: '-qemu' }],
    ['another exposure', { exposure: 'World' }],
  ])('with %s in it is refused', (_, change) => {
    const [field = ''] = Object.keys(change);
    expect(roleOf(podOf({ ...DOCUMENT, ...change }))).toEqual({
      kind: 'invalid',
      message: expect.stringContaining(`${MACHINE_ANNOTATION} is not valid: ${field}: `),
    });
  });

  it('of a later version is refused as that of a newer operator', () => {
    const version = 'emulator.berth.dev/v2';
    expect(roleOf(podOf({ ...DOCUMENT, apiVersion: version }))).toEqual({ kind: 'tooNew', version });
  });
});

describe('an emulator beside its running VM', () => {
  it('is created without images, and starts in a namespace that the VM reaches', async () => {
    const test = new TestHost();
    test.saveVM();
    const runtime = test.emulator();
    runtime.record.booted = true;
    await STEPS.create(test.host, runtime, OPERATION);
    await STEPS.start(test.host, runtime, OPERATION);
    const guest = { emulator: DOCUMENT };
    const size = { cpu: 2, memoryBytes: 4 * GIBIBYTE };
    const runAs = USERS.choose('pod', new Set());
    expect(test.calls).toEqual([
      ['create', { guest, runAs }, undefined],
      ['attach', { exposedPort: 5555, peer: 'vm-pod', ports: [] }],
      ['start', { guest, runAs, ...size, network: NETWORK }, OPERATION.abort.signal],
      ['event', 'Emulator phone: The process of the emulator is running, and Android is still booting'],
    ]);
    const { record } = runtime;
    expect(record).toMatchObject({ created: true, running: true, booted: false, startedWith: size });
    expect(runtime.address).toBe('10.0.0.16');
    expect(resizeConditions(record, undefined), 'the overhead of an emulator is counted').toEqual([]);
  });

  it('with exposure Host has its port of the host before it is created', async () => {
    const test = new TestHost();
    test.saveVM();
    const runtime = test.emulator({ exposure: 'Host' });
    const create = vi.spyOn(driverOf(test.host, runtime.record), 'create');
    const before = create.mockImplementation(async () => {
      expect(test.host.records.get('pod')?.automaticPorts).toMatchObject([port]);
    });
    const port = { hostPort: 5555, guestPort: 5555, protocol: 'TCP' };
    await STEPS.create(test.host, runtime, OPERATION);
    expect(before).toHaveBeenCalledOnce();
    expect(runtime.record.automaticPorts).toMatchObject([port]);
    await STEPS.start(test.host, runtime, OPERATION);
    expect(test.calls).toContainEqual([
      'attach',
      expect.objectContaining({ ports: [expect.objectContaining(port)] }),
    ]);
    const other = { ...podOf(DOCUMENT), metadata: { uid: 'other', name: 'other', namespace: NAMESPACE } };
    const foreign = { ...other, metadata: { ...other.metadata, namespace: 'platform-else' } };
    const records = test.host.records.list();
    const held = (by: string) => `Port 5555/TCP is held by ${by}, for which this host chose the port`;
    expect(awaitedPort(other, [{ hostPort: 5555, protocol: 'TCP' }], records)).toBe(held('emulator phone'));
    expect(awaitedPort(foreign, [{ hostPort: 5555, protocol: 'TCP' }], records)).toBe(
      held('an emulator of another namespace'),
    );
  });
});

describe('a reason that people can mend', () => {
  it.each([
    ['SystemImageMissing', 'retry'],
    ['NoFreePort', 'retry'],
    ['AccelerationMissing', 'fail'],
  ] as const)('%s of an emulator leads to: %s', (reason, kind) => {
    const { record } = new TestHost().emulator();
    const error = new ReasonedError(reason, 'in words');
    for (const step of ['create', 'start'] as const) {
      const failure = { kind: step, error, record, desired: DESIRED, attempts: 100, now: 0 };
      expect(consequenceOf(failure)).toMatchObject({ kind });
    }
  });
});

describe('an emulator that has failed', () => {
  const RELEASE = {
    ...OPERATION,
    graceMilliseconds: 0,
    hurry: new AbortController(),
    discard: new AbortController(),
  };

  it('counts on its host until its data is gone, and then gives its user back', async () => {
    const test = new TestHost();
    const runtime = test.emulator();
    const { record } = runtime;
    await STEPS.create(test.host, runtime, OPERATION);
    expect(record.runAs).toBeDefined();
    test.host.records.update(record, { released: false, failure: failed('Crashed', 'Power off') });
    runtime.state = { kind: 'exited', reason: 'GuestShutdown', message: '' };
    test.calls.length = 0;
    test.discard = async () => await Promise.reject(new Error('rm did not end'));
    await expect(STEPS.release(test.host, runtime, RELEASE)).rejects.toThrow('rm did not end');
    expect(record).toMatchObject({ released: false, runAs: expect.anything() as object });
    test.discard = async () => void test.calls.push(['discard']);
    await STEPS.release(test.host, runtime, RELEASE);
    expect(test.calls.map((call) => (call as string[])[0])).toEqual(['stop', 'stop', 'discard', 'detach']);
    expect(new RecordStore(join(test.directory, 'pods')).get('pod')).toMatchObject({ released: true });
    expect(record.runAs).toBeUndefined();
  });

  it('for its device has never had a user or a port', async () => {
    const test = new TestHost();
    const runtime = test.emulator({ device: 'x', exposure: 'Host' });
    await expect(STEPS.create(test.host, runtime, OPERATION)).rejects.toMatchObject({
      reason: 'CreateFailed',
    });
    expect(runtime.record).toMatchObject({ runAs: undefined, automaticPorts: [] });
    expect(test.calls).toEqual([]);
  });

  it('keeps its data while it only stops with its Pod', async () => {
    const test = new TestHost();
    const runtime = test.emulator();
    runtime.state = RUNNING;
    await STEPS.release(test.host, runtime, RELEASE);
    expect(test.calls.map((call) => (call as string[])[0])).toEqual(['stop', 'detach']);
  });
});

describe('an emulator whose VM does not run', () => {
  it.each<[name: string, prepare: (test: TestHost) => void]>([
    ['is not on this host', () => undefined],
    ['is stopped', (test) => test.saveVM({ running: false })],
    [
      'has ended unseen',
      (test) => {
        test.saveVM();
        test.vmHasProcess = false;
      },
    ],
  ])('because it %s is not started', async (_, prepare) => {
    const test = new TestHost();
    prepare(test);
    await expect(STEPS.start(test.host, test.emulator(), OPERATION)).rejects.toMatchObject({
      reason: 'VMNotRunning',
      message: 'The emulator is waiting for VM desk, which is not running on this host',
    });
    expect(test.calls).toEqual([]);
  });

  it('is found out without an inspection, which would undo a step of the VM that is under way', async () => {
    const test = new TestHost();
    test.saveVM();
    await STEPS.start(test.host, test.emulator(), OPERATION);
    expect(test.vmInspections).toBe(0);
  });

  it('is tried again every 2 s, as long as its Pod is there', () => {
    const { record } = new TestHost().emulator();
    const error = new ReasonedError('VMNotRunning', 'wait');
    for (const attempts of [1, 4, 100]) {
      const step = { kind: 'start', error, record, desired: DESIRED, attempts, now: 0 } as const;
      expect(consequenceOf(step)).toEqual({ kind: 'retry', afterMilliseconds: 2_000, message: 'wait' });
    }
  });
});

describe('the next agent', () => {
  it('attaches a running emulator again, with its VM as peer, and knows that it has booted', async () => {
    const test = new TestHost();
    test.saveVM();
    const { record } = test.emulator();
    test.host.records.update(record, { created: true, running: true, released: false, booted: true });
    const host = test.agent();
    const machines = new Machines(host, () => undefined);
    await adoptMachines(host, machines);
    expect(test.calls).toEqual([['attach', { exposedPort: 5555, peer: 'vm-pod', ports: [], running: true }]]);
    const found = host.records.get('pod');
    expect(found).toMatchObject({ emulator: DOCUMENT, booted: true });
    expect(machines.runtime(found as MachineRecord)).toMatchObject({ address: '10.0.0.16', state: RUNNING });
  });

  it('takes a damaged record from the Pod, with the port that the host chose', async () => {
    const test = new TestHost();
    writeFileSync(join(test.directory, 'pods', 'pod.json'), 'damage');
    test.found = [{ uid: 'pod' }];
    const host = test.agent();
    await adoptDamaged(host, [podOf({ ...DOCUMENT, exposure: 'Host' }, '{"endpoints":[5554]}')]);
    expect(host.records.get('pod')).toMatchObject({
      driver: 'emulator',
      machine: undefined,
      emulator: { exposure: 'Host' },
      failure: { reason: 'RecordDamaged' },
      automaticPorts: [{ hostPort: 5554, guestPort: 5555 }],
    });
  });
});
