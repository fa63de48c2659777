/** Requests to every operation of the HTTP API: its example by callers without any right, and generated ones by an administrator. */
import { readFile } from 'node:fs/promises';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { type Cluster, startCluster } from '../../hack/cluster/index.ts';
import type { ServerProcess } from '../../hack/cluster/program.ts';
import { requestToken, SERVICE_ACCOUNTS } from '../../hack/cluster/tokens.ts';
import { pythonWith } from '../../hack/python/install.ts';
import { waitFor } from '../../hack/wait.ts';
import { IMAGE, VMs } from '../fixtures/vms.ts';
import { allowMetrics, readMetrics } from '../support/operatorlog.ts';
import { type HTTPCall, HTTPClient } from '../wires/httpapi.ts';
import { scaled, tried } from './support/attempts.ts';
import { DOCUMENT, fuzz } from './support/fuzz.ts';
import { snapshotOf } from './support/snapshot.ts';

/** Time limit of the generated requests at full scale. */
const TEST_MILLISECONDS = 3_600_000;
/** Time limit of the cluster, and of an installation of schemathesis over a slow connection. */
const SET_UP_MILLISECONDS = 900_000;
/** Time limit for an operator to start and for a simulated VM to run, on a busy machine. */
const STARTED = { deadlineMilliseconds: 120_000 };
/** Number of generated requests of each operation at full scale. */
const EXAMPLES = 200;

/** Namespace of the callers. No request names it, so that none deletes their accounts. */
const SYSTEM = 'berth-system';
const NAMESPACE = 'platform-default';
const EXISTING = {
  namespace: NAMESPACE,
  name: ['one', 'two'],
  node: ['host-0', 'host-1'],
  image: [IMAGE, 'one'],
  binding: ['berth-role-dev', 'berth-role-admin'],
};
/** A token in the form of an OpenID provider, which no provider has issued. */
const UNKNOWN = ['{"alg":"RS256"}', '{"sub":"somebody"}', 'signature']
  .map((part) => Buffer.from(part).toString('base64url'))
  .join('.');

/** The parts of the OpenAPI document that requests are made of. Paths have no other keys than methods. */
interface Document {
  paths: Record<string, Record<string, Operation>>;
}

interface Operation {
  /** Empty if everybody may send the request. */
  security?: unknown[];
  requestBody?: { content: Record<string, { schema: { examples?: unknown[] } }> };
}

let cluster: Cluster;
let server: ServerProcess;
let api: HTTPClient;
const parts = new AsyncDisposableStack();

beforeAll(async () => {
  // The first call on a machine installs it.
  await pythonWith('schemathesis');
  cluster = parts.adopt(await startCluster({ name: `hostile-openapi-${process.pid}`, hosts: 2 }), (one) =>
    one.stop(),
  );
  await cluster.kubectl(['create', '-f', '-'], { input: JSON.stringify(objects()) });
  await allowMetrics(cluster);
  server = parts.adopt(await cluster.startServer(), (one) => one.process.stop());
  api = parts.adopt(new HTTPClient(server), (one) => one.close());
}, SET_UP_MILLISECONDS);

afterAll(async () => await parts.disposeAsync());

/** Objects that the requests read, change and delete. */
function objects(): object {
  const apiVersion = 'berth.dev/v1alpha1';
  const registry = { registry: { reference: IMAGE } };
  const http = { http: { url: 'https://images.example/setup.iso', sha256: 'a'.repeat(64) } };
  const items = EXISTING.name.flatMap((name) =>
    [
      { apiVersion, kind: 'VM', spec: { image: IMAGE, cpu: 2, memory: '4Gi' } },
      { apiVersion, kind: 'VMConfig', spec: { image: IMAGE } },
      { apiVersion, kind: 'Image', spec: { source: registry } },
      { apiVersion, kind: 'ISO', spec: { source: http } },
      { apiVersion: 'v1', kind: 'ServiceAccount' },
    ].map((object) => ({ ...object, metadata: { name, namespace: NAMESPACE } })),
  );
  return { apiVersion: 'v1', kind: 'List', items };
}

/** Returns the token of a new account without rights. */
async function tokenOf(name: string): Promise<string> {
  const account = { namespace: SYSTEM, name };
  await cluster.client().create(SERVICE_ACCOUNTS, { metadata: account });
  return await requestToken(cluster.client(), account, 24 * 3600);
}

/** Returns a request of each operation that needs a token, with existing objects in its path and the body that the document shows. */
async function exampleRequests(): Promise<[path: string, call: HTTPCall][]> {
  const { paths } = JSON.parse(await readFile(DOCUMENT, 'utf8')) as Document;
  return Object.entries(paths).flatMap(([path, operations]) =>
    Object.entries(operations)
      .filter(([, { security }]) => security?.length !== 0)
      .map(([method, { requestBody }]): [string, HTTPCall] => {
        const body = requestBody?.content['application/json']?.schema.examples?.[0];
        return [filled(path), { method: method.toUpperCase() as 'GET', body }];
      }),
  );
}

function filled(path: string): string {
  const existing: Record<string, string | string[]> = { ...EXISTING, command: 'stop' };
  return path.replaceAll(/\{(\w+)\}/g, (_, name: string) =>
    encodeURIComponent([existing[name]].flat()[0] ?? 'absent'),
  );
}

it('callers without any right get no error of the server, and change nothing', async (context) => {
  const stranger = await tokenOf('stranger');
  const before = await snapshotOf(cluster);
  const requests = await exampleRequests();
  for (const [path, call] of requests) {
    const unknown = await api.call(path, { ...call, token: UNKNOWN });
    const known = await api.call(path, { ...call, token: stranger });
    // Without an image storage, some operations answer 501 to everybody.
    expect([path, [401, 501].includes(unknown.status)]).toEqual([path, true]);
    expect([path, known.status < 500 || known.status === 501]).toEqual([path, true]);
    tried(context, 'example request, unknown token', String(unknown.status));
    tried(context, 'example request, no right', String(known.status));
  }
  expect(requests.length).toBeGreaterThan(50);
  expect(await snapshotOf(cluster)).toEqual(before);
});

it('an administrator gets no error of the server', { timeout: TEST_MILLISECONDS }, async (context) => {
  const token = await tokenOf('administrator');
  const subject = `--serviceaccount=${SYSTEM}:administrator`;
  await cluster.kubectl(['create', 'clusterrolebinding', 'fuzz', '--clusterrole=cluster-admin', subject]);
  await cluster.startOperator();
  await new VMs(cluster).waitForPhase('one', 'Running', undefined, STARTED);
  const path = `/api/v1/namespaces/${NAMESPACE}/vms`;
  await waitFor('the rights', async () => (await api.call(path, { token })).status === 200);
  const before = await answers();
  const { report, output } = await fuzz(server, { token, examples: scaled(EXAMPLES), existing: EXISTING });
  const codes = new Map<string, number>();
  for (const [key, count] of await answers()) {
    const code = key.slice(-3);
    const sent = count - (before.get(key) ?? 0);
    codes.set(code, (codes.get(code) ?? 0) + sent);
    for (let one = 0; one < sent; one += 1) {
      tried(context, 'generated request, administrator', code);
    }
  }
  const { complete, failures, errors, operations } = report;
  const problems = failures.length + errors.length === 0 ? '' : output;
  expect([complete, operations.tested, problems]).toEqual([true, operations.total, '']);
  for (const code of ['200', '202', '207', '404', '409', '422']) {
    expect([code, codes.get(code)]).toEqual([code, expect.any(Number)]);
  }
});

/** Number of answers of the server by method, route and code, as it counts them itself. */
async function answers(): Promise<Map<string, number>> {
  const metrics = await readMetrics(cluster, server.process);
  const lines = metrics.matchAll(
    /^berth_http_requests_total\{method="(.*)",route="(.*)",code="(.*)"\} (\d+)$/gm,
  );
  return new Map(
    [...lines].map(([, method, route, code, count]) => [`${method} ${route} ${code}`, Number(count)]),
  );
}
