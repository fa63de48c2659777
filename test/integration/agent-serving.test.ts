/** Rights that callers of an agent need. Its HTTPS endpoints serve the consoles and metrics of all VMs of a host. */
import { randomBytes } from 'node:crypto';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { request } from 'node:https';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Readable } from 'node:stream';
import { pino } from 'pino';
import { Registry } from 'prom-client';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { KubeletServer } from '../../agent/kubelet/server.ts';
import { Authorizer } from '../../kube/serving/authorization.ts';
import { HttpError } from '../../kube/serving/httperror.ts';
import { createKey } from '../../kube/certificates/certificate.ts';
import { SUBJECT_ACCESS_REVIEWS } from '../../kube/core.ts';
import type { Cluster } from '../../hack/cluster/index.ts';
import { type Authority, createAuthority, issue } from '../../hack/cluster/authority.ts';
import { sharedCluster } from '../support/cluster.ts';
import { requestToken, SERVICE_ACCOUNTS } from '../../hack/cluster/tokens.ts';
import { waitFor } from '../../hack/wait.ts';

const NODE = 'served';
const namespace = `agent-serving-${randomBytes(4).toString('hex')}`;
const METRICS = ['GET', '/metrics'] as const;
const RESOURCES = ['GET', '/metrics/resource'] as const;
const LOGS = ['GET', '/containerLogs/platform-default/vm/machine'] as const;
const EXEC = ['POST', '/exec/platform-default/vm/machine'] as const;
const ATTACH = ['POST', '/attach/platform-default/vm/machine', upgradeTo('SPDY/3.1')] as const;
/** Clients of WebSockets can only send GET. Such a GET needs the same right as a POST. */
const SOCKET = ['GET', '/portForward/platform-default/vm?port=22', upgradeTo('websocket')] as const;

interface Caller {
  readonly token?: string;
  readonly cert?: string;
  readonly key?: string;
}

let cluster: Cluster;
let folder: string;
let server: KubeletServer;
let port: number;
let callers: Record<string, Caller>;

function upgradeTo(protocol: string): Record<string, string> {
  return { connection: 'Upgrade', upgrade: protocol };
}

/** Returns the statuses of both kinds of metrics, logs, exec, attach and a WebSocket for a caller. */
async function statusesFor({ token, ...pair }: Caller): Promise<number[]> {
  const ask = ([method, path, upgrade]: readonly [string, string, object?]): Promise<number> => {
    const { promise, resolve, reject } = Promise.withResolvers<number>();
    const headers = { ...upgrade, ...(token !== undefined && { authorization: `Bearer ${token}` }) };
    const options = { host: '127.0.0.1', port, path, method, headers, rejectUnauthorized: false };
    request({ ...options, ...pair, agent: false }, (response) => {
      response.resume();
      resolve(response.statusCode ?? 0);
    })
      .on('error', reject)
      .end();
    return promise;
  };
  return await Promise.all([METRICS, RESOURCES, LOGS, EXEC, ATTACH, SOCKET].map(ask));
}

/** Returns a token of a ServiceAccount that may `get` this subresource of this Node, once the API server knows the right. */
async function tokenFor(name: string, right?: { resource: string; node: string }): Promise<Caller> {
  const client = cluster.client();
  await client.create(SERVICE_ACCOUNTS, { metadata: { name, namespace } });
  if (right !== undefined) {
    const role = `${namespace}-${name}`;
    const what = [`--verb=get`, `--resource=nodes/${right.resource}`, `--resource-name=${right.node}`];
    await cluster.kubectl(['create', 'clusterrole', role, ...what]);
    const bound = [`--clusterrole=${role}`, `--serviceaccount=${namespace}:${name}`];
    await cluster.kubectl(['create', 'clusterrolebinding', role, ...bound]);
    const user = `system:serviceaccount:${namespace}:${name}`;
    const resourceAttributes = {
      verb: 'get',
      resource: 'nodes',
      subresource: right.resource,
      name: right.node,
    };
    await waitFor(`the right of ${name} to be known`, async () => {
      const spec = { user, groups: [], resourceAttributes: { ...resourceAttributes, version: 'v1' } };
      const review = await client.create(SUBJECT_ACCESS_REVIEWS, { metadata: {}, spec });
      return review.status?.allowed;
    });
  }
  return { token: await requestToken(client, { namespace, name }, 600) };
}

async function certificateOf(authority: Authority, commonName: string, group: string): Promise<Caller> {
  const key = await createKey();
  const subject = { commonName, organizations: [group], usages: ['client' as const] };
  return { key: key.pem, cert: await issue(authority, { ...subject, key }) };
}

beforeAll(async () => {
  cluster = await sharedCluster();
  await cluster.createNamespace(namespace);
  folder = await mkdtemp(join(tmpdir(), 'berth-serving-'));
  const authority = await createAuthority('clients');
  const stranger = await createAuthority('clients');
  const clientCAFile = join(folder, 'ca.crt');
  await writeFile(clientCAFile, authority.certificate);
  const key = await createKey();
  const certificate = await issue(authority, { key, commonName: NODE, ipAddresses: ['127.0.0.1'] });
  server = new KubeletServer({
    nodeName: NODE,
    listenAddress: '127.0.0.1',
    port: 0,
    clientCAFile,
    certificate: { certificate, key: key.pem },
    authorizer: new Authorizer(cluster.client()),
    logs: async () => Readable.from(['booted\n']),
    transfers: () => () => undefined,
    streams: () => {
      throw new HttpError(400, 'VM vm is not running');
    },
    unready: () => undefined,
    metrics: new Registry(),
    resources: { text: async () => 'node_cpu_usage_seconds_total 1 1\n' },
    logger: pino({ level: 'silent' }),
  });
  port = await server.listen();
  callers = {
    'a stranger': {},
    'a stranger with a token that nobody gave out': { token: 'forged' },
    'somebody whom the cluster knows': await tokenFor('somebody'),
    'a user who may read metrics of the host': await tokenFor('metrics', { resource: 'metrics', node: NODE }),
    'a user who may read logs of the host': await tokenFor('logs', { resource: 'proxy', node: NODE }),
    'a user who may read metrics of another host': await tokenFor('other', {
      resource: 'metrics',
      node: 'other',
    }),
    'the API server': await certificateOf(authority, 'kube-apiserver', 'system:masters'),
    'a user with a certificate': await certificateOf(authority, 'somebody', 'people'),
    'the API server, by a certificate of somebody else': await certificateOf(
      stranger,
      'kube-apiserver',
      'system:masters',
    ),
  };
});

afterAll(async () => {
  await server?.close();
  await rm(folder, { recursive: true, force: true });
  const roles = ['metrics', 'logs', 'other'].map((name) => `${namespace}-${name}`);
  await cluster.kubectl(['delete', 'clusterrole,clusterrolebinding', ...roles, '--ignore-not-found']);
  await cluster.kubectl(['delete', 'namespace', namespace, '--wait=false']);
});

/** Statuses of both kinds of metrics, logs and streams. No machine runs here, so callers with the right to a stream get 400. */
it.each([
  ['a stranger', [401, 401, 401, 401, 401, 401]],
  ['a stranger with a token that nobody gave out', [401, 401, 401, 401, 401, 401]],
  ['somebody whom the cluster knows', [403, 403, 403, 403, 403, 403]],
  ['a user who may read metrics of the host', [200, 200, 403, 403, 403, 403]],
  ['a user who may read logs of the host', [403, 403, 200, 403, 403, 403]],
  ['a user who may read metrics of another host', [403, 403, 403, 403, 403, 403]],
  ['the API server', [200, 200, 200, 400, 400, 400]],
  ['a user with a certificate', [403, 403, 403, 403, 403, 403]],
  ['the API server, by a certificate of somebody else', [401, 401, 401, 401, 401, 401]],
])('%s gets for metrics, logs and streams %j', async (caller, statuses) => {
  expect(await statusesFor(callers[caller] ?? {})).toEqual(statuses);
});
