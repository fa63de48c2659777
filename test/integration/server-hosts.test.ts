/** Hosts of namespaces in the HTTP API, and the facts that clients read before they sign in. */
import { randomBytes } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { connect, type PeerCertificate } from 'node:tls';
import { afterAll, beforeAll, expect, it } from 'vitest';
import type { ImageCacheEntry } from '../../api/v1alpha1/imagecacheentry.ts';
import { createKey, selfSigned } from '../../kube/certificates/certificate.ts';
import { NODES, PODS } from '../../kube/core.ts';
import type { Cluster } from '../../hack/cluster/index.ts';
import type { ServerProcess } from '../../hack/cluster/program.ts';
import { IMAGE_CACHE_ENTRIES } from '../../api/v1alpha1/resources.ts';
import { waitFor } from '../../hack/wait.ts';
import { sharedCluster } from '../support/cluster.ts';
import { accountToken } from '../support/members.ts';
import { HTTPClient } from '../wires/httpapi.ts';

const DEFAULT = 'platform-default';
const namespace = `platform-hosts-${randomBytes(4).toString('hex')}`;
/** System namespace of this test's servers. They do not serve it. */
const SYSTEM = `system-${namespace}`;
const FIRST = `${namespace}-0`;
const SECOND = `${namespace}-1`;
/** Host of the namespace of this test. */
const THIRD = `${namespace}-2`;
const nodesOf = (name: string) => `/api/v1/namespaces/${name}/nodes`;
const DEDICATED = 'berth.node-restriction.kubernetes.io/namespace';

let cluster: Cluster;
let server: ServerProcess;
let api: HTTPClient;
let member: string;
let admin: string;
let stranger: string;

beforeAll(async () => {
  cluster = await sharedCluster();
  await cluster.createNamespace(namespace);
  await cluster.createNamespace(SYSTEM);
  for (const name of [FIRST, SECOND]) {
    await createHost(name);
  }
  await createHost(THIRD, { [DEDICATED]: namespace });
  await role('member', 'hosts=list');
  await createCertificateSecret();
  await role(
    'admin',
    'hosts=list',
    'hosts/tags=update',
    'hosts/namespace=update',
    'certificates=update',
    ...['get', 'list', 'create', 'patch', 'delete'].map((verb) => `imagecacheentries=${verb}`),
  );
  member = await accountToken(cluster, { namespace, name: 'member' }, { role: `${namespace}-member` });
  admin = await accountToken(
    cluster,
    { namespace, name: 'admin' },
    { role: `${namespace}-admin`, in: 'cluster' },
  );
  stranger = await accountToken(cluster, { namespace, name: 'stranger' });
  server = await startReplica('one');
  api = new HTTPClient(server);
  await waitFor(
    'the rights to be known',
    async () => (await api.call(nodesOf(DEFAULT), { token: admin })).status === 200,
  );
});

afterAll(async () => {
  await api?.close();
  await server?.process.stop();
  for (const { metadata } of await entries()) {
    await cluster.client().delete(IMAGE_CACHE_ENTRIES, metadata);
  }
  await cluster?.kubectl(['delete', 'node', FIRST, SECOND, THIRD, '--ignore-not-found']);
  await cluster?.kubectl(['delete', 'clusterrole', '-l', `test=${namespace}`]);
  await cluster?.kubectl(['delete', 'clusterrolebinding', `${namespace}-admin`, '--ignore-not-found']);
  await cluster?.kubectl(['delete', 'namespace', namespace, SYSTEM, '--wait=false']);
  await cluster?.disconnect();
});

/** Starts a replica with the certificate of this test's system namespace, because other tests start servers too. */
function startReplica(name: string): Promise<ServerProcess> {
  return cluster.startServer({
    name: `server-${namespace}-${name}`,
    config: {
      cluster: { issuer: 'https://login.example', clientID: 'berth-cli' },
      namespaces: { system: SYSTEM },
    },
  });
}

/** Creates the Secret of uploaded certificates with the server's rights to it, as the chart does in the system namespace. */
async function createCertificateSecret(): Promise<void> {
  const documents = readFileSync('charts/berth/files/rbac/server.yaml', 'utf8').split('\n---\n');
  const own = documents.filter((text) => /^kind: (Secret|Role|RoleBinding)$/m.test(text));
  const objects = own.map((text) => text.replace('  namespace: berth-system', `  namespace: ${SYSTEM}`));
  await cluster.kubectl(['create', '-f', '-'], { input: objects.join('\n---\n') });
}

/** Creates the Node of a host. No agent is there, so it does not become Ready. */
async function createHost(name: string, labels: Record<string, string> = {}): Promise<void> {
  await cluster.client().create(NODES, {
    metadata: {
      name,
      labels: { 'berth.dev/host': 'true', 'berth.node-restriction.kubernetes.io/host': 'true', ...labels },
    },
    spec: { taints: [{ key: 'berth.dev/host', value: 'true', effect: 'NoSchedule' }] },
    status: {
      allocatable: { cpu: '16', memory: '64Gi', pods: '110', 'berth.dev/slot': '4' },
      addresses: [{ type: 'InternalIP', address: '192.0.2.1' }],
    },
  });
}

/** Creates a ClusterRole from `resource=verb` of the group berth.dev. kubectl refuses resources that the API server does not serve. */
async function role(name: string, ...rights: string[]): Promise<void> {
  const rules = rights.map((right) => {
    const [resource, verb] = right.split('=');
    return { apiGroups: ['berth.dev'], resources: [resource], verbs: [verb] };
  });
  const manifest = {
    apiVersion: 'rbac.authorization.k8s.io/v1',
    kind: 'ClusterRole',
    metadata: { name: `${namespace}-${name}`, labels: { test: namespace } },
    rules,
  };
  await cluster.kubectl(['create', '-f', '-'], { input: JSON.stringify(manifest) });
}

// oxlint-disable-next-line typescript/no-explicit-any -- Each test reads other fields of it.
async function itemOf(host: string): Promise<any> {
  const { body } = await api.call(nodesOf(DEFAULT), { token: admin });
  return (body.items as { name: string }[]).find(({ name }) => name === host);
}

/** Returns the entries for the image of this test. */
async function entries(): Promise<ImageCacheEntry[]> {
  const { items } = await cluster.client().list(IMAGE_CACHE_ENTRIES);
  return items.filter(({ spec }) => spec.reference === `registry.example/${namespace}:latest`);
}

async function namesIn(where: string, token: string): Promise<unknown> {
  const { status, body } = await api.call(nodesOf(where), { token });
  const names = (body.items as { name: string }[]).map(({ name }) => name);
  return [status, names.filter((name) => name.startsWith(namespace))];
}

it('tells everybody where the Kubernetes API is, whatever token they send', async () => {
  for (const token of [undefined, 'invented']) {
    const { status, body } = await api.call('/api/v1/cluster-info', { token });
    expect([status, body]).toMatchObject([
      200,
      {
        apiEndpoint: cluster.server,
        apiDomain: new URL(cluster.server).hostname,
        appClientId: 'berth-cli',
        baseOauthEndpoint: 'https://login.example',
        gpuPassthroughEnabled: false,
        namespaceDefault: DEFAULT,
      },
    ]);
    expect(body.certData).toMatch(/^-----BEGIN CERTIFICATE-----/);
  }
});

it('shows members the hosts of their namespace only, and refuses others', async () => {
  expect(await namesIn(DEFAULT, admin)).toEqual([200, [FIRST, SECOND]]);
  expect(await namesIn(namespace, member)).toEqual([200, [THIRD]]);
  expect(await itemOf(FIRST)).toMatchObject({
    name: FIRST,
    namespace: DEFAULT,
    nodeIP: '192.0.2.1',
    availableCpu: 16,
    allocatableMemory: '68.72G',
    nodeType: 'WORKER',
    tags: [],
    slots: 4,
    slotsFree: 4,
  });
  for (const [token, code] of [
    [member, 403],
    [stranger, 403],
    ['invented', 401],
    [undefined, 401],
  ] as const) {
    expect((await api.call(nodesOf(DEFAULT), { token })).status).toBe(code);
  }
  const refused = await api.call(nodesOf(DEFAULT), { token: member });
  expect(refused.body.message).toBe(
    `hosts.berth.dev is forbidden: User "system:serviceaccount:${namespace}:member" cannot list resource "hosts" in API group "berth.dev" in the namespace "${DEFAULT}"`,
  );
  const missing = await api.call(nodesOf('platform-missing'), { token: admin });
  expect([missing.status, missing.body.message]).toEqual([404, 'namespaces "platform-missing" not found']);
});

it('shows shared hosts in a namespace whose label allows them, and its admins do not change them', async () => {
  const label = (value: string) =>
    cluster.kubectl(['label', 'namespace', namespace, `berth.dev/dedication${value}`]);
  await label('=Shared');
  const all = JSON.stringify([200, [FIRST, SECOND, THIRD]]);
  await waitFor('the shared hosts', async () => JSON.stringify(await namesIn(namespace, member)) === all);
  const change = { method: 'POST', token: admin, body: { tag: 'fast' } } as const;
  const refused = await api.call(`${nodesOf(namespace)}/${FIRST}/tag`, change);
  expect([refused.status, refused.body.message]).toEqual([
    403,
    `Host ${FIRST} is shared. Only administrators of namespace ${DEFAULT} change it`,
  ]);
  await label('-');
  const own = JSON.stringify([200, [THIRD]]);
  await waitFor('the own host alone', async () => JSON.stringify(await namesIn(namespace, member)) === own);
});

it('tags hosts for those with the right', async () => {
  const tag = (action: string, body: unknown, token = admin, host = FIRST) =>
    api.call(`${nodesOf(DEFAULT)}/${host}/${action}`, { method: 'POST', token, body });
  const labels = async () => (await cluster.client().get(NODES, { name: FIRST })).metadata.labels;
  expect((await tag('tag', { Tag: 'fast' })).status).toBe(200);
  expect(await labels()).toHaveProperty(['tag.berth.dev/fast'], '');
  await waitFor('the tag in the list', async () => (await itemOf(FIRST)).tags.includes('fast'));
  expect((await tag('untag', { tags: ['fast'] })).status).toBe(200);
  expect(await labels()).not.toHaveProperty(['tag.berth.dev/fast']);
  for (const [body, code, token, host] of [
    [{}, 422, admin, FIRST],
    [{ tag: 'x'.repeat(64) }, 422, admin, FIRST],
    [{ tag: 'a/b' }, 422, admin, FIRST],
    [{ tag: 7 }, 400, admin, FIRST],
    [{ tag: 'fast' }, 404, admin, 'host-9'],
    [{ tag: 'fast' }, 403, member, FIRST],
    [{ tag: 'fast' }, 401, 'invented', FIRST],
  ] as const) {
    expect([body, (await tag('tag', body, token, host)).status]).toEqual([body, code]);
  }
  expect(await labels()).not.toHaveProperty(['tag.berth.dev/fast']);
});

it('gives a host to a namespace and takes it back, but not while VMs run there', async () => {
  const move = (from: string, to: string, token = admin) =>
    api.call(`${nodesOf(from)}/${SECOND}/namespace`, { method: 'POST', token, body: { namespace: to } });
  expect((await move(DEFAULT, namespace, member)).status).toBe(403);
  expect((await move(DEFAULT, 'kube-system')).status).toBe(422);
  expect((await move(DEFAULT, 'platform-missing')).status).toBe(404);
  expect((await move(DEFAULT, namespace)).status).toBe(200);
  await waitFor('the host in its new namespace', async () => {
    const { body } = await api.call(nodesOf(namespace), { token: member });
    return body.items[0]?.name === SECOND;
  });
  expect(await namesIn(DEFAULT, admin)).toEqual([200, [FIRST]]);
  expect(await namesIn(namespace, member)).toEqual([200, [SECOND, THIRD]]);
  expect((await move(DEFAULT, namespace)).status).toBe(404);
  const tagged = { method: 'POST', token: admin, body: { tag: 'fast' } } as const;
  expect((await api.call(`${nodesOf(DEFAULT)}/${SECOND}/tag`, tagged)).status).toBe(404);
  // The policies reserve such a Pod for the operator.
  const operator = '--as=system:serviceaccount:berth-system:berth-operator';
  const pod = {
    apiVersion: 'v1',
    kind: 'Pod',
    metadata: { name: 'machine', namespace, labels: { 'berth.dev/workload': 'vm' } },
    spec: {
      nodeName: SECOND,
      automountServiceAccountToken: false,
      affinity: {
        nodeAffinity: {
          requiredDuringSchedulingIgnoredDuringExecution: {
            nodeSelectorTerms: [
              {
                matchExpressions: [
                  { key: 'berth.node-restriction.kubernetes.io/host', operator: 'In', values: ['true'] },
                ],
              },
            ],
          },
        },
      },
      tolerations: [
        { key: 'berth.dev/host', operator: 'Equal', value: 'true', effect: 'NoSchedule' },
        { key: DEDICATED, operator: 'Equal', value: namespace, effect: 'NoSchedule' },
      ],
      containers: [{ name: 'machine', image: 'image', resources: { requests: { cpu: '2' } } }],
    },
  };
  await cluster.kubectl(['create', '-f', '-', operator], { input: JSON.stringify(pod) });
  const refused = await move(namespace, DEFAULT);
  expect([refused.status, refused.body.message]).toEqual([
    409,
    `Host ${SECOND} still runs VMs or emulators: ${namespace}/machine`,
  ]);
  // In another namespace the answer does not name the machine.
  expect((await move(DEFAULT, namespace)).status).toBe(404);
  await waitFor('the CPUs of the machine to be used', async () => {
    const { body } = await api.call(nodesOf(namespace), { token: member });
    return body.items[0].availableCpu === 14;
  });
  await cluster.client().delete(PODS, { namespace, name: 'machine' }, { gracePeriodSeconds: 0 });
  await waitFor('the host to be given back', async () => (await move(namespace, DEFAULT)).status === 200);
  const { metadata } = await cluster.client().get(NODES, { name: SECOND });
  expect(metadata.labels).not.toHaveProperty([DEDICATED]);
});

it('keeps an image on hosts and removes it, in any spelling and encoding of its name', async () => {
  const cache = `/api/v1/namespaces/${DEFAULT}/cache/images`;
  const change = (path: string, body: unknown, token = admin) =>
    api.call(path, { method: 'POST', token, body });
  const targets = async () => (await entries()).map(({ spec }) => spec.targets?.nodes);
  const success = (node: string) => ({ node, code: 200, status: 'Success' });
  const encoded = encodeURIComponent(`registry.example/${namespace}`);
  const added = await change(`${cache}/${encoded}/add`, { nodes: `${FIRST},missing` });
  expect([added.status, added.body]).toEqual([
    207,
    {
      items: [
        success(FIRST),
        { node: 'missing', code: 404, status: 'Failure', message: 'nodes "missing" not found' },
      ].toSorted((a, b) => (a.node < b.node ? -1 : 1)),
    },
  ]);
  expect(await targets()).toEqual([[FIRST]]);
  for (const path of [`/${encodeURIComponent(encoded)}`, `/registry.example/${namespace}:latest/add`]) {
    expect((await change(cache + path, { NODES: [SECOND] })).status).toBe(207);
  }
  expect(await targets()).toEqual([[FIRST, SECOND]]);
  await waitFor('both hosts to wait for the image', async () => {
    const { body } = await api.call(`${cache}/${encoded}`, { token: admin });
    return body.items.length === 2 && body.items[0].status === 'queued';
  });
  const removal = { imageReference: `registry.example/${namespace}`, nodes: [FIRST, 'missing'] };
  const removed = await change('/v1/imagecache/remove', removal);
  expect([removed.status, removed.body.items]).toMatchObject([207, [{ code: 404 }, { code: 200 }]]);
  expect(await targets()).toEqual([[SECOND]]);
  expect((await change('/api/v1/imagecache/remove', { ...removal, nodes: [SECOND] })).status).toBe(207);
  // An entry without a host would stay for ever, and count in the quota of the namespace.
  expect(await targets()).toEqual([]);
  await change(`${nodesOf(DEFAULT)}/${FIRST}/tag`, { tag: 'cached' });
  await waitFor('the tag in the list', async () => (await itemOf(FIRST)).tags.includes('cached'));
  expect((await change(`${cache}/${encoded}/add`, { tags: ['cached'] })).body.items).toEqual([
    success(FIRST),
  ]);
  expect((await change(`${cache}/${encoded}/remove`, { tags: 'cached,other' })).status).toBe(404);
  expect(await targets()).toEqual([[FIRST]]);
  expect((await change(`${cache}/${encoded}/remove`, { tags: 'cached' })).body.items).toEqual([
    success(FIRST),
  ]);
  expect(await targets()).toEqual([]);
  for (const [body, code, token] of [
    [{}, 400, admin],
    [{ nodes: [FIRST], all: true }, 400, admin],
    [{ all: 'yes' }, 400, admin],
    [{ all: true }, 403, member],
    [{ all: true }, 401, 'invented'],
  ] as const) {
    expect([body, (await change(`${cache}/${encoded}/add`, body, token)).status]).toEqual([body, code]);
  }
  expect((await change('/v1/imagecache/remove', { all: true })).status).toBe(422);
  expect((await change(`${cache}/a%2FB/add`, { all: true })).status).toBe(422);
  // The API server decides whether the caller may see an Image object.
  expect((await change(`${cache}/missing/add`, { all: true })).status).toBe(403);
});

it('can change nothing else of a Node with its own account', async () => {
  const account = '--as=system:serviceaccount:berth-system:berth-server';
  for (const change of [
    `label node ${FIRST} other=x`,
    `annotate node ${FIRST} other=x`,
    `label node ${FIRST} berth.node-restriction.kubernetes.io/host-`,
    `label node ${FIRST} berth.dev/host=false --overwrite`,
    `taint node ${FIRST} other=x:NoSchedule`,
    `patch node ${FIRST} -p {"spec":{"unschedulable":true}}`,
    `patch node ${FIRST} -p {"metadata":{"finalizers":["example.com/other"]}}`,
    `patch node ${FIRST} -p {"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Node","name":"x","uid":"u"}]}}`,
  ]) {
    await expect(cluster.kubectl([...change.split(' '), account])).rejects.toThrow(
      /the HTTP API of Berth may change only the labels/,
    );
  }
});

function multipart(files: Record<string, string>): { body: string; headers: Record<string, string> } {
  const parts = Object.entries(files).map(
    ([name, content]) =>
      `--part\r\ncontent-disposition: form-data; name="${name}"; filename="${name}.pem"\r\n\r\n${content}\r\n`,
  );
  return {
    body: `${parts.join('')}--part--\r\n`,
    headers: { 'content-type': 'multipart/form-data; boundary=part' },
  };
}

async function certificateOf({ url }: ServerProcess): Promise<PeerCertificate> {
  const { hostname, port } = new URL(url);
  const { promise, resolve, reject } = Promise.withResolvers<PeerCertificate>();
  const socket = connect({ host: hostname, port: Number(port), rejectUnauthorized: false }, () =>
    resolve(socket.getPeerCertificate()),
  );
  socket.on('error', reject);
  return await promise.finally(() => socket.destroy());
}

it('uses an uploaded certificate without a restart, and after one', async () => {
  const upload = (files: Record<string, string>, token = admin) =>
    api.call('/api/v1/upload/cert', { method: 'POST', token, ...multipart(files) });
  const key = await createKey('RSA');
  const certificate = await selfSigned({ commonName: 'uploaded', key, ipAddresses: ['127.0.0.1'], days: 1 });
  const pair = { certPath: certificate, keyPath: key.pem };
  for (const [files, code, token] of [
    [pair, 403, member],
    [pair, 401, 'invented'],
    [{ ...pair, keyPath: (await createKey()).pem }, 422, admin],
    [{ certPath: certificate }, 422, admin],
    [{ ...pair, keyPath: 'x'.repeat(100_000) }, 413, admin],
  ] as const) {
    const { status, body } = await upload(files, token);
    expect([status, body.kind]).toEqual([code, 'Status']);
  }
  const json = await api.call('/api/v1/upload/cert', { method: 'POST', token: admin, body: pair });
  expect(json.status).toBe(415);
  expect((await certificateOf(server)).subject.CN).toBe('berth-server');
  const { status, body } = await upload(pair);
  expect([status, body]).toEqual([200, 'The certificate was uploaded']);
  const second = await startReplica('two');
  try {
    expect((await certificateOf(second)).subject.CN).toBe('uploaded');
  } finally {
    await second.process.stop();
  }
  const isUsed = async () => (await certificateOf(server)).subject.CN === 'uploaded';
  await waitFor('the first replica to use the certificate', isUsed);
  const ecdsa = await createKey();
  const next = await selfSigned({ commonName: 'next', key: ecdsa, days: 1 });
  const trusting = new HTTPClient({ url: server.url, authority: certificate });
  const files = multipart({ certPath: next, keyPath: ecdsa.pem });
  const again = await trusting.call('/api/v1/upload/cert', { method: 'POST', token: admin, ...files });
  expect(again.status).toBe(200);
  await trusting.close();
  const isReplaced = async () => (await certificateOf(server)).subject.CN === 'next';
  await waitFor('the first replica to use the next certificate', isReplaced);
});
