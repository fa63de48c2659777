/** Rules of the HTTP API that hold for every path, and the list of VMs. */
import { randomBytes } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, it } from 'vitest';
import type { Cluster } from '../../hack/cluster/index.ts';
import type { ServerProcess } from '../../hack/cluster/program.ts';
import { waitFor } from '../../hack/wait.ts';
import { VMS as VM_OBJECTS } from '../../api/v1alpha1/resources.ts';
import { setDebugLevel } from '../support/loglevel.ts';
import { readLogLines } from '../support/loglines.ts';
import { sharedCluster } from '../support/cluster.ts';
import { accountToken } from '../support/members.ts';
import { HTTPClient } from '../wires/httpapi.ts';

const namespace = `platform-http-${randomBytes(4).toString('hex')}`;
const VMS = `/api/v1/namespaces/${namespace}/vms`;

let cluster: Cluster;
let server: ServerProcess;
let api: HTTPClient;
let token: string;
let strangerToken: string;

beforeAll(async () => {
  cluster = await sharedCluster();
  await cluster.createNamespace(namespace);
  server = await cluster.startServer({ name: `server-${namespace}` });
  api = new HTTPClient(server);
  token = await accountToken(cluster, { namespace, name: 'member' }, { role: 'edit' });
  strangerToken = await accountToken(cluster, { namespace, name: 'stranger' });
  await waitFor('the rights of the member', async () => (await api.call(VMS, { token })).status === 200);
});

afterAll(async () => {
  await api?.close();
  await server?.process.stop();
  await cluster?.kubectl(['delete', 'namespace', namespace, '--wait=false']);
  await cluster?.disconnect();
});

it('logs a request that changes something with the id of its answer, and other requests from the level debug on', async () => {
  const line = async (id: string) =>
    await waitFor('the line of a request', () =>
      readLogLines(readFileSync(server.process.logFile, 'utf8')).find(({ requestID }) => requestID === id),
    );
  const refused = await api.call(VMS, { method: 'POST', token, body: { image: 'image', cpu: 'many' } });
  const { requestID } = refused.body as { requestID: string };
  expect(refused.headers['x-request-id']).toBe(requestID);
  expect(await line(requestID)).toMatchObject({
    level: 'info',
    method: 'POST',
    path: VMS,
    status: refused.status,
    username: `system:serviceaccount:${namespace}:member`,
  });
  await setDebugLevel(join(cluster.directory, `server-${namespace}.yaml`), server.process.logFile);
  await api.call(VMS, { token, headers: { 'x-request-id': 'chosen-by-a-proxy' } });
  expect(await line('chosen-by-a-proxy')).toMatchObject({ level: 'debug', method: 'GET', status: 200 });
});

it('lists the VMs of a namespace for a member, and refuses a stranger in the words of the API server', async () => {
  const manifest = {
    apiVersion: 'berth.dev/v1alpha1',
    kind: 'VM',
    metadata: { name: 'one', namespace, labels: { job: '42' } },
    spec: { image: 'image', cpu: 2, memory: '4915Mi' },
  };
  await cluster.kubectl(['create', '-f', '-'], { input: JSON.stringify(manifest) });
  const { status, body } = await api.call(VMS, { token });
  expect([status, body.items]).toMatchObject([
    200,
    [{ name: 'one', cpu: 2, memory: '4.80Gi', image: 'image', status: 'Pending', labels: { job: '42' } }],
  ]);
  expect(body.items[0]).not.toHaveProperty('ssh');
  const refused = await api.call(VMS, { token: strangerToken });
  expect([refused.status, refused.body.kind, refused.body.reason]).toEqual([403, 'Status', 'Forbidden']);
  expect(refused.body.message).toContain(`cannot list resource "vms" in API group "berth.dev"`);
});

it('accepts duplicate and trailing slashes, and the word Bearer twice', async () => {
  for (const path of [`/${VMS}`, `${VMS}/`, VMS.replace('v1', 'v1/')]) {
    expect([path, (await api.call(path, { token })).status]).toEqual([path, 200]);
  }
  expect((await api.call(VMS, { headers: { authorization: `Bearer Bearer ${token}` } })).status).toBe(200);
});

it('answers a missing and an invented token with 401, and an unknown path with 404, as a Status', async () => {
  const status = { kind: 'Status', apiVersion: 'v1', status: 'Failure' };
  for (const wrong of [undefined, 'invented']) {
    const { body, headers, ...answer } = await api.call(VMS, { token: wrong });
    expect([answer.status, body]).toMatchObject([401, { ...status, message: 'Unauthorized', code: 401 }]);
    expect(headers['www-authenticate']).toMatch(/^Bearer/);
    const deployed = await api.call(VMS, { method: 'POST', token: wrong, body: { image: 'image' } });
    expect([deployed.status, deployed.body.message]).toEqual([401, 'Unauthorized']);
  }
  for (const [path, code] of [
    ['/api/v1/nothing', 404],
    ['/api/v1/namespaces/%zz/vms', 400],
    [`/api/v1/namespaces/${'x'.repeat(3000)}/vms`, 414],
  ] as const) {
    const answer = await api.call(path, { token });
    expect([path, answer.status, answer.body]).toMatchObject([path, code, { ...status, code }]);
  }
});

it('reads an empty body of any content type', async () => {
  for (const type of ['application/x-www-form-urlencoded', 'application/json', 'text/plain']) {
    const call = { method: 'POST', token, body: '', headers: { 'content-type': type } } as const;
    // The image of the VM is no Image, so there is nothing to replace.
    expect([type, (await api.call(`${VMS}/one/commit`, call)).status]).toEqual([type, 409]);
  }
});

it('shows its OpenAPI document to everybody', async () => {
  const { status, body } = await api.call('/api/v1/swagger/json');
  expect([status, body.openapi, Object.keys(body.paths)]).toEqual([
    200,
    '3.1.0',
    expect.arrayContaining(['/api/v1/cluster-info', '/api/v1/namespaces/{namespace}/vms']),
  ]);
});

it('answers HEAD on every path like GET without a body, and changes nothing', async () => {
  const { paths } = (await api.call('/api/v1/swagger/json')).body as { paths: object };
  const stored = { namespace, name: 'one' };
  const before = await cluster.client().get(VM_OBJECTS, stored);
  for (const path of Object.keys(paths)) {
    const filled = path.replaceAll(/\{([^}]+)\}/g, (_all, name: string) =>
      name === 'namespace' ? namespace : 'one',
    );
    const head = await api.call(filled, { method: 'HEAD', token });
    const { status } = await api.call(filled, { token });
    expect([path, head.status, head.body]).toEqual([path, status, '']);
  }
  expect(await cluster.client().get(VM_OBJECTS, stored)).toEqual(before);
});
