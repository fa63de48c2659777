import { expect, test } from 'vitest';
import { SLOTS_MAXIMUM } from '../../api/v1alpha1/names.ts';
import type { Node } from '../../kube/core.ts';
import { nodeVersion } from '../../api/v1alpha1/version.ts';
import type { HostFacts } from './facts.ts';
import {
  HEARTBEAT_MILLISECONDS,
  type HostState,
  newNode,
  type NodeSettings,
  nodeStatus,
  statusDiffers,
} from './node.ts';

const NOW = Date.parse('2030-01-01T00:00:00Z');
const facts: HostFacts = {
  architecture: 'amd64',
  system: {
    architecture: 'amd64',
    operatingSystem: 'linux',
    osImage: '',
    kernelVersion: '6.1',
    kubeProxyVersion: '',
    containerRuntimeVersion: 'qemu (kvm)',
    machineID: 'm',
    systemUUID: 'm',
    bootID: 'b',
  },
  cpus: 4,
  memoryBytes: 2 ** 33,
  diskBytes: 2 ** 40,
};
const state: HostState = {
  kubeletPort: 10_250,
  images: [
    { names: ['registry.example/guest:1'], sizeBytes: 1024 },
    { names: ['berth.dev/platform-default/shared@sha256:0'], sizeBytes: 0 },
  ],
  nat: { healthy: true, message: '' },
  diskPressure: false,
  emulators: { kind: 'none', message: 'none here' },
  heldImageBytes: 1024,
};

const config: NodeSettings = {
  nodeName: 'mac1',
  address: '192.0.2.1',
  tags: [],
  cpuOvercommit: 1,
  offered: {},
  reserved: { cpu: 0, memory: 0 },
  images: { minimumFree: 2 * 2 ** 30 },
};

function status(change: Partial<HostState>, current: Node | undefined, now: number) {
  const time = new Date(now).toISOString();
  return nodeStatus({ config, facts, state: { ...state, ...change }, current, now: time });
}

/** Returns the Node as the API server returns it, without empty values. */
function given(): Node {
  const node = {
    apiVersion: 'v1',
    kind: 'Node',
    ...newNode(config, facts, state, new Date(NOW).toISOString()),
  };
  const text = JSON.stringify(node, (key, value: unknown) =>
    value === '' || (key === 'sizeBytes' && value === 0) ? undefined : value,
  );
  return JSON.parse(text) as Node;
}

test('a status is written again when it differs or its heartbeat is old, and not before', () => {
  const node = given();
  const differs = (change: Partial<HostState>, after: number): boolean =>
    statusDiffers(node, status(change, node, NOW + after), NOW + after);
  expect(differs({}, HEARTBEAT_MILLISECONDS - 1)).toBe(false);
  expect(differs({}, HEARTBEAT_MILLISECONDS)).toBe(true);
  expect(differs({ diskPressure: true }, 0)).toBe(true);
  expect(differs({ images: [] }, 0)).toBe(true);
});

/** The control plane ignores a Lease whose time goes backwards, and calls the host unreachable after 50 s. */
test('a status is written again when the clock of the host was set back', () => {
  const node = given();
  for (const back of [1_000, 60_000, 24 * 3_600_000]) {
    expect(statusDiffers(node, status({}, node, NOW - back), NOW - back)).toBe(true);
  }
});

test('the disk is offered without what is to stay free and the images that somebody holds, and never less than nothing', () => {
  const offered = (heldImageBytes: number) => status({ heldImageBytes }, undefined, NOW);
  const gib = 2 ** 30;
  const { capacity, allocatable } = offered(30 * gib);
  expect(capacity).toMatchObject({ 'ephemeral-storage': '1Ti' });
  // 2Gi of the disk stay free for `minimumFree`.
  expect(allocatable).toMatchObject({ 'ephemeral-storage': `${1024 - 2 - 30}Gi` });
  expect(offered(1023 * gib).allocatable).toMatchObject({ 'ephemeral-storage': '0' });
});

test('a host whose machines use all its processors and memory has room for ten tasks', () => {
  const { capacity, allocatable } = status({}, undefined, NOW);
  expect([capacity?.['cpu'], allocatable?.['cpu']]).toEqual(['4', '4100m']);
  expect([capacity?.['memory'], allocatable?.['memory']]).toEqual(['8Gi', '8352Mi']);
});

test('the Node offers a Pod for each slot that the operator can give it, and more for tasks', () => {
  expect(Number(status({}, undefined, NOW).allocatable?.['pods'])).toBeGreaterThan(SLOTS_MAXIMUM);
});

test('a Node that takes no VMs because of its disk says so in words', () => {
  const { conditions } = status({ diskPressure: true }, undefined, NOW);
  expect(conditions?.find(({ type }) => type === 'DiskPressure')).toMatchObject({
    status: 'True',
    reason: 'DiskNearlyFull',
    message: 'The disk of the host is nearly full, and the host takes no new VMs',
  });
});

test('a Node whose free space is unknown says why it takes no VMs', () => {
  const { conditions } = status({ diskPressure: true, diskFault: 'it does not answer' }, undefined, NOW);
  expect(conditions?.find(({ type }) => type === 'DiskPressure')).toMatchObject({
    status: 'True',
    message: 'it does not answer',
  });
});

test('the Node is never newer than the API server', () => {
  const versionOn = (serverVersion?: string) =>
    status({ serverVersion }, undefined, NOW).nodeInfo?.kubeletVersion;
  expect(versionOn('v1.33.4-gke.1')).toBe(nodeVersion('v1.33.4'));
  expect(versionOn()).toBe(nodeVersion());
});
