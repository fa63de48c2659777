/** Programs that claim to be a host or ask for a certificate of one, but are not. API server, NodeRestriction and operator are real. */
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { requestCertificate } from '../../agent/identity/certificates.ts';
import { parse } from 'yaml';
import { BOOTSTRAP_GROUP, HOST_MARK, HOST_VALUE } from '../../api/v1alpha1/names.ts';
import { createHostToken } from '../../hack/host-token.ts';
import { createKey } from '../../kube/certificates/certificate.ts';
import type { KubeClient } from '../../kube/client.ts';
import {
  CERTIFICATE_SIGNING_REQUESTS,
  EVENTS,
  NODES,
  SECRETS,
  SELF_SUBJECT_REVIEWS,
} from '../../kube/core.ts';
import { loadConnection } from '../../kube/credentials.ts';
import { type Cluster, type OperatorProcess, startCluster } from '../../hack/cluster/index.ts';
import { SERVICE_ACCOUNTS } from '../../hack/cluster/tokens.ts';
import { VMs } from '../fixtures/vms.ts';
import { agentToken, createAgentPod } from '../worlds/accounthost.ts';
import { waitFor } from '../../hack/wait.ts';
import { tried } from './support/attempts.ts';
import { asNode, clientOf } from './support/identities.ts';
import { nodeOf } from './support/nodes.ts';

const STEP = { deadlineMilliseconds: 60_000 };
const LIFETIME_SECONDS = 3600;
const SYSTEM = 'berth-system';
const ACCOUNT = 'berth-agent';

let cluster: Cluster;
let operator: OperatorProcess;

beforeAll(async () => {
  cluster = await startCluster({ name: `hostile-hosts-${process.pid}` });
  operator = await cluster.startOperator();
});

afterAll(async () => {
  await cluster?.stop();
});

function markOf(name: string): Promise<string | undefined> {
  return cluster
    .client()
    .get(NODES, { name })
    .then(({ metadata }) => metadata.labels?.[HOST_MARK]);
}

function isMarked(name: string): Promise<unknown> {
  return waitFor(`Node ${name} to be a host`, async () => (await markOf(name)) === HOST_VALUE, STEP);
}

/** Requests a certificate. Resolves with the name of the request, and with the promise of its certificate. */
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

/** Returns a client with a new bootstrap token for the host of this name. */
async function asToken(name: string): Promise<KubeClient> {
  const { kubeconfig } = await cluster.createAgentBootstrap(name);
  const { token } = await loadConnection({ kubeconfigPath: kubeconfig });
  return await clientOf(cluster, { token });
}

/** Returns a client with the token of an agent's Pod on this node. If no node is given, the token is bound to no Pod. */
async function asPod(nodeName?: string): Promise<KubeClient> {
  const bound = nodeName === undefined ? undefined : { pod: nodeName };
  return await clientOf(cluster, { token: await agentToken(cluster, bound) });
}

/** Returns a client with a bootstrap token of an earlier release, whose groups name no host. */
async function asOldToken(): Promise<KubeClient> {
  const { kubeconfig } = await cluster.createAgentBootstrap('any');
  const { token = '' } = await loadConnection({ kubeconfigPath: kubeconfig });
  const secret = { namespace: 'kube-system', name: `bootstrap-token-${token.split('.')[0]}` };
  await cluster
    .client()
    .mergePatch(SECRETS, secret, { stringData: { 'auth-extra-groups': BOOTSTRAP_GROUP } });
  const client = await clientOf(cluster, { token });
  // The API server keeps the groups of a token for ten seconds.
  const isOld = async () => (await bootstrapGroupsOf(client)).join() === BOOTSTRAP_GROUP;
  await waitFor('the token to name no host', isOld, STEP);
  return client;
}

async function bootstrapGroupsOf(client: KubeClient): Promise<string[]> {
  const { status } = await client.create(SELF_SUBJECT_REVIEWS, { metadata: {} });
  return (status?.userInfo?.groups ?? []).filter((group) => group.startsWith('system:bootstrappers:'));
}

describe('credentials of joining hosts', () => {
  beforeAll(async () => {
    await cluster.client().create(SERVICE_ACCOUNTS, { metadata: { namespace: SYSTEM, name: ACCOUNT } });
    await createAgentPod(cluster, 'node1');
    await createAgentPod(cluster, 'node2');
  });

  test.for([
    [
      "a token for one host, another's name",
      () => asToken('mine'),
      'yours',
      /NotItself: This credential is only for the certificate of host mine/,
    ],
    ['a token for no host in particular', asOldToken, 'any', /TokenNotForOneHost: .*make host-token NAME=/],
    [
      "a Pod's token, the host of another node",
      () => asPod('node1'),
      'node2-berth',
      /NotItself: .* only for the certificate of host node1-berth/,
    ],
    ["a Pod's token, its node's kubelet", () => asPod('node1'), 'node1', /NotItself/],
    ["the agents' account, bound to no Pod", () => asPod(), 'node1-berth', /TokenNotBoundToNode/],
  ] as const)('%s: denied', async ([what, credential, name, reason], context) => {
    const { answer } = await ask(await credential(), name, 'client');
    await expect(answer).rejects.toThrow(reason);
    tried(context, what, 'denied');
  });

  test('an expired token gives no access', async (context) => {
    const connection = await loadConnection({ kubeconfigPath: cluster.kubeconfig });
    const { kubeconfig } = await createHostToken(cluster.client(), connection, 'late', -1);
    const { users } = parse(kubeconfig) as { users: [{ user: { token: string } }] };
    const late = await clientOf(cluster, { token: users[0].user.token });
    // When the API server knows a later token, it knows this one too.
    const later = await asToken('later');
    await waitFor('a later token to give access', async () => (await bootstrapGroupsOf(later)).length > 0);
    await expect(late.list(CERTIFICATE_SIGNING_REQUESTS)).rejects.toMatchObject({ status: 401 });
    tried(context, 'an expired token', '401');
  });

  test('the token of a Pod lets the host of its own node join, once', async (context) => {
    const { name, answer } = await ask(await asPod('node1'), 'node1-berth', 'client');
    expect((await answer).certificate).toContain('BEGIN CERTIFICATE');
    const again = await ask(await asPod('node1'), 'node1-berth', 'client');
    await expect(again.answer).rejects.toThrow(new RegExp(`RequestOpen: .*kubectl delete csr ${name}`));
    tried(context, 'a second request after the first was approved', 'denied: RequestOpen');
    await cluster.client().delete(CERTIFICATE_SIGNING_REQUESTS, { name });
    const third = await ask(await asPod('node1'), 'node1-berth', 'client');
    expect((await third.answer).certificate).toContain('BEGIN CERTIFICATE');
  });

  test('an agent that starts again continues its earlier request', async () => {
    const key = await createKey();
    const request = { nodeName: 'node2-berth', kind: 'client', ipAddresses: [], key } as const;
    const asked = async () =>
      await requestCertificate(
        await asPod('node2'),
        { ...request, expirationSeconds: LIFETIME_SECONDS },
        AbortSignal.timeout(STEP.deadlineMilliseconds),
      );
    expect(await asked()).toEqual(await asked());
  });
});

describe('a Node that claims to be a host', () => {
  let impostor: KubeClient;

  beforeAll(async () => {
    impostor = await asNode(cluster, 'impostor');
    await impostor.create(NODES, nodeOf('impostor'));
  });

  test('is not marked, and an Event on its Node tells an administrator how to mark it', async (context) => {
    const reported = await waitFor(
      'an Event',
      async () => {
        const { items } = await cluster.client().list(EVENTS);
        return items.find(({ reason, regarding }) => {
          return reason === 'NotMarkedAsHost' && regarding.name === 'impostor';
        });
      },
      STEP,
    );
    expect(reported.note).toContain(`kubectl label node impostor ${HOST_MARK}=${HOST_VALUE}`);
    expect(await markOf('impostor')).toBeUndefined();
    tried(context, 'label berth.dev/host on itself', 'not a host');
  });

  test('must not mark itself, at its registration or later', async (context) => {
    const marked = { [HOST_MARK]: HOST_VALUE };
    await expect(
      impostor.mergePatch(NODES, { name: 'impostor' }, { metadata: { labels: marked } }),
    ).rejects.toThrow(/is not allowed to modify labels/);
    const another = await asNode(cluster, 'another');
    await expect(another.create(NODES, nodeOf('another', marked))).rejects.toThrow(/is not allowed to set/);
    tried(context, 'the restricted label on itself', '403');
    tried(context, 'the restricted label at registering', '403');
  });

  test('gets no machine, although it offers slots', async (context) => {
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
    // The operator judges requests in order. When it has judged a later request, it has seen these two.
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

describe('a host with a certificate that the operator approved', () => {
  let host: KubeClient;

  test('is marked when its Node is created, although the operator was killed in between', async (context) => {
    const { answer } = await ask(await asToken('joined'), 'joined', 'client');
    const { certificate, key } = await answer;
    await operator.kill('SIGKILL');
    await operator.stopped;
    const rivals = [
      await ask(await asToken('contested'), 'contested', 'client'),
      await ask(await asToken('contested'), 'contested', 'client'),
    ];
    host = await clientOf(cluster, { clientCertificate: certificate, clientKey: key });
    await host.create(NODES, nodeOf('joined'));
    operator = await cluster.startOperator();
    expect(await isMarked('joined')).toBe(true);
    const outcomes = await Promise.allSettled(rivals.map((rival) => rival.answer));
    const denied = outcomes.filter((outcome) => outcome.status === 'rejected');
    expect(denied.map(({ reason }) => String(reason))).toEqual([expect.stringContaining('RequestOpen')]);
    tried(context, 'two requests for a name at once', 'one denied: RequestOpen');
  });

  test('is marked again after its Node was deleted and its agent created the Node again', async () => {
    await cluster.client().delete(NODES, { name: 'joined' });
    await host.create(NODES, nodeOf('joined'));
    expect(await isMarked('joined')).toBe(true);
  });

  test('is not marked while an administrator has set the label to false', async () => {
    const no = { [HOST_MARK]: 'false' };
    await cluster.client().mergePatch(NODES, { name: 'joined' }, { metadata: { labels: no } });
    const { answer } = await ask(await asToken('after'), 'after', 'client');
    const { certificate, key } = await answer;
    const later = await clientOf(cluster, { clientCertificate: certificate, clientKey: key });
    await later.create(NODES, nodeOf('after'));
    await isMarked('after');
    expect(await markOf('joined')).toBe('false');
  });
});
