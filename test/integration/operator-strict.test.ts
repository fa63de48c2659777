/** Clusters with the rules of large providers and of careful administrators. KWOK simulates one host, and the test plays the other. */
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { IMAGES, ISOS } from '../../api/v1alpha1/resources.ts';
import { JOBS } from '../../kube/core.ts';
import type { Condition, KubeObject, Ref } from '../../kube/objects.ts';
import { type Cluster, startCluster } from '../../hack/cluster/index.ts';
import { CacheEntries, rowOf } from '../fixtures/cacheentries.ts';
import { Emulators } from '../fixtures/emulatorobjects.ts';
import { waitForObject } from '../fixtures/objects.ts';
import { createQuota } from '../support/quota.ts';
import { VMs } from '../fixtures/vms.ts';
import { ActingHost } from '../worlds/actinghost.ts';
import { CacheSimulator } from '../worlds/cachesimulator.ts';
import { waitFor } from '../../hack/wait.ts';

/** GKE accepts Pods with a critical priority class only in namespaces with a quota for them. This is the rule of its API servers. */
const ADMISSION = `
apiVersion: apiserver.config.k8s.io/v1
kind: AdmissionConfiguration
plugins:
- name: ResourceQuota
  configuration:
    apiVersion: apiserver.config.k8s.io/v1
    kind: ResourceQuotaConfiguration
    limitedResources:
    - resource: pods
      matchScopes:
      - {scopeName: PriorityClass, operator: In, values: [system-node-critical, system-cluster-critical]}
`;
/** Words with which the API server refuses such a Pod. The status is 500, and there is no reason. */
const NO_QUOTA = 'insufficient quota to match these scopes: [{PriorityClass In [system-node-critical';
/** Time limit until people see why an object waits. This takes 3 s, and several times that on a busy machine. */
const REPORTED = { deadlineMilliseconds: 20_000 };
/** Time limit until an object runs after its obstacle is gone. The Job controller and the operator try again at least once a minute. */
const MENDED = { deadlineMilliseconds: 90_000 };
const TIMEOUT = { timeout: 240_000 };
const SMALL = { cpu: 1, memory: '512Mi', placement: { node: 'host-0' } };
const DIGEST = `sha256:${'a'.repeat(64)}`;
const REPORT = {
  digest: DIGEST,
  reference: `registry.example/team/disk@${DIGEST}`,
  sizeBytes: 2 ** 30,
  storageBytes: 2 ** 20,
};

let cluster: Cluster;
let simulator: CacheSimulator;
let entries: CacheEntries;
/** Host that works on Images and ISOs. The test is its agent. */
let worker: ActingHost;

beforeAll(async () => {
  cluster = await startCluster({ name: `operator-strict-${process.pid}`, hosts: 1, admission: ADMISSION });
  simulator = await CacheSimulator.start(cluster.client());
  entries = new CacheEntries(cluster);
  worker = await ActingHost.join(cluster.client(), 'worker', { architecture: 'amd64', staysReady: true });
  await cluster.startOperator({
    config: { defaults: { architecture: 'arm64' }, osx_node_platform_quota_pod: 16 },
  });
});

afterAll(async () => {
  simulator?.stop();
  await worker?.silence();
  await cluster?.stop();
});

/** Lets a namespace have Pods with a critical priority class, as the documentation says. */
async function allowCritical(namespace: string): Promise<void> {
  const quota = `
apiVersion: v1
kind: ResourceQuota
metadata: {name: berth-critical-pods, namespace: ${namespace}}
spec:
  hard: {pods: "1000"}
  scopeSelector:
    matchExpressions:
    - {scopeName: PriorityClass, operator: In, values: [system-node-critical, system-cluster-critical]}
`;
  await cluster.kubectl(['apply', '-f', '-'], { input: quota });
}

async function forbidCritical(namespace: string): Promise<void> {
  await cluster.kubectl(['delete', 'quota', 'berth-critical-pods', '-n', namespace]);
}

interface WithConditions extends KubeObject {
  status?: { conditions?: Condition[] | undefined; phase?: string | undefined } | undefined;
}

function conditionOf(object: WithConditions, type: string): Condition | undefined {
  return object.status?.conditions?.find((one) => one.type === type);
}

/** Waits until the object has the reason in a condition, and returns the condition's message. */
async function untilReported(
  name: string,
  get: () => Promise<WithConditions>,
  [type, reason]: readonly [string, string],
): Promise<string> {
  const matches = (object: WithConditions) => conditionOf(object, type)?.reason === reason;
  const object = await waitForObject(`${name} to have ${type}/${reason}`, get, matches, REPORTED);
  return conditionOf(object, type)?.message ?? '';
}

/** Creates an Image and an ISO that the worker fetches. */
async function createDisks(namespace: string) {
  const client = cluster.client();
  const metadata = { namespace, name: 'disk' };
  const source = { registry: { reference: 'registry.example/team/disk:1' } };
  await client.create(IMAGES, { metadata, spec: { architecture: 'amd64', source } });
  await client.create(ISOS, { metadata, spec: { architecture: 'amd64', source } });
  return { image: () => client.get(IMAGES, metadata), iso: () => client.get(ISOS, metadata) };
}

/** Does the tasks of all Jobs of the namespace as soon as they have a Pod on the worker. */
async function workOn(namespace: string): Promise<void> {
  const items = await waitFor(`the Jobs of ${namespace}`, async () => {
    const jobs = (await cluster.client().list(JOBS, { namespace })).items;
    return jobs.length === 2 && jobs;
  });
  for (const { metadata } of items) {
    const ref: Ref = { namespace, name: metadata.name };
    const pod = await waitFor(`the Pod of Job ${ref.name}`, () => worker.beginTask(ref), MENDED);
    await worker.finishTask(pod, REPORT);
  }
}

function isRunning({ status }: WithConditions): boolean {
  return status?.phase === 'Running';
}

async function untilRunning(vms: VMs, name: string): Promise<void> {
  await vms.waitForPhase(name, 'Running', undefined, MENDED);
}

describe('where Pods with a critical priority class need a quota', () => {
  const team = 'platform-provider';

  it('a VM, an Image and an ISO tell it, and run by themselves after the quota exists', TIMEOUT, async () => {
    await cluster.createNamespace(team);
    const vms = new VMs(cluster, team);
    await vms.create('desk', SMALL);
    const disks = await createDisks(team);
    const messages = await Promise.all([
      untilReported('VM desk', () => vms.get('desk'), ['Scheduled', 'PodRefused']),
      untilReported('VM desk', () => vms.get('desk'), ['Ready', 'PodRefused']),
      untilReported('Image disk', disks.image, ['Ready', 'PodRefused']),
      untilReported('ISO disk', disks.iso, ['Ready', 'PodRefused']),
    ]);
    for (const message of messages) {
      expect(message).toContain(NO_QUOTA);
    }
    await allowCritical(team);
    await untilRunning(vms, 'desk');
    await workOn(team);
    await waitForObject('the Image', disks.image, ({ status }) => status?.phase === 'Ready');
    await waitForObject('the ISO', disks.iso, ({ status }) => status?.phase === 'Ready');
  });

  it('an Emulator beside a VM tells it, and runs by itself after the quota exists', TIMEOUT, async () => {
    const emulators = new Emulators(cluster, team);
    await forbidCritical(team);
    await emulators.create('desk', { vmName: 'desk', cpu: 1, memory: '2560Mi' });
    const message = await untilReported('Emulator desk', () => emulators.get('desk'), [
      'Scheduled',
      'PodRefused',
    ]);
    expect(message).toContain(NO_QUOTA);
    await allowCritical(team);
    await waitForObject('Emulator desk', () => emulators.get('desk'), isRunning, MENDED);
  });

  it(
    'an ImageCacheEntry tells it in the row of its host, and is cached after the quota exists',
    TIMEOUT,
    async () => {
      await entries.create('guest', {
        reference: 'registry.example/guest:1',
        targets: { nodes: ['host-0'] },
      });
      const row = (entry: Awaited<ReturnType<CacheEntries['get']>>) => rowOf(entry, 'host-0')?.message ?? '';
      const isReported = (entry: Parameters<typeof row>[0]) => row(entry).includes(NO_QUOTA);
      const entry = await entries.waitFor('guest', 'the words in the row of its host', isReported, REPORTED);
      expect(row(entry)).toMatch(/^PodRefused: /);
      await allowCritical('platform-default');
      await entries.waitUntilCached('guest', 1, MENDED);
    },
  );
});

describe.each([
  [
    'a LimitRange with default limits below the size of a VM, and a minimum',
    'platform-ranged',
    `
kind: LimitRange
metadata: {name: defaults}
spec:
  limits:
  - type: Container
    default: {cpu: 500m, memory: 128Mi, ephemeral-storage: 1Gi}
    defaultRequest: {cpu: 100m, memory: 64Mi}
    min: {cpu: 10m, memory: 16Mi}
`,
  ],
  [
    'a quota for limits',
    'platform-limited',
    `
kind: ResourceQuota
metadata: {name: team}
spec: {hard: {limits.cpu: "4", limits.memory: 8Gi, requests.cpu: "4", requests.memory: 8Gi, limits.ephemeral-storage: 1Ti}}
`,
  ],
])('where a namespace has %s', (_what, namespace, rule) => {
  async function give(to: string): Promise<void> {
    await cluster.kubectl(['apply', '-n', to, '-f', '-'], { input: `apiVersion: v1\n${rule}` });
  }

  it('a VM, an Emulator, an Image and an ISO run', TIMEOUT, async () => {
    await cluster.createNamespace(namespace);
    await allowCritical(namespace);
    await give(namespace);
    const [vms, emulators] = [new VMs(cluster, namespace), new Emulators(cluster, namespace)];
    await vms.create('desk', SMALL);
    await emulators.create('desk', { vmName: 'desk', cpu: 1, memory: '2560Mi' });
    const disks = await createDisks(namespace);
    await untilRunning(vms, 'desk');
    await waitForObject('Emulator desk', () => emulators.get('desk'), isRunning, MENDED);
    const { spec, status } = await vms.pod('desk');
    expect(spec.containers[0]?.resources?.limits).toEqual(spec.containers[0]?.resources?.requests);
    expect(status).toMatchObject({ qosClass: 'Guaranteed' });
    await workOn(namespace);
    await waitForObject('the Image', disks.image, ({ status: now }) => now?.phase === 'Ready');
    await waitForObject('the ISO', disks.iso, ({ status: now }) => now?.phase === 'Ready');
  });

  it('an ImageCacheEntry is cached', TIMEOUT, async () => {
    const own = new CacheEntries(cluster, namespace);
    await own.create('guest', {
      reference: `registry.example/${namespace}:1`,
      targets: { nodes: ['host-0'] },
    });
    const { status } = await own.waitUntilCached('guest', 1, MENDED);
    expect(status?.failed).toBe(0);
  });
});

it(
  'a VM and an Image past a quota for limits tell it, and run after the quota is raised',
  TIMEOUT,
  async () => {
    const namespace = 'platform-tight';
    await cluster.createNamespace(namespace);
    await allowCritical(namespace);
    await createQuota(cluster, { namespace, name: 'team' }, 'limits.cpu=5m,limits.memory=8Gi');
    const vms = new VMs(cluster, namespace);
    await vms.create('desk', SMALL);
    const disks = await createDisks(namespace);
    const message = await untilReported('VM desk', () => vms.get('desk'), ['Scheduled', 'PodRefused']);
    expect(message).toMatch(/quota: team/);
    expect(await untilReported('Image disk', disks.image, ['Ready', 'PodRefused'])).toMatch(/quota: team/);
    const raised = JSON.stringify({ spec: { hard: { 'limits.cpu': '2' } } });
    await cluster.kubectl([
      'patch',
      'quota',
      'team',
      '--namespace',
      namespace,
      '--type=merge',
      '--patch',
      raised,
    ]);
    await untilRunning(vms, 'desk');
    await workOn(namespace);
    await waitForObject('the Image', disks.image, ({ status }) => status?.phase === 'Ready');
  },
);
