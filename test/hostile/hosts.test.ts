/** Who says that it is a host, or asks for the certificate of one, and is not. Real API server, NodeRestriction, operator. */
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { requestCertificate } from '../../agent/node/certificate.ts';
import { HOST_KEY, HOST_MARK, HOST_VALUE, SLOT_RESOURCE } from '../../api/v1alpha1/names.ts';
import type { KubeClient } from '../../kube/client.ts';
import { CERTIFICATE_SIGNING_REQUESTS, EVENTS, type Node, NODES } from '../../kube/core.ts';
import { loadConnection } from '../../kube/credentials.ts';
import { type Cluster, type OperatorProcess, startCluster } from '../cluster/index.ts';
import { VMs } from '../support/vms.ts';
import { waitFor } from '../support/wait.ts';
import { tried } from './support/attempts.ts';
import { asNode, clientOf } from './support/identities.ts';

const STEP = { deadlineMilliseconds: 60_000 };
const SLOTS = { [SLOT_RESOURCE]: '4', cpu: '8', memory: '32Gi', pods: '110' };
const LIFETIME_SECONDS = 3600;

let cluster: Cluster;
let operator: OperatorProcess;

beforeAll(async () => {
  cluster = await startCluster({ name: `hostile-hosts-${process.pid}` });
  operator = await cluster.startOperator();
});

afterAll(async () => {
  await cluster?.stop();
});

/** As a host's agent registers it, with slots that it gives itself. */
function nodeOf(name: string, labels: Record<string, string> = {}): Partial<Node> & Pick<Node, 'metadata'> {
  const ready = { type: 'Ready', status: 'True' as const, reason: 'AgentReady', message: '' };
  return {
    metadata: { name, labels: { [HOST_KEY]: HOST_VALUE, ...labels } },
    spec: { taints: [{ key: HOST_KEY, value: HOST_VALUE, effect: 'NoSchedule' }] },
    status: {
      capacity: SLOTS,
      allocatable: SLOTS,
      conditions: [ready],
      addresses: [{ type: 'InternalIP', address: '127.0.0.9' }],
      nodeInfo: { architecture: 'amd64', operatingSystem: 'linux' },
    },
  };
}

function markOf(name: string): Promise<string | undefined> {
  return cluster
    .client()
    .get(NODES, { name })
    .then(({ metadata }) => metadata.labels?.[HOST_MARK]);
}

function isMarked(name: string): Promise<unknown> {
  return waitFor(`Node ${name} to be a host`, async () => (await markOf(name)) === HOST_VALUE, STEP);
}

/** Resolves with the request's name; its answer is whatever comes of it. */
async function ask(client: KubeClient, nodeName: string, kind: 'client' | 'serving') {
  const before = new Set(await requestNames());
  const ipAddresses = kind === 'serving' ? ['127.0.0.9'] : [];
  const answer = requestCertificate(
    client,
    { nodeName, kind, ipAddresses, expirationSeconds: LIFETIME_SECONDS },
    AbortSignal.timeout(STEP.deadlineMilliseconds),
  );
  answer.catch(() => undefined);
  const name = await waitFor('the request', async () =>
    (await requestNames()).find((one) => !before.has(one)),
  );
  return { name, answer };
}

async function requestNames(): Promise<string[]> {
  const { items } = await cluster.client().list(CERTIFICATE_SIGNING_REQUESTS);
  return items.map(({ metadata }) => metadata.name);
}

describe('a node that says it is a host', () => {
  let impostor: KubeClient;

  beforeAll(async () => {
    impostor = await asNode(cluster, 'impostor');
    await impostor.create(NODES, nodeOf('impostor'));
  });

  test('is not marked, and an Event on its Node says how an administrator can', async (context) => {
    const told = await waitFor(
      'an Event',
      async () => {
        const { items } = await cluster.client().list(EVENTS);
        return items.find(({ reason, regarding }) => {
          return reason === 'NotMarkedAsHost' && regarding.name === 'impostor';
        });
      },
      STEP,
    );
    expect(told.note).toContain(`kubectl label node impostor ${HOST_MARK}=${HOST_VALUE}`);
    expect(await markOf('impostor')).toBeUndefined();
    tried(context, 'label berth.dev/host on itself', 'not a host');
  });

  test('may not mark itself, at registering or later', async (context) => {
    const marked = { [HOST_MARK]: HOST_VALUE };
    await expect(
      impostor.mergePatch(NODES, { name: 'impostor' }, { metadata: { labels: marked } }),
    ).rejects.toThrow(/is not allowed to modify labels/);
    const another = await asNode(cluster, 'another');
    await expect(another.create(NODES, nodeOf('another', marked))).rejects.toThrow(/is not allowed to set/);
    tried(context, 'the restricted label on itself', '403');
    tried(context, 'the restricted label at registering', '403');
  });

  test('gets no machine, though it offers slots', async (context) => {
    const vms = new VMs(cluster);
    await vms.create('unplaced', { architecture: 'amd64' });
    const { message } = await vms.waitForCondition('unplaced', 'Scheduled', { status: 'False' }, STEP);
    await waitFor(
      'the scheduler to have looked',
      async () => (await vms.pod('unplaced')).status?.conditions?.some(({ status }) => status === 'False'),
      STEP,
    );
    expect((await vms.pod('unplaced')).spec.nodeName).toBeUndefined();
    expect(message).toBeDefined();
    await vms.delete('unplaced');
    tried(context, 'own slots on a node that is no host', 'no machine');
  });

  test('gets no certificate as a host, until an administrator marks it', async (context) => {
    const asked = [await ask(impostor, 'impostor', 'client'), await ask(impostor, 'impostor', 'serving')];
    // The operator has come by these two when it has judged a later one.
    const { answer } = await ask(await asNode(cluster, 'admitted'), 'admitted', 'client');
    await cluster.client().create(NODES, nodeOf('admitted', { [HOST_MARK]: HOST_VALUE }));
    await answer;
    for (const { name } of asked) {
      const { status } = await cluster.client().get(CERTIFICATE_SIGNING_REQUESTS, { name });
      expect(status?.conditions).toBeUndefined();
      tried(context, 'certificate of a host by a node that is none', 'left to others');
    }
    await cluster.kubectl(['label', 'node', 'impostor', `${HOST_MARK}=${HOST_VALUE}`]);
    expect((await asked[0]!.answer).certificate).toContain('BEGIN CERTIFICATE');
  });
});

describe('a host whose certificate the operator approved', () => {
  let host: KubeClient;

  test('becomes one when its Node comes, though the operator was killed in between', async () => {
    const { answer } = await ask(await asToken('joined'), 'joined', 'client');
    const { certificate, key } = await answer;
    await operator.kill('SIGKILL');
    await operator.stopped;
    host = await clientOf(cluster, { clientCertificate: certificate, clientKey: key });
    await host.create(NODES, nodeOf('joined'));
    operator = await cluster.startOperator();
    expect(await isMarked('joined')).toBe(true);
  });

  test('is one again when its Node was deleted and it makes the Node anew', async () => {
    await cluster.client().delete(NODES, { name: 'joined' });
    await host.create(NODES, nodeOf('joined'));
    expect(await isMarked('joined')).toBe(true);
  });

  test('is none while an administrator says so', async () => {
    const no = { [HOST_MARK]: 'false' };
    await cluster.client().mergePatch(NODES, { name: 'joined' }, { metadata: { labels: no } });
    const { answer } = await ask(await asToken('after'), 'after', 'client');
    await answer;
    expect(await markOf('joined')).toBe('false');
  });
});

/** With a fresh bootstrap token. */
async function asToken(_name: string): Promise<KubeClient> {
  const { kubeconfig } = await cluster.createAgentBootstrap();
  const { token } = await loadConnection({ kubeconfigPath: kubeconfig });
  return clientOf(cluster, { token });
}
