/**
 * Sizes of VMs. Another cpu or memory of a running VM: the API server counts it first, or the machine keeps its size. Disk: VMs request it
 * from hosts, as the scheduler and quotas count it. Simulated hosts have 1Ti each.
 */
import { afterAll, beforeAll, expect, it } from 'vitest';
import { type Desired, desiredSchema, parseDocument } from '../../api/v1alpha1/machine.ts';
import { DESIRED_ANNOTATION, MACHINE_CONDITION } from '../../api/v1alpha1/names.ts';
import { parseQuantity } from '../../api/v1alpha1/quantity.ts';
import type { Pod } from '../../kube/core.ts';
import { type Cluster, startCluster } from '../../hack/cluster/index.ts';
import { ActingHost } from '../worlds/actinghost.ts';
import { conditionOf, VMs } from '../fixtures/vms.ts';
import { createQuota } from '../support/quota.ts';
import { waitFor } from '../../hack/wait.ts';

const NAMESPACE = 'platform-counted';
const COUNTED = 'platform-counted-disk';
const REQUESTED = 'ephemeral-storage';
/** The host has room for one VM with 4Gi and the 128Mi of its hypervisor, but not for one with 16Gi. */
const QUOTA = { 'requests.memory': '6Gi', 'requests.cpu': '100' };
const MEBIBYTE = 2n ** 20n;
/** Time limit. Quotas are counted again within 5 s, and a refused size is requested again after 10 s. */
const AGAIN = { deadlineMilliseconds: 60_000 };

let cluster: Cluster;
let vms: VMs;
/** VMs of the default namespace, which has no quota. */
let defaults: VMs;
/** Name of a host whose agent is the test, so its machines do exactly as the test says. */
let bare: ActingHost;

beforeAll(async () => {
  cluster = await startCluster({ name: `operator-resize-${process.pid}`, hosts: 1 });
  await cluster.createNamespace(NAMESPACE);
  await quota(QUOTA);
  bare = await ActingHost.join(cluster.client(), 'bare', { slots: 16, architecture: 'amd64' });
  await cluster.startOperator();
  vms = new VMs(cluster, NAMESPACE);
  defaults = new VMs(cluster);
});

afterAll(async () => {
  await bare?.silence();
  await cluster?.stop();
});

function ref(name: string): { namespace: string; name: string } {
  return { namespace: NAMESPACE, name };
}

/** Creates the quota of the namespace, or changes its limits. A quota refuses requests once the controller-manager has counted it. */
async function quota(hard: Record<string, string>): Promise<void> {
  const manifest = JSON.stringify({
    apiVersion: 'v1',
    kind: 'ResourceQuota',
    metadata: { name: 'counted', namespace: NAMESPACE },
    spec: { hard },
  });
  await cluster.kubectl(['apply', '-f', '-'], { input: manifest });
  await waitFor('the quota to be counted', async () => {
    const { stdout } = await cluster.kubectl([
      'get',
      'quota',
      'counted',
      '-n',
      NAMESPACE,
      '-o',
      'jsonpath={.status.hard.requests\\.memory}',
    ]);
    return stdout === hard['requests.memory'];
  });
}

/** Returns the memory that the quota counts, in bytes. */
async function used(): Promise<bigint> {
  const path = 'jsonpath={.status.used.requests\\.memory}';
  const { stdout } = await cluster.kubectl(['get', 'quota', 'counted', '-n', NAMESPACE, '-o', path]);
  return parseQuantity(stdout);
}

async function waitUntilUsed(memory: bigint): Promise<void> {
  await waitFor(`the quota to count ${memory} bytes`, async () => (await used()) === memory, AGAIN);
}

async function runOnBare(name: string, spec: object = {}, reported?: { size: boolean }): Promise<void> {
  await vms.create(name, { placement: { node: 'bare' }, architecture: 'amd64', ...spec });
  await bare.waitForPod(ref(name));
  await bare.run(ref(name), reported);
  await vms.waitForPhase(name, 'Running');
}

function requestsOf(pod: Pod): Record<string, string> {
  return pod.spec.containers[0]?.resources?.requests ?? {};
}

function desiredOf(pod: Pod): Desired {
  return desiredSchema.parse(parseDocument(pod.metadata.annotations?.[DESIRED_ANNOTATION]));
}

async function waitUntilReported(name: string, size: Partial<Desired>): Promise<void> {
  await waitFor(`the host to be told ${JSON.stringify(size)}`, async () => {
    const desired = desiredOf(await vms.pod(name));
    return Object.entries(size).every(([field, value]) => desired[field as keyof Desired] === value);
  });
}

it('a size within the quota is counted there and told to the host; the VM has RestartRequired until its machine has it', async () => {
  await runOnBare('grows', { cpu: 2, memory: '2Gi' });
  const report = (cpu: number, memoryBytes: number): Promise<void> =>
    bare.setPodCondition(ref('grows'), {
      type: MACHINE_CONDITION,
      status: 'True',
      reason: 'Running',
      message: JSON.stringify({ cpu, memoryBytes }),
    });
  await report(2, 2 ** 31);
  await waitUntilUsed(2176n * MEBIBYTE);
  await vms.patch('grows', { cpu: 4, memory: '4Gi' });
  const { message } = await vms.waitForCondition('grows', 'RestartRequired', {
    status: 'True',
    reason: 'ResourcesChanged',
  });
  expect(message).toBe(
    'The machine runs with cpu 2, memory 2Gi; cpu 4, memory 4Gi takes effect at the next start',
  );
  await waitUntilUsed(4224n * MEBIBYTE);
  const { spec, status: podStatus } = await vms.pod('grows');
  expect(spec.containers[0]?.resources?.requests).toMatchObject({ cpu: '4', memory: '4224Mi' });
  expect(spec.containers[0]?.resources?.limits).toEqual(spec.containers[0]?.resources?.requests);
  expect(podStatus).toMatchObject({ qosClass: 'Guaranteed' });
  await waitUntilReported('grows', { cpu: 4, memoryBytes: 2 ** 32 });
  await report(4, 2 ** 32);
  const { status } = await vms.waitForVM(
    'grows',
    'RestartRequired to be gone',
    (vm) => conditionOf(vm, 'RestartRequired') === undefined,
  );
  expect(status?.resources).toMatchObject({ cpu: 4, memory: '4Gi' });
});

it('a larger disk waits for the next start too; until then the status shows the disk of the machine', async () => {
  const report = (diskSizeBytes: number): Promise<void> => {
    const message = JSON.stringify({ cpu: 4, memoryBytes: 2 ** 32, diskSizeBytes });
    const condition = { type: MACHINE_CONDITION, status: 'True', reason: 'Running', message } as const;
    return bare.setPodCondition(ref('grows'), condition);
  };
  await report(2 ** 33);
  await vms.patch('grows', { diskSize: '10Gi' });
  const { message } = await vms.waitForCondition('grows', 'RestartRequired', { reason: 'ResourcesChanged' });
  expect(message).toBe('The machine runs with diskSize 8Gi; diskSize 10Gi takes effect at the next start');
  expect((await vms.get('grows')).status?.resources).toMatchObject({ diskSize: '8Gi' });
  await report(10 * 2 ** 30);
  const { status } = await vms.waitForVM(
    'grows',
    'RestartRequired to be gone',
    (vm) => conditionOf(vm, 'RestartRequired') === undefined,
  );
  expect(status?.resources).toMatchObject({ diskSize: '10Gi' });
});

it('a size past the quota is refused in the words of the server, is not told to the host, and is applied once there is room', async () => {
  await vms.patch('grows', { memory: '16Gi', powerState: 'Stopped' });
  const { message } = await vms.waitForCondition('grows', 'RestartRequired', {
    status: 'True',
    reason: 'ResizeRefused',
  });
  expect(message).toContain('keeps cpu 4, memory 4Gi at every start, because cpu 4, memory 16Gi was refused');
  expect(message).toContain('exceeded quota: counted');
  expect(message).toContain('limited: requests.memory=6Gi');
  // The other requested changes of the VM are applied.
  await waitUntilReported('grows', { powerState: 'Stopped', memoryBytes: 2 ** 32 });
  expect(requestsOf(await vms.pod('grows'))).toMatchObject({ memory: '4224Mi' });
  expect(await used()).toBe(4224n * MEBIBYTE);
  await quota({ ...QUOTA, 'requests.memory': '20Gi' });
  await waitFor(
    'the size to be taken',
    async () => requestsOf(await vms.pod('grows'))['memory'] === '16512Mi',
    AGAIN,
  );
  await waitUntilReported('grows', { memoryBytes: 2 ** 34 });
  await vms.delete('grows');
  await bare.end(ref('grows'));
  await vms.waitUntilGone('grows');
});

it('a smaller size is taken, also as the limit', async () => {
  await runOnBare('shrinks', { cpu: 2, memory: '2Gi' });
  await vms.patch('shrinks', { cpu: 1, memory: '1Gi' });
  await waitUntilReported('shrinks', { cpu: 1, memoryBytes: 2 ** 30 });
  const [container] = (await vms.pod('shrinks')).spec.containers;
  expect(container?.resources?.limits).toMatchObject({ cpu: '1', memory: '1152Mi' });
  await vms.delete('shrinks');
  await bare.end(ref('shrinks'));
});

it('a size that no host of its kind has is refused in the words of the server', async () => {
  await quota({ ...QUOTA, 'requests.memory': '4Ti' });
  await runOnBare('vast', { cpu: 2, memory: '2Gi' });
  await vms.patch('vast', { memory: '640Gi' });
  const { message } = await vms.waitForCondition('vast', 'RestartRequired', { reason: 'ResizeRefused' });
  expect(message).toContain("node didn't have enough allocatable resources: memory");
});

it('a host whose agent does not report cpu and memory gets no other size', async () => {
  await runOnBare('old', { cpu: 2, memory: '2Gi' }, { size: false });
  await vms.patch('old', { cpu: 3 });
  const { message } = await vms.waitForCondition('old', 'RestartRequired', { reason: 'ResizeRefused' });
  expect(message).toContain('Pod running on node without support for resize');
  expect(desiredOf(await vms.pod('old')).cpu).toBe(2);
});

it('a size that does not fit on its own host is refused in the words of the host', async () => {
  await runOnBare('crowded', { cpu: 2, memory: '2Gi' });
  const pending = (reason: string, message: string): Promise<void> =>
    bare.setPodCondition(ref('crowded'), { type: 'PodResizePending', status: 'True', reason, message });
  await vms.patch('crowded', { cpu: 3 });
  await waitUntilReported('crowded', { cpu: 3 });
  await pending('Deferred', 'The Pod requests 3000m of CPU, and the host has only 500m of 8000m left');
  const deferred = await vms.waitForCondition('crowded', 'RestartRequired', { reason: 'ResizeDeferred' });
  expect(deferred.message).toContain(
    'The Pod requests 3000m of CPU, and the host has only 500m of 8000m left',
  );
  await pending('Infeasible', 'The Pod requests 3000m of CPU, and the host has only 2000m of 2000m left');
  await vms.waitForCondition('crowded', 'RestartRequired', { reason: 'ResizeRefused' });
});

it('a simulated host takes another size at once, so that a smaller one frees its room', async () => {
  await quota({ ...QUOTA, 'requests.memory': '4Ti' });
  const before = await used();
  await vms.create('simulated', { architecture: 'arm64', memory: '8Gi' });
  await vms.waitForPhase('simulated', 'Running');
  await waitUntilUsed(before + 8320n * MEBIBYTE);
  await vms.patch('simulated', { memory: '1Gi' });
  await waitUntilUsed(before + 1152n * MEBIBYTE);
  const { status } = await vms.pod('simulated');
  expect(status?.containerStatuses?.[0]).toMatchObject({
    state: { running: {} },
    allocatedResources: { memory: '1152Mi' },
    resources: { requests: { memory: '1152Mi' } },
  });
});

async function requestOf(name: string, of = defaults): Promise<string | undefined> {
  const { spec } = await of.pod(name);
  return spec.containers[0]?.resources?.requests?.[REQUESTED];
}

it('a VM whose disk fits on no host stays Pending with a reason until there is room', async () => {
  // The simulated host is the only one for ARM.
  await defaults.create('large', { architecture: 'arm64', diskSize: '4Ti' });
  await defaults.waitForPhase('large', 'Running');
  await defaults.create('larger', { architecture: 'arm64', diskSize: '3Ti' });
  const condition = { status: 'False', reason: 'Unschedulable' } as const;
  const { message } = await defaults.waitForCondition('larger', 'Scheduled', condition);
  expect((await defaults.get('larger')).status?.phase).toBe('Pending');
  expect(message).toContain('No host is free: 1 short of disk (ephemeral-storage)');
  await defaults.delete('large');
  await defaults.waitForPhase('larger', 'Running');
});

it('a VM of unknown size requests a share of the default size, and runs beside a large VM if that fits', async () => {
  await defaults.create('plain', { architecture: 'arm64' });
  await defaults.waitForPhase('plain', 'Running');
  expect(await requestOf('plain')).toBe('2Gi');
});

it('a larger disk is counted from the next Pod on', async () => {
  await defaults.patch('plain', { diskSize: '100Gi' });
  await defaults.waitForVM('plain', 'its new size', ({ status }) => status?.resources?.diskSize === '100Gi');
  expect(await requestOf('plain')).toBe('2Gi');
  await defaults.create('unbound', { placement: { node: 'nowhere' } });
  await defaults.waitForCondition('unbound', 'Scheduled', { status: 'False', reason: 'Unschedulable' });
  await defaults.patch('unbound', { diskSize: '100Gi' });
  await defaults.waitForVM(
    'unbound',
    'its new size',
    ({ status }) => status?.resources?.diskSize === '100Gi',
  );
  expect(await requestOf('unbound')).toBe('2Gi');
  const first = (await defaults.pod('unbound')).metadata.uid;
  await defaults.deletePod('unbound');
  await waitFor('the next Pod', async () => (await defaults.pod('unbound')).metadata.uid !== first);
  expect(await requestOf('unbound')).toBe('20Gi');
});

it('a quota counts the disk', async () => {
  await cluster.createNamespace(COUNTED);
  await createQuota(cluster, { namespace: COUNTED, name: 'disk' }, `requests.${REQUESTED}=10Gi`);
  const counted = new VMs(cluster, COUNTED);
  await counted.create('large', { diskSize: '100Gi' });
  const { message } = await counted.waitForCondition('large', 'Scheduled', { reason: 'PodRefused' });
  expect(message).toContain(`requested: requests.${REQUESTED}=20Gi`);
});
