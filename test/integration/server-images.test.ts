/** VM configs, images and ISOs of the HTTP API. */
import { randomBytes } from 'node:crypto';
import { afterAll, beforeAll, expect, it } from 'vitest';
import type { Cluster } from '../../hack/cluster/index.ts';
import type { ServerProcess } from '../../hack/cluster/program.ts';
import { waitFor } from '../../hack/wait.ts';
import { sharedCluster } from '../support/cluster.ts';
import { accountToken } from '../support/members.ts';
import { type HTTPAnswer, HTTPClient } from '../wires/httpapi.ts';

const suffix = randomBytes(4).toString('hex');
const namespace = `platform-own-${suffix}`;
/** Default namespace of this file's server. The other files have their own. */
const shared = `platform-shared-${suffix}`;
const USER = `system:serviceaccount:${namespace}:member`;

let cluster: Cluster;
let server: ServerProcess;
let api: HTTPClient;
let token: string;
let localToken: string;

beforeAll(async () => {
  cluster = await sharedCluster();
  await cluster.createNamespace(namespace);
  await cluster.createNamespace(shared);
  server = await cluster.startServer({
    name: `server-${namespace}`,
    config: { namespaces: { default: shared } },
  });
  api = new HTTPClient(server);
  token = await accountToken(
    cluster,
    { namespace, name: 'member' },
    { role: 'edit', in: [namespace, shared] },
  );
  localToken = await accountToken(cluster, { namespace, name: 'local' }, { role: 'edit' });
  await waitFor('the rights of the members', async () => {
    const answers = [await get(`${shared}/images`), await call('GET', `${namespace}/images`, localToken)];
    return answers.every(({ status }) => status === 200);
  });
});

afterAll(async () => {
  await api?.close();
  await server?.process.stop();
  await cluster?.kubectl(['delete', 'namespace', namespace, shared, '--wait=false']);
  await cluster?.disconnect();
});

async function call(
  method: 'GET' | 'POST' | 'DELETE',
  path: string,
  as: string,
  body?: unknown,
): Promise<HTTPAnswer> {
  return await api.call(`/api/v1/namespaces/${path}`, { method, token: as, body });
}
const get = async (path: string) => await call('GET', path, token);
const post = async (path: string, body: unknown) => await call('POST', path, token, body);

async function stored(kind: string, name: string): Promise<{ metadata: Meta; spec: unknown }> {
  const { stdout } = await cluster.kubectl(['-n', namespace, 'get', kind, name, '-o', 'json']);
  return JSON.parse(stdout) as { metadata: Meta; spec: unknown };
}
interface Meta {
  annotations?: Record<string, string>;
}

it('makes a VM config from the request of a client that sends its empty fields too, and shows and deletes it', async () => {
  const request = { name: 'ci', image: 'ghcr.io/berth/base:26', cpu: 4, memory: 0, netBoost: true };
  const placement = { scheduler: 'most-allocated', tag: 'fast', tagRequired: true, node: 'host' };
  const made = await post(`${namespace}/vmconfigs`, {
    ...request,
    ...placement,
    displayDpi: 96,
    iso: null,
    gpuPassthrough: false,
  });
  const item = {
    name: 'ci',
    namespace,
    image: request.image,
    cpu: 4,
    tag: 'fast',
    tagRequired: true,
    node: 'host',
  };
  const whole = { ...item, scheduler: 'most-allocated', displayDPI: 96 };
  expect([made.status, made.body]).toEqual([200, whole]);
  expect(await stored('vmconfig', 'ci')).toMatchObject({
    metadata: { annotations: { 'berth.dev/created-by': USER } },
    spec: {
      placement: { node: 'host', tag: 'fast', tagPolicy: 'Required', strategy: 'MostAllocated' },
      displayDPI: 96,
    },
  });
  expect((await get(`${namespace}/vmconfigs/ci`)).body).toEqual(whole);
  expect((await post(`${namespace}/vmconfigs`, request)).body).toMatchObject({
    code: 409,
    reason: 'AlreadyExists',
  });
  expect((await call('DELETE', `${namespace}/vmconfigs/ci`, token)).body).toMatchObject({
    status: 'Success',
  });
  for (const method of ['GET', 'DELETE'] as const) {
    const gone = await call(method, `${namespace}/vmconfigs/ci`, token);
    expect([gone.status, gone.body.reason, gone.body.message]).toEqual([
      404,
      'NotFound',
      expect.stringContaining('not found'),
    ]);
  }
});

it('shows the VM configs of the default namespace in another one, except to users without rights there', async () => {
  const config = (image: string, memory: number) => ({ name: 'both', image, iso: 'disc', cpu: 2, memory });
  await post(`${shared}/vmconfigs`, config('shared', 4.8));
  await post(`${shared}/vmconfigs`, { ...config('shared', 8), name: 'shared' });
  await post(`${namespace}/vmconfigs`, config('own', 16));
  const { body } = await get(`${namespace}/vmconfigs`);
  expect(body.items).toEqual([
    { ...config('own', 16), namespace },
    { ...config('shared', 8), name: 'shared', namespace: shared },
  ]);
  expect((await get(`${namespace}/vmconfigs/shared`)).body).toMatchObject({ memory: 8, namespace: shared });
  expect((await get(`${shared}/vmconfigs/both`)).body).toMatchObject({ memory: 4.8 });
  expect((await call('DELETE', `${namespace}/vmconfigs/shared`, token)).status).toBe(404);
  expect((await call('GET', `${namespace}/vmconfigs`, localToken)).body.items).toHaveLength(1);
  expect((await call('GET', `${namespace}/vmconfigs/shared`, localToken)).status).toBe(404);
  expect((await call('GET', `${shared}/vmconfigs`, localToken)).status).toBe(403);
});

it('refuses a VM config outside the bounds in words that name field, value and bounds, and stores nothing', async () => {
  const valid = { name: 'wrong', image: 'base', cpu: 2 };
  const before = (await get(`${namespace}/vmconfigs`)).body.items;
  for (const [change, code, expected] of [
    [{ displayHeight: 100 }, 422, 'displayHeight: must be from 480 to 2160, not 100'],
    [{ displayDPI: 300 }, 422, 'displayDPI: must be from 60 to 240, not 300'],
    [{ memory: -1 }, 422, 'memory: must be from 0.1 to 16384, not -1'],
    [{ cpu: 'two' }, 400, 'cpu'],
    [{ image: '' }, 422, 'image: at least one of image and iso must be given'],
    [{ systemSerial: 'SERIAL-1' }, 422, 'systemSerial: belongs to a single VM'],
    [{ gpuPassthrough: true }, 422, 'gpuPassthrough: GPU passthrough is not offered'],
    [{ name: 'n'.repeat(51) }, 422, 'name'],
  ] as const) {
    const { status, body } = await post(`${namespace}/vmconfigs`, { ...valid, ...change });
    expect([change, status, body.message]).toEqual([change, code, expect.stringContaining(expected)]);
    expect(body.details.causes.length).toBeGreaterThan(0);
  }
  expect((await get(`${namespace}/vmconfigs`)).body.items).toEqual(before);
});

it('makes an empty image, describes it, copies it and deletes it', async () => {
  const made = await post(`${namespace}/images`, { imageName: 'empty', size: '120G', type: 'arm64' });
  const item = { name: 'empty', namespace, type: 'arm64', state: 'Updating' };
  expect([made.status, made.body]).toEqual([200, { ...item, description: '' }]);
  expect((await stored('image', 'empty')).spec).toMatchObject({ source: { empty: { size: '120G' } } });
  const described = await post(`${namespace}/images/empty/description`, { description: 'For CI' });
  expect([described.status, described.body.status]).toEqual([200, 'Success']);
  expect((await get(`${namespace}/images`)).body.items).toEqual([{ ...item, description: 'For CI' }]);
  const copy = await post(`${namespace}/images/empty/copy`, { destination: 'copy' });
  expect(copy.body).toEqual({ ...item, name: 'copy', description: 'For CI' });
  expect((await stored('image', 'copy')).spec).toMatchObject({
    source: { copyOf: { name: 'empty', namespace } },
  });
  await post(`${namespace}/images/empty/description`, { description: '' });
  expect((await get(`${namespace}/images/empty`)).body.description).toBe('');
  expect((await call('DELETE', `${namespace}/images/empty`, token)).body.status).toBe('Success');
  for (const [path, body, code] of [
    ['images/empty/copy', { name: 'again' }, 404],
    ['images/empty/description', { description: 'x' }, 404],
    ['images/copy/description', {}, 422],
    ['images/copy/description', { description: 'x'.repeat(4097) }, 422],
    ['images/copy/copy', {}, 422],
    ['images', { name: 'x', size: 'large' }, 422],
    ['images', { size: '1G' }, 422],
  ] as const) {
    expect([path, (await post(`${namespace}/${path}`, body)).status]).toEqual([path, code]);
  }
});

const SHA256 = 'a'.repeat(64);
const REFERENCE = 'registry.example/team/desktop:15';

it.each([
  [
    'images',
    { reference: REFERENCE, os: 'Linux', type: 'amd64', ttlSecondsAfterFinished: 60 },
    {
      source: { registry: { reference: REFERENCE } },
      os: 'Linux',
      architecture: 'amd64',
      ttlSecondsAfterFinished: 60,
    },
  ],
  [
    'images',
    { url: 'https://files.example/disk.qcow2?signature=1', sha256: SHA256, format: 'QCOW2' },
    {
      source: { http: { url: 'https://files.example/disk.qcow2?signature=1', sha256: SHA256 } },
      format: 'QCOW2',
    },
  ],
  ['images', { sharedFile: 'disks/a.raw' }, { source: { sharedFile: { path: 'disks/a.raw' } } }],
  [
    'isos',
    { url: 'http://files.example/a.iso', sha256: SHA256, description: 'For tests' },
    { source: { http: { url: 'http://files.example/a.iso', sha256: SHA256 } }, description: 'For tests' },
  ],
  ['isos', { reference: REFERENCE }, { source: { registry: { reference: REFERENCE } } }],
] as const)('makes %s from %j, shows and deletes them', async (plural, request, spec) => {
  const made = await post(`${namespace}/${plural}`, { imageName: 'made', ...request });
  const item = { name: 'made', namespace, state: 'Updating', description: '', type: '', ...request };
  expect([made.status, made.body]).toEqual([200, item]);
  expect((await stored(plural, 'made')).spec).toEqual(spec);
  expect((await get(`${namespace}/${plural}/made`)).body).toEqual(item);
  expect((await get(`${namespace}/${plural}`)).body.items).toContainEqual(item);
  expect((await call('DELETE', `${namespace}/${plural}/made`, token)).body.status).toBe('Success');
  expect((await get(`${namespace}/${plural}/made`)).status).toBe(404);
});

it.each([
  ['images', {}, 'exactly one of size, reference, url, sharedFile must be given'],
  ['images', { size: '1G', reference: REFERENCE }, 'exactly one of size, reference, url, sharedFile'],
  ['isos', {}, 'exactly one of reference, url, sharedFile must be given'],
  ['isos', { size: '1G' }, 'size'],
  ['images', { url: 'https://files.example/a' }, 'sha256: must be given together with url'],
  ['images', { reference: REFERENCE, sha256: SHA256 }, 'sha256: must be given together with url'],
  [
    'images',
    { url: 'https://files.example/a', sha256: 'abc' },
    'sha256: must have exactly 64 lower-case hexadecimal digits',
  ],
  ['images', { url: 'ftp://files.example/a', sha256: SHA256 }, 'url: must be an address with http or https'],
  [
    'images',
    { url: 'https://me:secret@files.example/a', sha256: SHA256 },
    'url: must not contain a user name or password',
  ],
  ['images', { sharedFile: '../a' }, 'sharedFile: must be relative and must not contain ..'],
  ['images', { sharedFile: '/a' }, 'sharedFile: must be relative'],
  ['images', { size: '1G', format: 'VMDK' }, 'format: must be Auto or Raw or QCOW2'],
  ['images', { size: '1G', os: 'BeOS' }, 'os: must be MacOS or Linux or Windows'],
  ['images', { size: '1G', ttlSecondsAfterFinished: -1 }, 'ttlSecondsAfterFinished: must be from 0 to'],
] as const)('refuses %s from %j, and makes nothing', async (plural, request, message) => {
  const { status, body } = await post(`${namespace}/${plural}`, { imageName: 'wrong', ...request });
  expect([status, body.message]).toEqual([422, expect.stringContaining(message)]);
  expect(body.message).not.toContain('secret');
  expect((await get(`${namespace}/${plural}/wrong`)).status).toBe(404);
});

it('shows the state of images and ISOs as their status says, and copies an ISO of the default namespace', async () => {
  const object = (kind: string, name: string) => ({
    apiVersion: 'berth.dev/v1alpha1',
    kind,
    metadata: { name, namespace: shared },
    spec: { description: 'Disc', source: { sharedFile: { path: 'disc' } }, architecture: 'amd64' },
  });
  const items = [object('Image', 'ready'), object('Image', 'failed'), object('ISO', 'disc')];
  const list = { apiVersion: 'v1', kind: 'List', items };
  await cluster.kubectl(['create', '-f', '-'], { input: JSON.stringify(list) });
  const status = async (kind: string, name: string, patch: object) => {
    const flags = ['--subresource=status', '--type=merge', '-p', JSON.stringify({ status: patch })];
    await cluster.kubectl(['-n', shared, 'patch', kind, name, ...flags]);
  };
  const time = '2026-11-01T10:00:00Z';
  const condition = { type: 'Ready', status: 'False', reason: 'ImageNotFound', lastTransitionTime: time };
  const facts = { size: '8Gi', storageSize: '2Gi', digest: 'sha256:ab', lastUpdateTime: time };
  await status('image', 'ready', { phase: 'Ready', ...facts });
  await status('image', 'failed', { phase: 'Failed', conditions: [{ ...condition, message: 'No file' }] });
  await status('iso', 'disc', { phase: 'Pulling', progressPercent: 40 });
  const common = { namespace: shared, description: 'Disc', type: 'amd64', sharedFile: 'disc' };
  const { lastUpdateTime, ...shown } = facts;
  const ready = { ...common, ...shown, name: 'ready', state: 'Ready', lastUpdatedTimestamp: lastUpdateTime };
  const { body } = await get(`${shared}/images`);
  expect(body.items).toEqual([
    { ...common, name: 'failed', state: 'Failed', errorMessage: 'No file' },
    ready,
  ]);
  const disc = { ...common, name: 'disc', state: 'Updating', progressPercent: 40 };
  expect((await get(`${namespace}/isos`)).body.items).toEqual([disc]);
  const copy = await post(`${namespace}/isos/disc/copy`, { imageName: 'mine', description: 'Mine' });
  expect(copy.body).toEqual({
    name: 'mine',
    namespace,
    description: 'Mine',
    type: 'amd64',
    state: 'Updating',
  });
  expect((await stored('iso', 'mine')).spec).toMatchObject({
    source: { copyOf: { name: 'disc', namespace: shared } },
  });
});

it('answers 404 for a name that only an image reference can be, however it is encoded, and reaches no other path', async () => {
  await post(`${shared}/images`, { name: 'held', size: '1G' });
  const once = encodeURIComponent('ghcr.io/berth/base:26');
  const names = [once, encodeURIComponent(once), 'ghcr.io/berth/base:26', 'held%2Fstatus', '..%2Fisos'];
  for (const name of names) {
    const answers = [
      await get(`${shared}/images/${name}`),
      await call('DELETE', `${shared}/images/${name}`, token),
      await post(`${shared}/images/${name}/description`, { description: 'x' }),
    ];
    expect([name, answers.map(({ body }) => [body.kind, body.code])]).toEqual([
      name,
      answers.map(() => ['Status', 404]),
    ]);
  }
  const held = await get(`${shared}/images/held`);
  expect([held.status, held.body.description]).toEqual([200, '']);
  const elsewhere = await get(`${shared}%2Fisos%2F..%2F..%2F${shared}/images`);
  expect([elsewhere.status, elsewhere.body.reason]).toEqual([422, 'Invalid']);
});

it('offers no remote images, and says what to use instead', async () => {
  expect((await get(`${namespace}/remoteimages`)).body).toEqual({ items: [] });
  const refused = [
    await post(`${namespace}/remoteimages/base/pull`, {}),
    await post(`${namespace}/remoteisos/base/pull`, {}),
  ];
  expect(refused.map(({ body }) => [body.code, body.reason, body.message])).toEqual(
    refused.map(() => [501, 'NotImplemented', expect.stringMatching(/\. Use an OCI reference/)]),
  );
  expect((await api.call(`/api/v1/namespaces/${namespace}/remoteimages/base/pull`)).status).toBe(405);
  const path = `/api/v1/namespaces/${namespace}/upload/image`;
  expect((await api.call(path, { method: 'POST', body: {} })).status).toBe(401);
});
