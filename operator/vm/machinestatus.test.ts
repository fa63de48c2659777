import { expect, it } from 'vitest';
import { MACHINE_CONDITION, MACHINE_CONTAINER } from '../../api/v1alpha1/names.ts';
import type { MachineReport } from '../../api/v1alpha1/machine.ts';
import type { VM, VMSpec } from '../../api/v1alpha1/vm.ts';
import type { VMStatus } from '../../api/v1alpha1/vmstatus.ts';
import type { Container, Pod, PodStatus } from '../../kube/core.ts';
import { parseConfig } from '../config/config.ts';
import { machineStatus } from './machinestatus.ts';
import type { Observed } from './observe.ts';
import { buildPod } from './pod.ts';
import { machineReport } from './podstate.ts';
import { isUnresolved, resolve } from './resolve.ts';

const config = parseConfig({}, 'test');
const REFERENCE = `registry.example:5000/team/fedora:40@sha256:${'a'.repeat(64)}`;

function statusOf(
  phase: 'Pulling' | 'Running' | 'Stopped' | 'Terminating',
  {
    spec = {},
    report = {},
    pod: told = {},
    last,
    inserted = [],
  }: { spec?: VMSpec; report?: MachineReport; pod?: PodStatus; last?: VMStatus; inserted?: Container[] },
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
  } as unknown as Observed);
  if (isUnresolved(resolved)) {
    throw new Error(resolved.message);
  }
  const random = () => '0'.repeat(64);
  const built = buildPod({ vm, resolved, attempt: 1, avoidedNodes: [], config, clusterUid: 'uid', random });
  const pod = {
    ...built,
    spec: { ...built.spec, containers: [...inserted, ...built.spec.containers] },
    status: {
      conditions: [{ type: MACHINE_CONDITION, status: 'False', message: JSON.stringify(report) }],
      containerStatuses: [
        { name: MACHINE_CONTAINER, image: '', imageID: '', ready: false, restartCount: 0, state: {} },
      ],
      ...told,
    },
  } as Pod;
  return machineStatus({ vm, pod } as unknown as Observed, phase);
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

it('keeps the size of the disk while the machine is off', () => {
  const last = { resources: { cpu: 2, memory: '4Gi', diskSize: '8Gi' } };
  expect(statusOf('Stopped', { spec: { diskSize: '1Gi' }, last }).resources?.diskSize).toBe('8Gi');
});

it('a VM without a Pod has a name of its image, also in the status of an earlier release', () => {
  const vm = { status: { image: { reference: REFERENCE } } };
  expect(machineStatus({ vm } as unknown as Observed, 'Failed').image).toMatchObject({
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
  const inserted = [{ name: 'proxy', image: 'registry.example/proxy:1', imagePullPolicy: 'Always' as const }];
  expect(statusOf('Running', { inserted }).image?.reference).toBe(REFERENCE);
});
