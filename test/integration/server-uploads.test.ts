/** Uploads over the HTTP API: through the server and the API server to an agent, and into the folder of the image storage. */
import { execFile } from 'node:child_process';
import { createHash, randomBytes } from 'node:crypto';
import { mkdir, mkdtemp, readdir, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Readable } from 'node:stream';
import { promisify } from 'node:util';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { Registries } from '../../agent/images/oci/repository.ts';
import { Publisher } from '../../agent/images/publisher.ts';
import type { Image } from '../../api/v1alpha1/image.ts';
import { IMAGE_UID_LABEL, STORAGE_SECRET, SYSTEM_NAMESPACE } from '../../api/v1alpha1/names.ts';
import { ReasonedError } from '../../api/v1alpha1/reasons.ts';
import { IMAGES, ISOS } from '../../api/v1alpha1/resources.ts';
import { TRANSFER_PROTOCOL } from '../../api/v1alpha1/transfer.ts';
import { type Cluster, type OperatorProcess, startCluster } from '../../hack/cluster/index.ts';
import type { ServerProcess } from '../../hack/cluster/program.ts';
import { waitFor } from '../../hack/wait.ts';
import { JOBS, PODS, SECRETS } from '../../kube/core.ts';
import { loadConnection } from '../../kube/credentials.ts';
import { createMetrics } from '../../kube/metrics.ts';
import { Transport } from '../../kube/transport.ts';
import { isGone } from '../fixtures/objects.ts';
import { accountToken } from '../support/members.ts';
import { HTTPClient } from '../wires/httpapi.ts';
import { startRegistry, type TestRegistry } from '../wires/registry.ts';
import { TestHost } from '../worlds/agenthost.ts';

const NAMESPACE = 'platform-default';
const MEBIBYTE = 1024 ** 2;
const BOUNDARY = 'boundary';
/** Time limit for the end of what a deleted Image owns. The garbage collector learns of new kinds only every 30 s. */
const COLLECTION_MILLISECONDS = 90_000;
/** A disk whose second half is empty. */
const content = Buffer.concat([randomBytes(2 * MEBIBYTE), Buffer.alloc(2 * MEBIBYTE)]);
const digest = createHash('sha256').update(content).digest('hex');

let folder: string;
let cluster: Cluster;
let operator: OperatorProcess;
let server: ServerProcess;
let api: HTTPClient;
let host: TestHost;
/** An image storage beside the folder. */
let registry: TestRegistry;
let registries: Registries;
let token: string;

beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'berth-uploads-'));
  cluster = await startCluster({ name: `server-uploads-${process.pid}` });
  operator = await cluster.startOperator({ config: { imageStorage: { folder: true } } });
  server = await cluster.startServer();
  api = new HTTPClient(server);
  const clientCAFile = join(cluster.directory, 'pki', 'ca.crt');
  host = await TestHost.make(cluster, { name: 'uploads', kubelet: { port: 0, clientCAFile } });
  registry = await startRegistry({ directory: join(folder, 'registry') });
  registries = new Registries({ registries: [registry], allowLoopbackHttp: false });
  const storageFolder = join(folder, 'storage');
  await mkdir(storageFolder);
  host.publisher = new Publisher({ registries, storageFolder });
  await host.start();
  token = await accountToken(cluster, { namespace: NAMESPACE, name: 'dev' }, { role: 'berth-role-dev' });
  await waitFor('the rights', async () => {
    const { status } = await api.call(`/api/v1/namespaces/${NAMESPACE}/images`, { token });
    return status === 200;
  });
});

afterAll(async () => {
  await api?.close();
  await host?.remove();
  await cluster?.stop();
  await registries?.close();
  await registry?.close();
  await rm(folder, { recursive: true });
});

function head(texts: Record<string, string>): Buffer {
  const fields = Object.entries(texts).map(
    ([name, value]) => `--${BOUNDARY}\r\nContent-Disposition: form-data; name="${name}"\r\n\r\n${value}\r\n`,
  );
  const file = `--${BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="disk.raw"\r\n\r\n`;
  return Buffer.from(fields.join('') + file);
}

const TAIL = Buffer.from(`\r\n--${BOUNDARY}--\r\n`);

async function upload(kind: 'image' | 'iso', texts: Record<string, string>, as = token, tail = TAIL) {
  return await api.call(`/api/v1/namespaces/${NAMESPACE}/upload/${kind}`, {
    method: 'POST',
    token: as,
    headers: { 'content-type': `multipart/form-data; boundary=${BOUNDARY}` },
    body: Buffer.concat([head(texts), content, tail]),
  });
}

async function untilReady(kind: typeof IMAGES | typeof ISOS, name: string): Promise<Image> {
  return await waitFor(`${name} to be Ready`, async () => {
    const object = await cluster.client().get<Image>(kind, { namespace: NAMESPACE, name });
    return object.status?.phase === 'Ready' ? object : undefined;
  });
}

async function isLeft(name: string): Promise<boolean> {
  return !(await isGone(() => cluster.client().get(IMAGES, { namespace: NAMESPACE, name })));
}

it('a file becomes an Image with the same content, and the caller is its creator', async () => {
  const { status, body } = await upload('image', { imageName: 'desktop', type: 'amd64', sha256: digest });
  expect([status, body]).toEqual([200, expect.objectContaining({ name: 'desktop', state: 'Updating' })]);
  const image = await untilReady(IMAGES, 'desktop');
  expect(image.metadata.annotations?.['berth.dev/created-by']).toBe(`system:serviceaccount:${NAMESPACE}:dev`);
  expect(image.status).toMatchObject({ size: '4Mi', origin: 'upload', content: { type: 'storedFile' } });
  const stored = join(folder, 'storage', image.status?.content?.path ?? '');
  const raw = join(folder, 'desktop.raw');
  await promisify(execFile)('qemu-img', ['convert', '-f', 'qcow2', '-O', 'raw', stored, raw]);
  expect((await readFile(raw)).equals(content)).toBe(true);
});

it('a file becomes an ISO, whose name is that of the file', async () => {
  expect((await upload('iso', {})).body).toMatchObject({ name: 'disk' });
  expect((await untilReady(ISOS, 'disk')).status).toMatchObject({ size: '4Mi' });
});

it('a file with another digest is refused, and leaves no Image', async () => {
  const { status, body } = await upload('image', { imageName: 'other', sha256: 'a'.repeat(64) });
  expect([status, body.details.causes[0].reason]).toEqual([422, 'DigestMismatch']);
  expect(body.message).toContain('Image other was deleted');
  await waitFor('the Image to be gone', async () => !(await isLeft('other')));
});

it('a text after the file is refused by its name, and leaves no Image', async () => {
  const text = `\r\n--${BOUNDARY}\r\nContent-Disposition: form-data; name="sha256"\r\n\r\n${digest}`;
  const tail = Buffer.concat([Buffer.from(text), TAIL]);
  const { status, body } = await upload('image', { imageName: 'tardy' }, token, tail);
  expect([status, body.message]).toEqual([422, 'sha256: must come before the file. Image tardy was deleted']);
  await waitFor('the Image to be gone', async () => !(await isLeft('tardy')));
});

/** Uploads a file whose second half follows after `meanwhile`, which begins when the host receives the first half. */
async function uploadInHalves(name: string, meanwhile: () => Promise<void>, via = api, signal?: AbortSignal) {
  // The file of an earlier upload would look like the first half of this one.
  await untilNoTaskFiles();
  const begun = head({ imageName: name });
  const body = Readable.from(
    (async function* () {
      yield Buffer.concat([begun, content.subarray(0, MEBIBYTE)]);
      await waitFor('the host to receive the file', async () => (await taskFiles()).includes('upload'));
      await meanwhile();
      yield Buffer.concat([content.subarray(MEBIBYTE), TAIL]);
    })(),
  );
  const length = begun.length + content.length + TAIL.length;
  const type = `multipart/form-data; boundary=${BOUNDARY}`;
  const headers = { 'content-type': type, 'content-length': String(length) };
  const path = `/api/v1/namespaces/${NAMESPACE}/upload/image`;
  return await via.call(path, { method: 'POST', token, headers, body, ...(signal && { signal }) });
}

/** Waits until the Image is gone, and its Job and Pod with it. */
async function untilGone(name: string): Promise<void> {
  const areGone = async (): Promise<boolean> => {
    const jobs = await cluster.client().list(JOBS, { namespace: NAMESPACE });
    const pods = await cluster.client().list(PODS, { namespace: NAMESPACE });
    // The Job has the Image as its owner, and its Pod has the place of the content.
    const open = [...jobs.items, ...pods.items]
      .map(({ metadata, status }) => JSON.stringify({ metadata, phase: status }))
      .filter((text) => new RegExp(`"${name}"|/${name}-`).test(text));
    if (open.length > 0) {
      throw new Error(open.join('\n'));
    }
    return !(await isLeft(name));
  };
  const options = { deadlineMilliseconds: COLLECTION_MILLISECONDS };
  await waitFor(`Image ${name} and its Job and Pod to be gone`, areGone, options);
}

/** Returns the names of the disks that tasks have on the host, without their logs. */
async function taskFiles(): Promise<string[]> {
  const files = await readdir(join(host.dataDirectory, 'tasks'), { recursive: true, withFileTypes: true });
  return files
    .filter((file) => file.isFile() && !/^serial|^(?:current|offset)$/.test(file.name))
    .map(({ name }) => name);
}

/** Waits until the host has no file of a task. It removes the folder of a task shortly after the Pod is gone. */
async function untilNoTaskFiles(): Promise<void> {
  await waitFor('the files of tasks to be gone', async () => (await taskFiles()).length === 0);
}

it('a client that leaves in the middle of its file leaves no Image, and the next upload has the name', async () => {
  const abort = new AbortController();
  const meanwhile = async () => abort.abort();
  await expect(uploadInHalves('halfway', meanwhile, api, abort.signal)).rejects.toThrow('aborted');
  await untilGone('halfway');
  expect((await upload('image', { imageName: 'halfway' })).status).toBe(200);
});

it('a replica that is killed in the middle of a file leaves a Failed Image, which has the cause', async () => {
  const other = await cluster.startServer({ name: 'other' });
  const client = new HTTPClient(other);
  const meanwhile = async () => {
    await other.process.kill('SIGKILL');
  };
  await expect(uploadInHalves('orphan', meanwhile, client)).rejects.toThrow(/other side closed|ECONN|EPIPE/);
  await client.close();
  const { status } = await waitFor('the Image to be Failed', async () => {
    const image = await cluster.client().get(IMAGES, { namespace: NAMESPACE, name: 'orphan' });
    return image.status?.phase === 'Failed' ? image : undefined;
  });
  expect(status?.uploadFailure).toMatch(/^UploadInterrupted: /);
  await untilNoTaskFiles();
});

it('an agent that ends in the middle of a file leaves no Image and no file', async () => {
  const { status, body } = await uploadInHalves('unlucky', async () => await host.stop());
  expect([status, body.message]).toEqual([503, expect.stringContaining('Image unlucky was deleted')]);
  await host.launch();
  await untilGone('unlucky');
  await untilNoTaskFiles();
});

it('a disk that becomes full in the middle of a file is named, and leaves no Image and no file', async () => {
  const { images } = host;
  const full = new AbortController();
  const withRoom = images.withRoom.bind(images);
  images.withRoom = async (_claim, signal, work) => await work(AbortSignal.any([signal, full.signal]));
  const meanwhile = async () => full.abort(new ReasonedError('DiskFull', 'The disk has no room'));
  const { status, body } = await uploadInHalves('large', meanwhile);
  images.withRoom = withRoom;
  expect([status, body.details.causes[0].reason]).toEqual([503, 'DiskFull']);
  await untilGone('large');
  await untilNoTaskFiles();
});

it('a second sender is refused, and an operator that is killed in the middle changes nothing', async () => {
  const { status } = await uploadInHalves('disputed', async () => {
    await expect(attached('disputed')).rejects.toThrow('does not wait for a file');
    await operator.kill('SIGKILL');
    await operator.stopped;
  });
  expect(status).toBe(200);
  const prefix = `${registry.host}/storage`;
  operator = await cluster.startOperator({ config: { imageStorage: { registry: { prefix } } } });
  const image = await untilReady(IMAGES, 'disputed');
  expect(image.status?.content).toMatchObject({ type: 'storedFile' });
});

it('a file goes to an image storage in a registry', async () => {
  await cluster.client().create(SECRETS, {
    metadata: { name: STORAGE_SECRET, namespace: SYSTEM_NAMESPACE },
    type: 'kubernetes.io/dockerconfigjson',
    stringData: { '.dockerconfigjson': registry.dockerConfigJson() },
  });
  expect((await upload('image', { imageName: 'published' })).status).toBe(200);
  const { status } = await untilReady(IMAGES, 'published');
  expect(status).toMatchObject({ origin: 'upload', size: '4Mi', content: { type: 'storedArtifact' } });
});

/** Attaches to the task of an Image as its sender does. */
async function attached(name: string): Promise<void> {
  const { metadata } = await cluster.client().get(IMAGES, { namespace: NAMESPACE, name });
  const labelSelector = `${IMAGE_UID_LABEL}=${metadata.uid}`;
  const { items } = await cluster.client().list(PODS, { namespace: NAMESPACE, labelSelector });
  const path = `/api/v1/namespaces/${NAMESPACE}/pods/${items[0]?.metadata.name}/attach?container=task&stdin=true`;
  const { server: address, certificateAuthority } = await loadConnection({
    kubeconfigPath: cluster.kubeconfig,
  });
  const connection = { server: address, certificateAuthority, token };
  const transport = new Transport(connection, { metrics: createMetrics() });
  try {
    await transport.upgrade(path, TRANSFER_PROTOCOL, AbortSignal.timeout(10_000));
  } finally {
    await transport.close();
  }
}

it('a stranger gets the refusal of the API server, and makes nothing', async () => {
  const stranger = await accountToken(cluster, { namespace: NAMESPACE, name: 'stranger' });
  expect((await upload('image', { imageName: 'strange' }, stranger)).status).toBe(403);
  expect(await isLeft('strange')).toBe(false);
});
