import { expect, it } from 'vitest';
import { MACHINE_CONDITION, MACHINE_CONTAINER } from '../../api/v1alpha1/names.ts';
import type { MachineReport } from '../../api/v1alpha1/machine.ts';
import type { VM, VMSpec } from '../../api/v1alpha1/vm.ts';
import type { VMStatus } from '../../api/v1alpha1/vmstatus.ts';
import type { Pod, PodStatus } from '../../kube/core.ts';
import { parseConfig } from '../config/config.ts';
import { machineStatus } from './machinestatus.ts';
import type { Observed } from './observe.ts';
import { buildPod } from './pod.ts';
import { isUnresolved, resolve } from './resolve.ts';

const config = parseConfig({}, 'test');
const REFERENCE = `registry.example:5000/team/fedora:40@sha256:${'a'.repeat(64)}`;

function statusOf(
  phase: 'Pulling' | 'Running' | 'Terminating',
  { spec = {}, report = {}, pod: told = {} }: { spec?: VMSpec; report?: MachineReport; pod?: PodStatus },
): Partial<VMStatus> {
  const vm: VM = {
    apiVersion: 'berth.dev/v1alpha1',
    kind: 'VM',
    metadata: { name: 'x', namespace: 'platform-ci', uid: 'vm' },
    spec: { image: REFERENCE, ...spec },
  };
  const image = () => ({
    metadata: { name: 'ubuntu', namespace: 'platform-default' },
    spec: { source: { registry: { reference: REFERENCE } } },
  });
  const resolved = resolve({ vm, config, lookups: { image } } as unknown as Observed);
  if (isUnresolved(resolved)) {
    throw new Error(resolved.message);
  }
  const random = () => '0'.repeat(64);
  const built = buildPod({ vm, resolved, attempt: 1, avoidedNodes: [], config, clusterUid: 'uid', random });
  const pod = {
    ...built,
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

it('shows a pull in words for people, and nothing of it once the VM runs or is deleted', () => {
  const report = { progressPercent: 42 };
  expect(statusOf('Pulling', { report }).progress).toBe('Pulling 42 %');
  expect(statusOf('Pulling', {}).progress).toBeUndefined();
  expect(statusOf('Terminating', { report }).progress).toBeUndefined();
});

it('shows no number that the API server would refuse, whatever a host reports', () => {
  const { progress, progressPercent } = statusOf('Pulling', { report: { progressPercent: 101 } });
  expect([progress, progressPercent]).toEqual([undefined, undefined]);
});

it('shows the accelerator that the host reports', () => {
  expect(statusOf('Running', { report: { accelerator: 'kvm' } }).accelerator).toBe('KVM');
  expect(statusOf('Running', {}).accelerator).toBeUndefined();
});

it('has a short name of the image beside its reference', () => {
  expect(statusOf('Running', {}).image).toMatchObject({ name: 'team/fedora:40', reference: REFERENCE });
  expect(statusOf('Running', { spec: { image: 'ubuntu' } }).image).toMatchObject({ name: 'ubuntu' });
});

it('shows the disk that the running machine has, and without a machine the disk that it will have', () => {
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
