/** Credentials for registries over the HTTP API. */
import { randomBytes } from 'node:crypto';
import { afterAll, beforeAll, expect, it } from 'vitest';
import type { Cluster } from '../../hack/cluster/index.ts';
import type { ServerProcess } from '../../hack/cluster/program.ts';
import { waitFor } from '../../hack/wait.ts';
import { sharedCluster } from '../support/cluster.ts';
import { accountToken } from '../support/members.ts';
import { type HTTPAnswer, HTTPClient } from '../wires/httpapi.ts';

const namespace = `platform-registries-${randomBytes(4).toString('hex')}`;
const PATH = `/api/v1/namespaces/${namespace}/secrets/registrycredentials`;
const SERVER = 'https://registry.example:5000';
const PASSWORD = 'a very secret word';

let cluster: Cluster;
let server: ServerProcess;
let api: HTTPClient;
let admin: string;
let dev: string;

beforeAll(async () => {
  cluster = await sharedCluster();
  await cluster.createNamespace(namespace);
  server = await cluster.startServer({ name: `server-${namespace}` });
  api = new HTTPClient(server);
  admin = await accountToken(cluster, { namespace, name: 'admin' }, { role: 'berth-role-admin' });
  dev = await accountToken(cluster, { namespace, name: 'dev' }, { role: 'berth-role-dev' });
  await waitFor('the rights of the roles', async () => {
    const removed = await call('DELETE', '/remove', admin, { server: SERVER });
    return removed.status === 404 && (await call('GET', '', dev)).status === 200;
  });
});

afterAll(async () => {
  await api?.close();
  await server?.process.stop();
  await cluster?.kubectl(['delete', 'namespace', namespace, '--wait=false']);
  await cluster?.disconnect();
});

async function call(
  method: 'GET' | 'POST' | 'DELETE',
  path: string,
  token: string,
  body?: unknown,
): Promise<HTTPAnswer> {
  return await api.call(`${PATH}${path}`, { method, token, body });
}

async function passwords(): Promise<string[]> {
  const path = '-o=jsonpath={.items[*].data.\\.dockerconfigjson}';
  const { stdout } = await cluster.kubectl(['-n', namespace, 'get', 'secrets', path]);
  return stdout.split(' ').map((text) => Buffer.from(text, 'base64').toString());
}

it('an administrator adds, replaces and removes a credential, and nobody reads its password', async () => {
  const credential = { server: `${SERVER}/`, username: 'ci', password: PASSWORD };
  expect(await call('POST', '/add', admin, credential)).toMatchObject({
    status: 200,
    body: { kind: 'Status', status: 'Success' },
  });
  expect(await passwords()).toEqual([
    JSON.stringify({ auths: { 'registry.example:5000': { username: 'ci', password: PASSWORD } } }),
  ]);
  for (const token of [admin, dev]) {
    const { body } = await call('GET', '', token);
    expect(body).toEqual({ items: [{ server: SERVER, username: 'ci', allowInsecure: false }] });
  }
  expect(await call('POST', '/add', admin, credential)).toMatchObject({
    status: 409,
    body: { reason: 'AlreadyExists' },
  });
  const other = { ...credential, username: 'robot', password: 'another word', replace: true };
  expect((await call('POST', '/add', admin, other)).status).toBe(200);
  expect((await call('GET', '', dev)).body.items).toMatchObject([{ server: SERVER, username: 'robot' }]);
  expect(await passwords()).toEqual([
    JSON.stringify({ auths: { 'registry.example:5000': { username: 'robot', password: 'another word' } } }),
  ]);
  expect((await call('DELETE', '/remove', admin, { server: SERVER })).status).toBe(200);
  expect((await call('GET', '', dev)).body).toEqual({ items: [] });
  expect(await passwords()).toEqual(['']);
});

it('a member may not add a credential, and a wrong server changes nothing', async () => {
  const credential = { server: SERVER, username: 'ci', password: PASSWORD };
  expect((await call('POST', '/add', dev, credential)).status).toBe(403);
  for (const url of ['http://registry.example', 'registry', 'https://registry.example/path']) {
    const { status, body } = await call('POST', '/add', admin, { ...credential, server: url });
    expect([url, status, body.details.causes[0].field]).toEqual([url, 422, 'server']);
  }
  expect(await call('GET', '', admin)).toMatchObject({ body: { items: [] } });
});
