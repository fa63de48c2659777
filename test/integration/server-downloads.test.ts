/** Downloads over the HTTP API: from the image storage to an agent, and through the API server and the server to clients. */
import { execFile } from 'node:child_process';
import { createHash, randomBytes } from 'node:crypto';
import { mkdir, mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { afterAll, beforeAll, beforeEach, expect, it } from 'vitest';
import type { Image } from '../../api/v1alpha1/image.ts';
import { CLUSTER_INFO, HAS_IMAGE_STORAGE, IMAGE_UID_LABEL } from '../../api/v1alpha1/names.ts';
import { IMAGES, ISOS, VMS } from '../../api/v1alpha1/resources.ts';
import type { AskedImage } from '../../agent/images/store.ts';
import { type Cluster, type OperatorProcess, startCluster } from '../../hack/cluster/index.ts';
import type { ServerProcess } from '../../hack/cluster/program.ts';
import { waitFor } from '../../hack/wait.ts';
import { CONFIG_MAPS, type Job, JOBS, PODS } from '../../kube/core.ts';
import type { KubeObject } from '../../kube/objects.ts';
import { accountToken } from '../support/members.ts';
import { type HTTPAnswer, HTTPClient } from '../wires/httpapi.ts';
import { noPublisher, TestHost } from '../worlds/agenthost.ts';
import { openStore } from '../worlds/imagestores.ts';
import { StandInImages } from '../worlds/standin.ts';

const NAMESPACE = 'platform-default';
const TEAM = 'platform-ci';
const MEBIBYTE = 1024 ** 2;
const content = randomBytes(4 * MEBIBYTE);
/** More than all connections on the way keep in their buffers, so that a client which does not read stops its host. */
const large = Buffer.alloc(48 * MEBIBYTE, randomBytes(MEBIBYTE));

/**
 * Time limit for the end of the work after a deletion. The garbage collector of Kubernetes learns of new kinds only every 30 s. After a minute,
 * the host would end the transfer by itself.
 */
const COLLECTION_MILLISECONDS = 50_000;
/** What clients say of an answer that ends before its announced length. */
const BROKEN = /terminated|other side closed|ECONNRESET|aborted/;

let folder: string;
let cluster: Cluster;
let operator: OperatorProcess;
let server: ServerProcess;
let api: HTTPClient;
let host: TestHost;
let token: string;
/** Promise for which each fetch of a host waits. */
let gate: Promise<void>;

beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'berth-downloads-'));
  cluster = await startCluster({ name: `server-downloads-${process.pid}` });
  operator = await cluster.startOperator({ config: { imageStorage: { folder: true } } });
  server = await cluster.startServer();
  api = new HTTPClient(server);
  const clientCAFile = join(cluster.directory, 'pki', 'ca.crt');
  host = await TestHost.make(cluster, { name: 'downloads', kubelet: { port: 0, clientCAFile } });
  const storageFolder = join(folder, 'storage');
  await mkdir(storageFolder);
  const store = await openStore(join(folder, 'store'), [], { storageFolder });
  host.publisher = noPublisher(storageFolder);
  host.images = Object.assign(new StandInImages(), {
    ensure: async (source: Parameters<typeof store.ensure>[0], options: AskedImage) => {
      await gate;
      return await store.ensure(source, options);
    },
  });
  await host.start();
  await cluster.kubectl(['create', 'namespace', TEAM]);
  token = await accountToken(
    cluster,
    { namespace: NAMESPACE, name: 'dev' },
    { role: 'berth-role-dev', in: [NAMESPACE, TEAM] },
  );
  await waitFor('the rights', async () => {
    const answers = [NAMESPACE, TEAM].map(
      async (one) => await api.call(`/api/v1/namespaces/${one}/images`, { token }),
    );
    return (await Promise.all(answers)).every(({ status }) => status === 200);
  });
  gate = Promise.resolve();
  await upload('image', 'desktop', content);
  await upload('iso', 'setup', content);
  await upload('iso', 'large', large);
});

afterAll(async () => {
  await api?.close();
  await host?.remove();
  await cluster?.stop();
  await rm(folder, { recursive: true });
});

beforeEach(() => {
  gate = Promise.resolve();
});

async function send(kind: 'image' | 'iso', name: string, file: Buffer): Promise<HTTPAnswer> {
  const form = new FormData();
  form.set('imageName', name);
  form.set('file', new Blob([file]), 'disk.raw');
  const body = new Response(form);
  return await api.call(`/api/v1/namespaces/${NAMESPACE}/upload/${kind}`, {
    method: 'POST',
    token,
    headers: { 'content-type': body.headers.get('content-type') ?? '' },
    body: Buffer.from(await body.arrayBuffer()),
  });
}

async function upload(kind: 'image' | 'iso', name: string, file: Buffer): Promise<void> {
  expect(await send(kind, name, file)).toMatchObject({ status: 200 });
  await waitFor(`${name} to be Ready`, async () => (await read(kind, name)).status?.phase === 'Ready');
}

async function read(kind: 'image' | 'iso', name: string): Promise<Image> {
  return await cluster.client().get<Image>(kind === 'image' ? IMAGES : ISOS, { namespace: NAMESPACE, name });
}

function pathOf(kind: 'image' | 'iso', name: string, namespace = NAMESPACE): string {
  return `/api/v1/namespaces/${namespace}/${kind}s/${name}/download`;
}

function sha256(bytes: Buffer): string {
  return createHash('sha256').update(bytes).digest('hex');
}

async function download(path: string): Promise<Buffer> {
  const { statusCode, headers, body } = await api.open(path, { token });
  const bytes = Buffer.from(await body.arrayBuffer());
  expect([statusCode, Number(headers['content-length'])]).toEqual([200, bytes.length]);
  return bytes;
}

/** Begins a download and reads its first bytes. The host then waits for the client. */
async function begin(path: string, client = api) {
  const { statusCode, body } = await client.open(path, { token });
  expect(statusCode).toBe(200);
  const rest = body[Symbol.asyncIterator]() as AsyncIterator<Buffer>;
  let { length } = (await rest.next()).value as Buffer;
  const toEnd = async (): Promise<number> => {
    for (let next = await rest.next(); next.done !== true; next = await rest.next()) {
      length += next.value.length;
    }
    return length;
  };
  return { body, toEnd };
}

async function untilOver(kind: 'image' | 'iso', name: string) {
  return await waitFor(`the download of ${name} to be over`, async () => {
    const { spec, status } = await read(kind, name);
    return status?.lastDownload?.requestedAt === spec.download?.requestedAt
      ? status?.lastDownload
      : undefined;
  });
}

async function jobs(): Promise<Job[]> {
  const { items } = await cluster.client().list(JOBS, { namespace: NAMESPACE });
  return items.filter(({ metadata }) => metadata.labels?.['berth.dev/operation'] === 'download');
}

it('an ISO is downloaded as the file that was uploaded', async () => {
  const path = pathOf('iso', 'setup');
  const head = await api.call(path, { method: 'HEAD', token });
  expect([head.status, head.headers['content-disposition']]).toEqual([
    200,
    'attachment; filename="setup.iso"',
  ]);
  expect([await jobs(), (await read('iso', 'setup')).spec.download]).toEqual([[], undefined]);
  expect(sha256(await download(path))).toBe(sha256(content));
  expect(await untilOver('iso', 'setup')).toMatchObject({ result: 'Succeeded' });
});

it('an image is downloaded as the qcow2 file of the storage, from another namespace too, and clients share the work of a host', async () => {
  const opened = Promise.withResolvers<void>();
  gate = opened.promise;
  const before = (await jobs()).length;
  const both = [download(pathOf('image', 'desktop')), download(pathOf('image', 'desktop', TEAM))];
  // The host takes both before it has the image.
  await waitFor('both clients', async () => {
    const { values = [] } = (await host.metrics.getSingleMetric('berth_agent_streams')?.get()) ?? {};
    return values[0]?.value === 2;
  });
  opened.resolve();
  const [one, other] = await Promise.all(both);
  const { status } = await read('image', 'desktop');
  expect([one, other].map((file) => file && `sha256:${sha256(file)}`)).toEqual([
    status?.digest,
    status?.digest,
  ]);
  expect((await jobs()).length).toBe(before + 1);
  const [file, raw] = [join(folder, 'desktop.qcow2'), join(folder, 'desktop.raw')];
  await writeFile(file, one ?? '');
  await promisify(execFile)('qemu-img', ['convert', '-f', 'qcow2', '-O', 'raw', file, raw]);
  expect((await readFile(raw)).equals(content)).toBe(true);
  expect(await untilOver('image', 'desktop')).toMatchObject({ result: 'Succeeded' });
});

it('a client that leaves in the middle ends the work of the host, and the next download is whole', async () => {
  const path = pathOf('iso', 'large');
  const { body } = await begin(path);
  body.destroy();
  expect(await untilOver('iso', 'large')).toMatchObject({
    result: 'Failed',
    message: expect.stringMatching(/^DownloadInterrupted: /),
  });
  expect(sha256(await download(path))).toBe(sha256(large));
  await untilOver('iso', 'large');
  await untilNoCopies();
});

async function untilNoCopies(): Promise<void> {
  await waitFor('the copies of the host to be gone', async () => {
    const files = await readdir(join(host.dataDirectory, 'tasks'), { recursive: true });
    return !files.some((file) => file.includes('disk.'));
  });
}

it('a client whose host or replica ends in the middle has a broken transfer and no shorter file', async () => {
  const path = pathOf('iso', 'large');
  const onHost = await begin(path);
  await host.stop();
  await expect(onHost.toEnd()).rejects.toThrow(BROKEN);
  await host.start();
  expect((await download(path)).length).toBe(large.length);

  const replica = await cluster.startServer({ name: 'replica' });
  const client = new HTTPClient(replica);
  const onReplica = await begin(path, client);
  await replica.process.kill('SIGKILL');
  await expect(onReplica.toEnd()).rejects.toThrow(BROKEN);
  await client.close();
  expect(await untilOver('iso', 'large')).toMatchObject({ result: 'Failed' });
});

it('a deletion in the middle ends the transfer, and nothing is left', async () => {
  const { uid } = (await read('iso', 'large')).metadata;
  const { toEnd } = await begin(pathOf('iso', 'large'));
  const selection = { namespace: NAMESPACE, labelSelector: `${IMAGE_UID_LABEL}=${uid}` };
  const left = async (): Promise<boolean[]> => {
    const lists = [JOBS, PODS].map(async (type) => await cluster.client().list<KubeObject>(type, selection));
    return (await Promise.all(lists)).map(({ items }) => items.length > 0);
  };
  expect(await left()).toEqual([true, true]);
  await cluster.client().delete(ISOS, { namespace: NAMESPACE, name: 'large' });
  const areGone = async (): Promise<boolean> => !(await left()).includes(true);
  await waitFor('the Jobs and Pods to be gone', areGone, { deadlineMilliseconds: COLLECTION_MILLISECONDS });
  await expect(toEnd()).rejects.toThrow(BROKEN);
  await untilNoCopies();
  expect((await api.call(pathOf('iso', 'large'), { token })).status).toBe(404);
});

it('callers without the right, missing objects and objects without a file are refused', async () => {
  const before = (await read('image', 'desktop')).spec.download;
  const account = { namespace: NAMESPACE, name: 'viewer' };
  const viewer = await accountToken(cluster, account, { role: 'berth-role-viewer', in: 'cluster' });
  const stranger = await accountToken(cluster, { namespace: NAMESPACE, name: 'stranger' });
  await waitFor('the rights', async () => {
    const { status } = await api.call(`/api/v1/namespaces/${NAMESPACE}/images`, { token: viewer });
    return status === 200;
  });
  const metadata = { namespace: NAMESPACE, name: 'unready' };
  const source = { http: { url: 'https://files.invalid/disk.img', sha256: '0'.repeat(64) } };
  await cluster.client().create(IMAGES, { metadata, spec: { source } });
  await cluster.client().create(IMAGES, {
    metadata: { ...metadata, name: 'empty' },
    spec: { source: { empty: { size: '1Gi' } } },
  });
  await waitFor('the empty image', async () => (await read('image', 'empty')).status?.phase === 'Ready');
  const cases = [
    ['desktop', viewer, 403],
    ['desktop', stranger, 403],
    ['missing', token, 404],
    ['unready', token, 409],
    ['empty', token, 422],
  ] as const;
  for (const [name, as, code] of cases) {
    const { status, body } = await api.call(pathOf('image', name), { token: as });
    expect([name, status, body.kind]).toEqual([name, code, 'Status']);
  }
  expect((await read('image', 'desktop')).spec.download).toEqual(before);
  expect((await read('image', 'unready')).spec).not.toHaveProperty('download');
});

it('the screen of a VM is a picture for those who may use pods/exec', async () => {
  const path = `/api/v1/namespaces/${NAMESPACE}/vms`;
  const picture = async (name: string, as = token) =>
    await api.call(`${path}/${name}/screenshot`, { token: as });
  const { status } = await api.call(path, {
    method: 'POST',
    token,
    body: { name: 'desk', image: 'desktop' },
  });
  expect(status).toBe(200);
  const { statusCode, headers, body } = await api.open(`${path}/desk/screenshot`, { token });
  const bytes = Buffer.from(await body.arrayBuffer());
  expect([statusCode, headers['content-type'], headers['content-length']]).toEqual([
    200,
    'image/png',
    String(bytes.length),
  ]);
  expect(bytes.toString('latin1')).toBe('\u0089PNG\r\n\u001a\npicture');
  host.driver.screenshot = async () => Buffer.from('no picture');
  expect(await picture('desk')).toMatchObject({
    status: 502,
    body: { message: expect.stringMatching(/did not send a picture as PNG/) },
  });
  const unplaceable = { name: 'unplaced', image: 'desktop', tag: 'nowhere', tagRequired: true };
  await api.call(`${path}?wait=false`, { method: 'POST', token, body: unplaceable });
  expect((await picture('unplaced')).status).toBe(409);
  expect((await picture('absent')).status).toBe(404);
  const stranger = await accountToken(cluster, { namespace: NAMESPACE, name: 'onlooker' }, { role: 'view' });
  expect(await picture('desk', stranger)).toMatchObject({
    status: 403,
    body: { message: expect.stringMatching(/pods\/exec/) },
  });
});

it('without image storage, nothing that needs one is begun', async () => {
  await operator.stop();
  operator = await cluster.startOperator();
  const client = cluster.client();
  const info = { namespace: 'berth-system', name: CLUSTER_INFO };
  await waitFor('the operator to publish it', async () => {
    return (await client.get(CONFIG_MAPS, info)).data?.[HAS_IMAGE_STORAGE] === 'false';
  });
  await client.create(VMS, { metadata: { namespace: NAMESPACE, name: 'kept' }, spec: { image: 'desktop' } });
  const before = (await client.list(IMAGES, { namespace: NAMESPACE })).items.map(({ spec }) => spec);
  const vm = `/api/v1/namespaces/${NAMESPACE}/vms/kept`;
  const answers = [
    await api.call(pathOf('image', 'desktop'), { token }),
    await send('image', 'uploaded', content),
    await api.call(`${vm}/save`, { method: 'POST', token, body: { imageName: 'saved' } }),
    await api.call(`${vm}/commit`, { method: 'POST', token, body: {} }),
    await api.call(`${vm}/push`, { method: 'POST', token, body: { imageReference: 'registry.example/a' } }),
  ];
  for (const { status, body } of answers) {
    expect([status, body.reason, body.details]).toEqual([
      501,
      'NotImplemented',
      { causes: [expect.objectContaining({ reason: 'NoImageStorage' })] },
    ]);
  }
  const after = (await client.list(IMAGES, { namespace: NAMESPACE })).items.map(({ spec }) => spec);
  expect(after).toEqual(before);
});
