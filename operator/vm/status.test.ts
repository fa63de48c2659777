import { describe, expect, it } from 'vitest';
import { machineDocument } from '../../test/fixtures/machines.ts';
import {
  LAYERS_CONDITION,
  MACHINE_ANNOTATION,
  MACHINE_CONDITION,
  MACHINE_CONTAINER,
  USER_DATA_CONDITION,
  WARM_START_CONDITION,
} from '../../api/v1alpha1/names.ts';
import type { Container, Node, Pod, PodStatus } from '../../kube/core.ts';
import type { Condition } from '../../kube/objects.ts';
import { reachOfNode } from '../host/observe.ts';
import { parseConfig } from '../config/config.ts';
import { gatherFacts } from './facts.ts';
import type { ObservedVM } from './observe.ts';
import { machineStatus, summarize, userDataReady } from './status.ts';
import type { MachineReport } from '../../api/v1alpha1/machine.ts';
import type { VM, VMSpec } from '../../api/v1alpha1/vm.ts';
import type { VMStatus } from '../../api/v1alpha1/vmstatus.ts';
import { buildPod } from './pod.ts';
import { machineReport } from '../podbacked/pod.ts';
import { isUnresolved, resolve } from './resolve.ts';

const RAN = '2030-01-01T00:00:00Z';
const CONTAINER = { name: MACHINE_CONTAINER, image: '', imageID: '', ready: false, restartCount: 0 };

/**
 * Returns the conditions of a VM whose Pod has this status, by their types. `known` contains other observations, for example about its
 * host.
 */
function conditionsOf(status: PodStatus, known: Partial<ObservedVM> = {}) {
  const pod: Pod = {
    apiVersion: 'v1',
    kind: 'Pod',
    metadata: { name: 'x', namespace: 'ci' },
    spec: { nodeName: 'host', containers: [] },
    status,
  };
  const observed = {
    vm: { apiVersion: 'berth.dev/v1alpha1', kind: 'VM', metadata: { name: 'x', namespace: 'ci' }, spec: {} },
    pod,
    ...reachOfNode({ apiVersion: 'v1', kind: 'Node', metadata: { name: 'host' } }),
    successor: undefined,
    hosts: () => [],
    config: parseConfig({}, 'test'),
    now: 0,
    ...known,
  } as unknown as ObservedVM;
  const { conditions = [] } = summarize(observed, gatherFacts(observed), {});
  return new Map(conditions.map((condition) => [condition.type, condition]));
}

/** Returns the conditions of a VM that has run, on a host with this Node. */
function onHost(node: Node | undefined, isGivenUp = false) {
  const containerStatuses = [{ ...CONTAINER, ready: true, state: { running: { startedAt: RAN } } }];
  const reach = node === undefined ? { node, silentSince: Date.parse(RAN), isGivenUp } : reachOfNode(node);
  return conditionsOf(
    { phase: 'Running', containerStatuses },
    { ...reach, now: Date.parse(RAN) + 3_600_000 },
  );
}

/** Returns the condition ImageReady of a VM whose machine waits on its host for this reason. */
function imageReady(reason: string) {
  const waiting = { reason, message: 'as the host says' };
  const containerStatuses = [{ ...CONTAINER, state: { waiting } }];
  return conditionsOf({ phase: 'Pending', containerStatuses }).get('ImageReady');
}

/** Returns the conditions of a running VM whose host reports this about its display. */
function withDisplay(display: unknown) {
  const running = { startedAt: '2030-01-01T00:00:00Z' };
  const containerStatuses = [{ ...CONTAINER, ready: true, state: { running } }];
  const message = JSON.stringify({ display });
  const conditions = [
    { type: MACHINE_CONDITION, status: 'True', reason: 'Running', message } as const,
    { type: 'Ready', status: 'True' } as const,
  ];
  return conditionsOf({ phase: 'Running', containerStatuses, conditions });
}

describe('a VM is Ready, Reconciling or Stalled', () => {
  const again = '2030-01-02T00:00:00Z';
  type Spec = ObservedVM['vm']['spec'];
  const cases: readonly [phase: string, Spec, expected: string][] = [
    ['Running', {}, 'Ready: Running'],
    ['Running', { powerState: 'Stopped' }, 'Reconciling: Stopping'],
    ['Running', { powerState: 'Suspended' }, 'Reconciling: Suspending'],
    ['Running', { restartRequestedAt: again }, 'Reconciling: Restarting'],
    ['Running', { revertRequestedAt: again }, 'Reconciling: Reverting'],
    ['Running', { restartRequestedAt: RAN }, 'Ready: Running'],
    ['Stopping', { powerState: 'Stopped' }, 'Reconciling: Stopping'],
    ['Stopped', { powerState: 'Stopped' }, 'Ready: Stopped'],
    ['Stopped', { powerState: 'Suspended' }, 'Ready: Stopped'],
    ['Stopped', {}, 'Reconciling: Starting'],
    ['Stopped', { powerState: 'Stopped', restartRequestedAt: again }, 'Reconciling: Restarting'],
    ['Suspended', { powerState: 'Suspended' }, 'Ready: Suspended'],
    ['Suspended', {}, 'Reconciling: Resuming'],
    ['Suspended', { powerState: 'Stopped' }, 'Reconciling: Stopping'],
    ['GuestShutdown', {}, 'Stalled: GuestShutdown'],
    ['GuestShutdown', { restartPolicy: 'OnFailure' }, 'Stalled: GuestShutdown'],
    ['GuestShutdown', { restartPolicy: 'Always' }, 'Reconciling: Starting'],
    ['GuestShutdown', { restartRequestedAt: again }, 'Reconciling: Restarting'],
    ['GuestShutdown', { powerState: 'Stopped' }, 'Ready: GuestShutdown'],
  ];

  it.each(cases)('in the machine state %s with spec %j: %s', (reported, spec, expected) => {
    const name = reported === 'GuestShutdown' ? 'Stopped' : reported;
    const isOff = name === 'Stopped' || name === 'Suspended';
    const message = JSON.stringify({ restartedAt: RAN });
    const conditions = [
      { type: MACHINE_CONDITION, status: 'True', reason: reported, message } as const,
      { type: 'Ready', status: 'True' } as const,
    ];
    const state = isOff ? { waiting: { reason: name } } : { running: { startedAt: RAN } };
    const containerStatuses = [{ ...CONTAINER, state }];
    const metadata = { name: 'x', namespace: 'ci', generation: 7 };
    const vm: ObservedVM['vm'] = { apiVersion: 'berth.dev/v1alpha1', kind: 'VM', metadata, spec };
    const found = conditionsOf({ phase: 'Running', containerStatuses, conditions }, { vm });
    const isTrue = ({ type, status }: Condition) =>
      status === 'True' && ['Ready', 'Reconciling', 'Stalled'].includes(type);
    const all = [...found.values()];
    expect(all.filter(isTrue).map(({ type, reason }) => `${type}: ${reason}`)).toEqual([expected]);
    expect(
      all.every(({ observedGeneration, message: text }) => observedGeneration === 7 && text !== ''),
    ).toBe(true);
  });
});

it('a VM is Stalled once its lost host can no longer return with its machine', () => {
  const conditions = [{ type: 'Ready', status: 'Unknown', lastTransitionTime: RAN } as const];
  const silent: Node = { apiVersion: 'v1', kind: 'Node', metadata: { name: 'host' }, status: { conditions } };
  const lost = { status: 'False', reason: 'HostLost' };
  expect(onHost(silent).get('Ready')).toMatchObject(lost);
  expect(onHost(silent).has('Stalled')).toBe(false);
  const removed = onHost(undefined, true);
  expect(removed.get('Ready')).toMatchObject(lost);
  expect(removed.get('Stalled')).toMatchObject({ status: 'True', reason: 'HostLost' });
});

it('Ready says why a VM waits for a host, because lists show no other condition', () => {
  const message = '0/2 nodes are available: 2 Insufficient berth.dev/slot.';
  const refused = { type: 'PodScheduled', status: 'False', reason: 'Unschedulable', message } as const;
  const pod = {
    metadata: { name: 'x' },
    spec: { containers: [] },
    status: { phase: 'Pending', conditions: [refused] },
  } as unknown as Pod;
  const waiting = conditionsOf({}, { pod, startingHosts: () => [], portHolder: () => undefined });
  expect(waiting.get('Ready')).toMatchObject({
    status: 'False',
    reason: 'Unschedulable',
    message: waiting.get('Scheduled')?.message,
  });
  expect(waiting.get('Scheduled')?.message).toBe('No host is free: 2 without a free slot');
});

it('a VM that is placed again waits for its Pod, and does not run, while the host removes its machine', () => {
  const metadata = { name: 'x', namespace: 'ci' };
  const vm = { apiVersion: 'berth.dev/v1alpha1', kind: 'VM', metadata, spec: {}, status: { attempt: 2 } };
  const containerStatuses = [{ ...CONTAINER, state: { waiting: { reason: 'Terminating' } } }];
  const conditions = conditionsOf({ phase: 'Running', containerStatuses }, { vm });
  expect(conditions.get('Ready')).toMatchObject({ status: 'False', reason: 'Pending' });
  expect(conditions.get('Reconciling')).toMatchObject({ status: 'True', reason: 'Pending' });
});

it.each(['ImageFetchFailed', 'ImageFromTheFuture'])('ImageReady reports a wait for %s', (reason) => {
  expect(imageReady(reason)).toMatchObject({ status: 'False', reason, message: 'as the host says' });
});

it.each(['Pulling', 'StartFailed', 'FromTheFuture', 'Image ä'])(
  'ImageReady tells nothing of %s',
  (reason) => {
    expect(imageReady(reason)).toBeUndefined();
  },
);

it('DisplayReady has the reason why the guest lacks its DPI, and Ready does not depend on it', () => {
  const conditions = withDisplay({ ready: false, reason: 'NoDPI', message: 'QEMU is old' });
  expect(conditions.get('DisplayReady')).toMatchObject({
    status: 'False',
    reason: 'NoDPI',
    message: 'QEMU is old',
  });
  expect(conditions.get('Ready')).toMatchObject({ status: 'True' });
});

it('DisplayReady is True once the guest has its display, and absent like WarmStart if the host reports nothing about it', () => {
  const display = { ready: true, reason: 'DisplaySet', message: '' };
  expect(withDisplay(display).get('DisplayReady')).toMatchObject({ status: 'True', reason: 'DisplaySet' });
  expect(withDisplay(undefined).has('DisplayReady')).toBe(false);
  expect(withDisplay({ ready: 'yes' }).has('DisplayReady')).toBe(false);
  expect(withDisplay(undefined).has('WarmStart')).toBe(false);
});

it.each([
  ['WarmStart', 'True', 'Renewed', WARM_START_CONDITION],
  ['WarmStart', 'False', 'KeyDiffers', WARM_START_CONDITION],
  ['LayersMerged', 'False', 'LayersNotMerged', LAYERS_CONDITION],
] as const)(
  '%s is that of the host: with %s and %s the VM is Ready, and neither Reconciling nor Stalled',
  (condition, status, reason, type) => {
    const said = { type, status, reason, message: 'why' } as const;
    const containerStatuses = [{ ...CONTAINER, ready: true, state: { running: { startedAt: RAN } } }];
    const conditions = [said, { type: 'Ready', status: 'True' } as const];
    const found = conditionsOf({ phase: 'Running', containerStatuses, conditions });
    expect(found.get(condition)).toMatchObject({ status, reason, message: 'why' });
    expect(found.get('Ready')?.status).toBe('True');
    expect([found.has('Reconciling'), found.has('Stalled')]).toEqual([false, false]);
  },
);

describe('the condition UserDataReady', () => {
  /** Returns the condition `UserDataReady` as status and reason. `said` is the condition of the Pod. */
  function conditionOf(spec: object, phase: string, said?: { status: string; reason: string }): string {
    const conditions = said === undefined ? [] : [{ type: USER_DATA_CONDITION, message: 'why', ...said }];
    const observed = {
      vm: { spec },
      pod: { spec: {}, status: { phase, conditions } },
    } as unknown as ObservedVM;
    const { status, reason } = userDataReady(observed) ?? { status: 'absent', reason: '' };
    return `${status} ${reason}`.trim();
  }

  const SECRET = { userDataSecretRef: { name: 's', key: 'k' } };

  it.each([
    ['is absent for a VM without user data', {}, 'Running', undefined, 'absent'],
    ['is absent until the host has tried to start the VM', SECRET, 'Pending', undefined, 'absent'],
    [
      'is that of the host',
      SECRET,
      'Pending',
      { status: 'False', reason: 'SecretNotFound' },
      'False SecretNotFound',
    ],
    [
      'has no reason that the API server refuses',
      SECRET,
      'Pending',
      { status: 'True', reason: '9' },
      'True Reported',
    ],
    [
      'is Unknown if the host runs the VM and says nothing',
      { userData: 'x' },
      'Running',
      undefined,
      'Unknown NotReported',
    ],
  ])('UserDataReady %s', (_, spec, phase, said, expected) => {
    expect(conditionOf(spec, phase, said)).toBe(expected);
  });
});

describe('a guest with SSH keys, whose SSH server does not answer', () => {
  const STARTED = Date.parse(RAN);

  /** Returns the condition Ready this many seconds after the start of the machine, whose server was lost after `lostSeconds`. */
  function readyAfter(seconds: number, lostSeconds = 0, type: 'SSH' | 'Port' = 'SSH') {
    const vm = { namespace: 'ci', name: 'x', uid: 'vm' };
    const machine = machineDocument(vm, { readiness: { type, port: 22 } });
    const lastTransitionTime = new Date(STARTED + lostSeconds * 1000).toISOString();
    const status: PodStatus = {
      phase: 'Running',
      containerStatuses: [{ ...CONTAINER, containerID: 'a', state: { running: { startedAt: RAN } } }],
      conditions: [{ type: 'Ready', status: 'False', message: 'No SSH server', lastTransitionTime }],
    };
    const pod: Pod = {
      apiVersion: 'v1',
      kind: 'Pod',
      metadata: { name: 'x', annotations: { [MACHINE_ANNOTATION]: JSON.stringify(machine) } },
      spec: { nodeName: 'host', containers: [] },
      status,
    };
    return conditionsOf(status, { pod, now: STARTED + seconds * 1000 }).get('Ready');
  }

  it('is not ready, and says so in plain words after deployTimeoutSeconds', () => {
    expect(readyAfter(599)).toMatchObject({ status: 'False', reason: 'NotReady', message: 'No SSH server' });
    expect(readyAfter(600)).toMatchObject({
      status: 'False',
      reason: 'NoSSHServer',
      message:
        'No SSH server of the guest has answered on port 22 for 600 s. The VM waits for one, because its guest has SSH keys',
    });
  });

  it('counts from the loss of a server that answered, and only if the VM waits for one', () => {
    expect(readyAfter(700, 200)).toMatchObject({ reason: 'NotReady' });
    expect(readyAfter(800, 200)).toMatchObject({ reason: 'NoSSHServer' });
    expect(readyAfter(800, 0, 'Port')).toMatchObject({ reason: 'NotReady' });
  });
});

describe('the machine in the status', () => {
  const config = parseConfig({}, 'test');
  const REFERENCE = `registry.example:5000/team/fedora:40@sha256:${'a'.repeat(64)}`;

  function statusOf(
    phase: 'Pending' | 'Pulling' | 'Running' | 'Stopped' | 'Terminating',
    {
      spec = {},
      report = {},
      pod: reported = {},
      last,
      inserted = [],
      ...placed
    }: {
      spec?: VMSpec;
      report?: MachineReport;
      pod?: PodStatus;
      last?: VMStatus;
      inserted?: Container[];
      nodeName?: undefined;
    },
  ): Partial<VMStatus> {
    const vm: VM = {
      apiVersion: 'berth.dev/v1alpha1',
      kind: 'VM',
      metadata: { name: 'x', namespace: 'platform-ci', uid: 'vm' },
      spec: { image: REFERENCE, ...spec },
      ...(last && { status: last }),
    };
    const image = () => ({
      metadata: { name: 'ubuntu', namespace: 'platform-default' },
      spec: { source: { registry: { reference: REFERENCE } } },
    });
    const resolved = resolve({
      vm,
      config,
      lookups: { image, credentials: () => undefined },
    } as unknown as ObservedVM);
    if (isUnresolved(resolved)) {
      throw new Error(resolved.message);
    }
    const random = () => '0'.repeat(64);
    const built = buildPod({
      vm,
      resolved,
      attempt: 1,
      avoidedNodes: [],
      isDedicated: false,
      config,
      clusterUid: 'uid',
      random,
    });
    const pod = {
      ...built,
      spec: {
        ...built.spec,
        nodeName: 'host',
        ...placed,
        containers: [...inserted, ...built.spec.containers],
      },
      status: {
        conditions: [{ type: MACHINE_CONDITION, status: 'False', message: JSON.stringify(report) }],
        containerStatuses: [
          { name: MACHINE_CONTAINER, image: '', imageID: '', ready: false, restartCount: 0, state: {} },
        ],
        ...reported,
      },
    } as Pod;
    return machineStatus({ vm, pod } as unknown as ObservedVM, phase);
  }

  it('shows a pull in words for people, and no longer once the VM runs or is deleted', () => {
    const report = { progressPercent: 42 };
    expect(statusOf('Pulling', { report }).progress).toBe('Pulling 42 %');
    const fast = { progressPercent: 42, bytesPerSecond: 79_600_000 };
    expect(statusOf('Pulling', { report: fast }).progress).toBe('Pulling 42 % (80 MB/s)');
    expect(statusOf('Pulling', {}).progress).toBeUndefined();
    expect(statusOf('Running', { report }).progress).toBeUndefined();
    expect(statusOf('Terminating', { report }).progress).toBeUndefined();
  });

  it('shows no value that the API server would refuse, and all others of the host', () => {
    const report = { progressPercent: 101, restartedAt: 'x', revertedAt: '2030-02-31T00:00:00Z' };
    const pod = {
      status: {
        conditions: [{ type: MACHINE_CONDITION, message: JSON.stringify({ ...report, accelerator: 'kvm' }) }],
      },
    } as Pod;
    expect(machineReport(pod)).toEqual({ accelerator: 'kvm' });
    // The second time has the form of `date -Ins`.
    for (const time of ['2030-01-01t00:00:00.123456789+02:00', '2030-01-01T00:00:00,123456789+02:00']) {
      pod.status!.conditions![0]!.message = JSON.stringify({ restartedAt: time });
      expect(machineReport(pod)).toEqual({ restartedAt: time });
    }
  });

  it('shows the size with which the machine runs, also if the VM asks for another', () => {
    const report = { cpu: 1, memoryBytes: 256 * 1024 ** 2 };
    const spec = { cpu: 2, memory: '512Mi' };
    expect(statusOf('Running', { spec, report }).resources).toMatchObject({ cpu: 1, memory: '256Mi' });
    expect(statusOf('Stopped', { spec }).resources).toMatchObject({ cpu: 2, memory: '512Mi' });
  });

  it('keeps the size of the disk while the machine is off', () => {
    const last = { resources: { cpu: 2, memory: '4Gi', diskSize: '8Gi' } };
    expect(statusOf('Stopped', { spec: { diskSize: '1Gi' }, last }).resources?.diskSize).toBe('8Gi');
  });

  it('a VM without a Pod keeps the name of its image', () => {
    const vm = { status: { image: { name: 'team/fedora:40', reference: REFERENCE } } };
    expect(machineStatus({ vm } as unknown as ObservedVM, 'Failed').image).toMatchObject({
      name: 'team/fedora:40',
    });
  });

  it('shows the accelerator that the host reports', () => {
    expect(statusOf('Running', { report: { accelerator: 'kvm' } }).accelerator).toBe('KVM');
    expect(statusOf('Running', {}).accelerator).toBeUndefined();
  });

  it('has a short name of the image beside its reference', () => {
    expect(statusOf('Running', {}).image).toMatchObject({ name: 'team/fedora:40', reference: REFERENCE });
    expect(statusOf('Running', { spec: { image: 'ubuntu' } }).image).toMatchObject({ name: 'ubuntu' });
  });

  it('shows the disk of the running machine, and without a machine the disk that it will have', () => {
    const spec = { diskSize: '20Gi' };
    expect(statusOf('Running', { spec, report: { diskSizeBytes: 2 ** 33 } }).resources?.diskSize).toBe('8Gi');
    expect(statusOf('Running', { spec }).resources?.diskSize).toBe('20Gi');
  });

  it('shows addresses of the guest, and no address of the host', () => {
    const hostIP = '192.0.2.1';
    const at = (...ips: string[]) =>
      statusOf('Running', { pod: { hostIP, podIPs: ips.map((ip) => ({ ip })) } }).addresses;
    expect(at('10.0.0.5')).toEqual(['10.0.0.5']);
    expect(at(hostIP)).toBeUndefined();
  });

  it('shows the reports of the guest agent, with the address from the host first', () => {
    const facts = { addresses: ['172.17.0.1', '10.0.0.2', 'fec0::15'], os: 'Debian', hostName: 'ci' };
    const pod = { hostIP: '192.0.2.1', podIPs: [{ ip: '10.0.0.2' }] };
    expect(statusOf('Running', { report: { guest: facts }, pod })).toMatchObject({
      addresses: ['10.0.0.2', '172.17.0.1', 'fec0::15'],
      guest: { os: 'Debian', hostName: 'ci' },
    });
  });

  it('lists the ports of the machine: its reserved ports, and those that its host chose', () => {
    const spec: VMSpec = { ports: ['8080:80', ':8443', ':53/udp'], os: 'MacOS' };
    const report = { endpoints: [9122, 6200, 21_999, 21_999] };
    expect(statusOf('Running', { spec, report }).endpoints).toEqual([
      { name: '8080-tcp', protocol: 'TCP', hostPort: 8080, guestPort: 80 },
      { name: 'ssh', purpose: 'ssh', protocol: 'TCP', hostPort: 9122, guestPort: 22 },
      { name: 'screen', purpose: 'screen', protocol: 'TCP', hostPort: 6200, guestPort: 5900 },
      { name: '21999-tcp', protocol: 'TCP', hostPort: 21_999, guestPort: 8443 },
      { name: '21999-udp', protocol: 'UDP', hostPort: 21_999, guestPort: 53 },
    ]);
  });

  it('lists no port while the VM has no host, because another VM can hold it', () => {
    expect(
      statusOf('Pending', { spec: { ports: ['8822:22'] }, nodeName: undefined }).endpoints,
    ).toBeUndefined();
  });

  it('lists only the reserved ports until the host reports, and no name twice', () => {
    const reserved = { name: '8822-tcp', purpose: 'ssh', protocol: 'TCP', hostPort: 8822, guestPort: 22 };
    const spec: VMSpec = { ports: ['8822:22', ':80'] };
    for (const report of [{}, { endpoints: [8822] }, { endpoints: [1, 2] }]) {
      expect(statusOf('Running', { spec, report }).endpoints).toEqual([reserved]);
    }
  });

  it.each<[string, VMSpec, (number | undefined)[]]>([
    ['SSH alone for Linux', { os: 'Linux' }, [22]],
    ['SSH and the screen for macOS', { os: 'MacOS' }, [22, 5900]],
    ['nothing if automaticPorts is false', { os: 'MacOS', network: { automaticPorts: false } }, []],
    ['a port for VNC if hostPort asks for it', { os: 'Linux', vnc: { hostPort: true } }, [22, undefined]],
    ['no port for VNC without VNC', { os: 'Linux', vnc: { enabled: false, hostPort: true } }, [22]],
    ['no second port for SSH beside :22', { ports: [':22', ':80'] }, [22, 80]],
    ['no second port for SSH beside 8822:22', { ports: ['8822:22', ':80'] }, [80]],
    [
      'what the list asks for even if automaticPorts is false',
      { ports: [':22'], network: { automaticPorts: false } },
      [22],
    ],
  ])('asks the host for %s', (_, spec, guestPorts) => {
    // The status shows the host ports of a report only if the report has as many as the host was asked for.
    const found = [0, 1, 2, 3].flatMap((count) => {
      const endpoints = Array.from({ length: count }, (_item, index) => 20_000 + index);
      const { endpoints: shown = [] } = statusOf('Running', { spec, report: { endpoints } });
      return shown.filter(({ hostPort }) => hostPort >= 20_000).map(({ guestPort }) => guestPort);
    });
    expect(found).toEqual(guestPorts);
  });

  it('shows the image of the machine, although a webhook has inserted a container before it', () => {
    const inserted = [
      { name: 'proxy', image: 'registry.example/proxy:1', imagePullPolicy: 'Always' as const },
    ];
    expect(statusOf('Running', { inserted }).image?.reference).toBe(REFERENCE);
  });
});
