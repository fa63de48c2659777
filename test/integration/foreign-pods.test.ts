/**
 * Workloads of other programs that tolerate every taint, in a cluster with a host and one other node. With the policy berth-foreign-pods they
 * never land on the host. Without it, the operator removes them from the host, and they run on the other node.
 */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { HOST_MARK, HOST_VALUE } from '../../api/v1alpha1/names.ts';
import { type Cluster, type OperatorProcess, startCluster } from '../../hack/cluster/index.ts';
import { ensureKwok, untilSimulated } from '../../hack/cluster/simulation.ts';
import { waitFor } from '../../hack/wait.ts';
import { EVENTS, NODES, type Pod, PODS } from '../../kube/core.ts';
import { TestHost } from '../worlds/agenthost.ts';

const HOST = 'host';
const OTHER = 'other';
const KEPT = 'kept-away';
const REMOVED = 'removed';
/** The tolerations of Calico's operator. */
const tolerations = [
  { operator: 'Exists', effect: 'NoExecute' },
  { operator: 'Exists', effect: 'NoSchedule' },
];
/** Time in which a removed Pod must run elsewhere. */
const PROMISED_MILLISECONDS = 60_000;
const TEST_MILLISECONDS = 240_000;
/** Bindings that bind the policy. Without a binding, a policy has no effect. */
const BINDING = ['mutatingadmissionpolicybinding', 'berth-foreign-pods'];

let cluster: Cluster;
let host: TestHost;
let operator: OperatorProcess;

beforeAll(async () => {
  cluster = await startCluster({ name: `foreign-${process.pid}` });
  operator = await cluster.startOperator();
  host = await TestHost.make(cluster, { name: HOST });
  await host.launch({ approve: false });
  await waitFor('the host to be marked', async () => {
    const { metadata } = await cluster.client().get(NODES, { name: HOST });
    return metadata.labels?.[HOST_MARK] === HOST_VALUE;
  });
  await Promise.all([KEPT, REMOVED].map((namespace) => cluster.createNamespace(namespace)));
}, TEST_MILLISECONDS);

afterAll(async () => {
  await host?.remove();
  await cluster?.stop();
});

/** Creates a node that runs Pods. For the scheduler it is much fuller than the host, so the scheduler likes the host better. */
async function addOther(): Promise<void> {
  const resources = { cpu: '1', memory: '2Gi', pods: '110' };
  await ensureKwok(cluster.directory);
  await cluster.client().create(NODES, {
    metadata: {
      name: OTHER,
      annotations: { 'kwok.x-k8s.io/node': 'fake' },
      labels: { 'kubernetes.io/hostname': OTHER },
    },
    status: {
      capacity: resources,
      allocatable: resources,
      conditions: [{ type: 'Ready', status: 'True', reason: 'KubeletReady', message: 'ready' }],
    },
  });
  await untilSimulated(cluster.client(), [OTHER]);
}

/** Creates a Deployment, a StatefulSet and a Job that tolerate everything. */
async function createWorkloads(namespace: string): Promise<void> {
  const containers = [{ name: 'main', image: 'example.com/none' }];
  const spec = { tolerations, containers, terminationGracePeriodSeconds: 600 };
  const template = { metadata: { labels: { app: namespace } }, spec };
  const common = { selector: { matchLabels: { app: namespace } }, template };
  const disrupted = [{ action: 'Ignore', onPodConditions: [{ type: 'DisruptionTarget' }] }];
  const job = { backoffLimit: 0, podFailurePolicy: { rules: disrupted } };
  await create('apps/v1', 'Deployment', namespace, { replicas: 2, ...common });
  await create('apps/v1', 'StatefulSet', namespace, { serviceName: 'none', ...common });
  await create('batch/v1', 'Job', namespace, {
    ...job,
    template: { spec: { ...spec, restartPolicy: 'Never' } },
  });
}

async function create(apiVersion: string, kind: string, namespace: string, spec: object): Promise<void> {
  const metadata = { name: kind.toLowerCase(), namespace };
  await cluster.kubectl(['create', '-f', '-'], {
    input: JSON.stringify({ apiVersion, kind, metadata, spec }),
  });
}

async function podsOf(namespace: string): Promise<Pod[]> {
  return (await cluster.client().list(PODS, { namespace })).items;
}

function isParked({ status }: Pod): boolean {
  return status?.containerStatuses?.[0]?.state?.waiting?.reason === 'HostRunsOnlyMachines';
}

/** Resolves when four Pods of the workloads are on the other node, and no Pod of them is anywhere else. */
async function untilElsewhere(namespace: string, deadlineMilliseconds: number): Promise<void> {
  await waitFor(
    'all Pods to be on the other node',
    async () => {
      const nodes = (await podsOf(namespace)).filter(isOfWorkload).map(({ spec }) => spec.nodeName);
      return nodes.length === 4 && nodes.every((node) => node === OTHER);
    },
    { deadlineMilliseconds },
  );
}

function isOfWorkload({ metadata, status }: Pod): boolean {
  const kind = metadata.ownerReferences?.[0]?.kind;
  return kind !== undefined && kind !== 'DaemonSet' && status?.phase !== 'Failed';
}

/** Returns the removals by the operator: the names of the Pods, from its Events. */
async function removals(): Promise<string[]> {
  const { items } = await cluster.client().list(EVENTS, { namespace: REMOVED });
  return items
    .filter((event) => event.reportingController === 'berth.dev/operator')
    .map(({ regarding }) => regarding?.name ?? '');
}

test(
  'with the policy, no Pod of a Deployment, StatefulSet or Job lands on the host',
  async () => {
    await createWorkloads(KEPT);
    // Only the host has room, so a Pod without the affinity would land there.
    await waitFor('no node to be suitable', async () => {
      const reasons = (await podsOf(KEPT)).map(({ status }) => status?.conditions?.[0]?.reason);
      return reasons.length === 4 && reasons.every((reason) => reason === 'Unschedulable');
    });
    expect((await podsOf(KEPT)).map(({ spec }) => spec.nodeName)).toEqual(Array(4).fill(undefined));
    await cluster.kubectl(['delete', 'namespace', KEPT, '--wait=false']);
  },
  TEST_MILLISECONDS,
);

test(
  'without the policy, the operator removes them from the host, and they run elsewhere, without a storm of Pods',
  async () => {
    await operator.stop();
    await cluster.kubectl(['delete', ...BINDING]);
    await waitFor('the policy to have no effect', async () => {
      const pod = { metadata: { name: 'p', namespace: REMOVED }, spec: { tolerations, containers: [] } };
      const manifest = { apiVersion: 'v1', kind: 'Pod', ...pod };
      manifest.spec.containers = [{ name: 'main', image: 'none' }] as never;
      const dry = ['create', '--dry-run=server', '-o', 'jsonpath={.spec.affinity}', '-f', '-'];
      return (await cluster.kubectl(dry, { input: JSON.stringify(manifest) })).stdout === '';
    });
    await createWorkloads(REMOVED);
    const alone = { tolerations, containers: [{ name: 'main', image: 'example.com/none' }] };
    const selector = { matchLabels: { app: 'daemon' } };
    const template = { metadata: { labels: { app: 'daemon' } }, spec: alone };
    await create('apps/v1', 'DaemonSet', REMOVED, { selector, template });
    await create('v1', 'Pod', REMOVED, alone);
    const before = await waitFor('all Pods to wait on the host', async () => {
      const pods = await podsOf(REMOVED);
      return pods.length === 6 && pods.every(isParked) && pods;
    });
    await addOther();
    operator = await cluster.startOperator();
    await untilElsewhere(REMOVED, PROMISED_MILLISECONDS);

    // Each Pod was removed once, and those without another node still wait.
    const kindOf = ({ metadata }: Pod) => metadata.ownerReferences?.[0]?.kind ?? 'Pod';
    const stayed = (await podsOf(REMOVED)).filter(isParked).map(kindOf);
    expect(stayed.toSorted()).toEqual(['DaemonSet', 'Pod']);
    const expected = before.filter((pod) => !stayed.includes(kindOf(pod)));
    const reported = await waitFor('the Events', async () => {
      const names = await removals();
      return names.length >= expected.length && names;
    });
    expect(reported.toSorted()).toEqual(expected.map(({ metadata }) => metadata.name).toSorted());
    const job = ['get', 'job', 'job', '-n', REMOVED, '-o', 'jsonpath={.status.failed} {.status.active}'];
    expect((await cluster.kubectl(job)).stdout.trim()).toBe('1');
  },
  TEST_MILLISECONDS,
);
