/**
 * Agents that join with the token of their Pod (agent.join=ServiceAccount), and what such a token gives to an attacker. API server, policies
 * and operator are real. The agent is real, too, with a stand-in for QEMU.
 */
import { randomUUID } from 'node:crypto';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { requestCertificate } from '../../agent/identity/certificates.ts';
import { DEDICATED_KEY, HOST_KEY, HOST_MARK, HOST_VALUE } from '../../api/v1alpha1/names.ts';
import type { KubeClient } from '../../kube/client.ts';
import {
  CERTIFICATE_SIGNING_REQUESTS,
  type Event,
  EVENTS,
  LEASES,
  type Node,
  NODES,
  PODS,
  SECRETS,
} from '../../kube/core.ts';
import { unlessMissing } from '../../kube/errors.ts';
import type { Unsaved } from '../../kube/objects.ts';
import { microTime } from '../../base/time.ts';
import { type Cluster, startCluster } from '../../hack/cluster/index.ts';
import { SERVICE_ACCOUNTS } from '../../hack/cluster/tokens.ts';
import { waitFor } from '../../hack/wait.ts';
import { VMs } from '../fixtures/vms.ts';
import {
  ACCOUNT,
  agentKubeconfig,
  agentToken,
  createAgentPod,
  letAccountsJoin,
  OTHER_SIGNER,
  runSigner,
  SERVED,
  untilPolicyActs,
} from '../worlds/accounthost.ts';
import { DESIRED, machineFor, operatorClient, podFor, TestHost } from '../worlds/agenthost.ts';
import { tried } from './support/attempts.ts';
import { clientOf } from './support/identities.ts';
import { nodeOf } from './support/nodes.ts';

const STEP = { deadlineMilliseconds: 60_000 };
const HOST = 'rack1-berth';
const OTHER = 'platform-other';
const FOREIGN = { namespace: SERVED, name: 'foreign' };

let cluster: Cluster;
let host: TestHost;
let agent: KubeClient;
let vms: VMs;
let signing: Promise<void>;
const stop = new AbortController();

async function asAgentOn(node: string): Promise<KubeClient> {
  return await clientOf(cluster, { token: await agentToken(cluster, { pod: node }) });
}

beforeAll(async () => {
  cluster = await startCluster({ name: `hostile-accounts-${process.pid}` });
  await cluster.startOperator({ config: { hosts: { servingSigner: OTHER_SIGNER } } });
  const client = cluster.client();
  await cluster.createNamespace(OTHER);
  await client.create(SERVICE_ACCOUNTS, { metadata: { namespace: 'berth-system', name: ACCOUNT } });
  await createAgentPod(cluster, 'rack1');
  await createAgentPod(cluster, 'rack2');
  const secret = { type: 'berth.dev/user-data', stringData: { key: '#cloud-config' } };
  for (const namespace of [SERVED, OTHER]) {
    await client.create(SECRETS, { metadata: { namespace, name: 'data' }, ...secret });
  }
  const elsewhere = podFor({ name: 'after' }, machineFor(SERVED, 'foreign'), DESIRED);
  await client.create(NODES, nodeOf('after', { [HOST_MARK]: 'false' }));
  await (await operatorClient(cluster)).create(PODS, elsewhere);
  await letAccountsJoin(cluster);
  agent = await asAgentOn('rack1');
  await untilPolicyActs(() => onNode({ metadata: { annotations: { any: randomUUID() } } }, 'rack1')());
  signing = runSigner(cluster, stop.signal);
  host = await TestHost.make(cluster, {
    name: HOST,
    kubeconfig: await agentKubeconfig(cluster, 'rack1'),
    namespace: SERVED,
    certificates: { servingSigner: OTHER_SIGNER },
    kubelet: { port: 0, clientCAFile: join(cluster.directory, 'pki', 'ca.crt') },
  });
  vms = new VMs(cluster);
});

afterAll(async () => {
  stop.abort();
  await Promise.all([signing, host?.remove()]);
  await cluster?.stop();
});

test('serves the one namespace after an administrator has marked it, also its logs', async () => {
  await host.launch({ approve: false });
  const reported = await waitFor(
    'the Event NotMarkedAsHost',
    async () => {
      const { items } = await cluster.client().list(EVENTS);
      return items.find((one) => one.reason === 'NotMarkedAsHost' && one.regarding.name === HOST);
    },
    STEP,
  );
  const [, command = ''] = /run: kubectl (.*)$/.exec(reported.note ?? '') ?? [];
  await cluster.kubectl(command.split(' '));
  const node = await waitFor(
    'the taint of the namespace',
    async () => {
      const { metadata, spec } = await cluster.client().get(NODES, { name: HOST });
      return spec?.taints?.some(({ key, value }) => key === DEDICATED_KEY && value === SERVED) && metadata;
    },
    STEP,
  );
  expect(node.labels).toMatchObject({ [DEDICATED_KEY]: SERVED, 'berth.dev/only-namespace': SERVED });
  await vms.create('own', { placement: { node: HOST }, userDataSecretRef: { name: 'data', key: 'key' } });
  await vms.waitForPhase('own', 'Running', undefined, STEP);
  await waitFor(
    'the API server to trust the certificate of the host',
    async () =>
      (await cluster.kubectl(['logs', 'own', `--namespace=${SERVED}`], { allowFailure: true })).code === 0,
    STEP,
  );
  const { items } = await cluster.client().list(CERTIFICATE_SIGNING_REQUESTS);
  const asked = items.filter(
    ({ spec }) =>
      spec.username?.endsWith(`:${ACCOUNT}`) === true && spec.signerName.startsWith('kubernetes.io/'),
  );
  expect(asked.filter(({ metadata }) => metadata.name.includes(HOST))).toEqual([]);
});

test('writes its Node again when somebody ends its dedication or removes its addresses', async () => {
  const client = cluster.client();
  await client.mergePatch(NODES, { name: HOST }, { metadata: { labels: { [DEDICATED_KEY]: null } } });
  await client.mergePatch(NODES, { name: HOST }, { status: { addresses: null } }, { subresource: 'status' });
  await waitFor(
    'the label and the addresses',
    async () => {
      const { metadata, status } = await client.get(NODES, { name: HOST });
      return metadata.labels?.[DEDICATED_KEY] === SERVED && status?.addresses?.[0] !== undefined;
    },
    STEP,
  );
});

test('keeps its token, its mark and its machine when its Node is deleted', async () => {
  const before = await cluster.client().get(NODES, { name: HOST });
  await cluster.client().delete(NODES, { name: HOST });
  await waitFor(
    'the Node to be there again, marked',
    async () => {
      const node = await unlessMissing(cluster.client().get(NODES, { name: HOST }));
      return node?.metadata.uid !== before.metadata.uid && node?.metadata.labels?.[HOST_MARK] === HOST_VALUE;
    },
    STEP,
  );
  await vms.waitForPhase('own', 'Running', undefined, STEP);
  expect(host.driver.calls.filter((call) => call.startsWith('start '))).toHaveLength(1);
});

test.for<[string, () => Promise<unknown>, RegExp]>([
  [
    'a Secret of another namespace',
    () => agent.get(SECRETS, { namespace: OTHER, name: 'data' }),
    /cannot get resource "secrets"/,
  ],
  [
    'the names of all Secrets',
    () => agent.list(SECRETS, { namespace: SERVED }),
    /cannot list resource "secrets"/,
  ],
  ['Pods of another namespace', () => agent.list(PODS, { namespace: OTHER }), /cannot list resource "pods"/],
  ['Pods of all namespaces', () => agent.list(PODS), /cannot list resource "pods"/],
])('cannot read %s', async ([what, attempt, refusal], context) => {
  expect((await agent.get(SECRETS, { namespace: SERVED, name: 'data' })).type).toBe('berth.dev/user-data');
  await expect(attempt()).rejects.toThrow(refusal);
  tried(context, what, '403');
});

const onNode =
  (patch: object, name = HOST) =>
  () =>
    agent.mergePatch(NODES, { name }, patch);
const labelled = (key: string, value: string | null) => onNode({ metadata: { labels: { [key]: value } } });
const owner = { apiVersion: 'v1', kind: 'Node', name: 'node1', uid: 'any' };
const createdBy = async (node: Unsaved<Node>) => await (await asAgentOn('rack2')).create(NODES, node);
const lease = (name: string) => (client: KubeClient) =>
  client.apply(
    LEASES,
    { metadata: { namespace: 'kube-node-lease', name }, spec: {} },
    { fieldManager: 'test', force: true },
  );

async function leaseWith(bound?: { node: string }): Promise<unknown> {
  return await lease(HOST)(await clientOf(cluster, { token: await agentToken(cluster, bound) }));
}

function eventOf(reportingInstance: string, name = HOST): Unsaved<Event> {
  return {
    metadata: { namespace: 'default', name: `event-${reportingInstance}-${name}` },
    eventTime: microTime(Date.now()),
    reportingController: 'berth.dev/agent',
    reportingInstance,
    action: 'Test',
    reason: 'Test',
    type: 'Normal',
    regarding: { apiVersion: 'v1', kind: 'Node', name },
  };
}

test.for<[string, () => Promise<unknown>, RegExp]>([
  [
    'the Node of its kubelet',
    onNode({ metadata: { labels: { 'tag.berth.dev/a': '' } } }, 'rack1'),
    /nodes "rack1": an agent may write only/,
  ],
  [
    'the status of another host',
    () => agent.mergePatch(NODES, { name: 'after' }, { status: {} }, { subresource: 'status' }),
    /nodes "after"/,
  ],
  ['a new Node for another host', () => agent.create(NODES, nodeOf('rack2-berth')), /nodes "rack2-berth"/],
  ['its mark', labelled(HOST_MARK, 'false'), /must not change berth.node-restriction.kubernetes.io\/host/],
  [
    'its namespace',
    labelled(DEDICATED_KEY, OTHER),
    /must not change berth.node-restriction.kubernetes.io\/namespace/,
  ],
  [
    'the end of its dedication',
    labelled(DEDICATED_KEY, null),
    /must not change berth.node-restriction.kubernetes.io\/namespace/,
  ],
  [
    'its mark, by its status',
    () =>
      agent.mergePatch(
        NODES,
        { name: HOST },
        { metadata: { labels: { [HOST_MARK]: null } } },
        { subresource: 'status' },
      ),
    /must not change/,
  ],
  [
    'a label of somebody else',
    labelled('node-role.kubernetes.io/control-plane', ''),
    /must not change node-role/,
  ],
  [
    'its taints',
    onNode({ spec: { taints: null } }),
    /may set only taints, and only when it creates the Node/,
  ],
  ['its provider', onNode({ spec: { providerID: 'aws:///i-1' } }), /may set only taints/],
  [
    'machines that wait for it',
    onNode({ metadata: { annotations: { 'berth.dev/awaited-pods': '{}' } } }),
    /annotations, finalizers and owners/,
  ],
  [
    'an owner of its Node',
    onNode({ metadata: { ownerReferences: [owner] } }),
    /annotations, finalizers and owners/,
  ],
  [
    'a Node without the taint of hosts',
    () => createdBy({ ...nodeOf('rack2-berth', { [DEDICATED_KEY]: SERVED }), spec: {} }),
    /This needs the taint/,
  ],
  ['a Node for all namespaces', () => createdBy(nodeOf('rack2-berth')), /the namespace "platform-default"/],
  [
    'a marked Node',
    () => createdBy(nodeOf('rack2-berth', { [DEDICATED_KEY]: SERVED, [HOST_MARK]: HOST_VALUE })),
    /must not change/,
  ],
  ['the Lease of another host', () => lease('after')(agent), /leases "after": an agent may write only/],
  [
    'the status of a Pod on another host',
    () => agent.mergePatch(PODS, FOREIGN, { status: { phase: 'Failed' } }, { subresource: 'status' }),
    /only the status of Pods on its own host/,
  ],
  [
    'the end of a Pod on another host',
    () => agent.delete(PODS, FOREIGN),
    /only the status of Pods on its own host/,
  ],
  [
    'a label of its own Pod',
    () =>
      agent.mergePatch(
        PODS,
        { namespace: SERVED, name: 'own' },
        { metadata: { labels: { app: 'other' } } },
        { subresource: 'status' },
      ),
    /must not change the metadata of a Pod/,
  ],
  [
    'an Event in the name of another host',
    () => agent.create(EVENTS, eventOf('after')),
    /reportingInstance of an Event must be the host/,
  ],
  [
    'an Event about another Node',
    () => agent.create(EVENTS, eventOf(HOST, 'after')),
    /its Node can only be that of this host/,
  ],
  [
    'a client certificate',
    () =>
      requestCertificate(
        agent,
        { nodeName: HOST, kind: 'client', ipAddresses: [], expirationSeconds: 3600 },
        AbortSignal.timeout(STEP.deadlineMilliseconds),
      ),
    /join without client certificates/,
  ],
  [
    'its Lease with a token that is bound to no Pod',
    () => leaseWith(),
    /must be the projected token of its Pod/,
  ],
  [
    'its Lease with a token that is bound to a Node',
    () => leaseWith({ node: 'rack1' }),
    /must be the projected token of its Pod/,
  ],
])('cannot write %s', async ([what, attempt, refusal], context) => {
  await expect(attempt()).rejects.toThrow(refusal);
  tried(context, what, '403');
});

test('of another computer may create its own Node, renew its Lease and serve nothing before it is marked', async () => {
  const node = await createdBy(nodeOf('rack2-berth', { [DEDICATED_KEY]: SERVED }));
  expect(node.spec?.taints).toContainEqual({ key: HOST_KEY, value: HOST_VALUE, effect: 'NoSchedule' });
  await lease(HOST)(agent);
  expect(node.metadata.labels?.[HOST_MARK]).toBeUndefined();
  await vms.delete('own');
  await waitFor('the Pod to be gone', async () => (await unlessMissing(vms.pod('own'))) === undefined, STEP);
});
