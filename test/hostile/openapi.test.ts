/** Generated requests to every operation of the HTTP API: as callers without any right, and as an administrator. */
import { afterAll, beforeAll, expect, it, type TestContext } from 'vitest';
import { type Cluster, startCluster } from '../../hack/cluster/index.ts';
import type { ServerProcess } from '../../hack/cluster/server.ts';
import { requestToken, SERVICE_ACCOUNTS } from '../../hack/cluster/serviceaccounts.ts';
import { schemathesis } from '../../hack/schemathesis/install.ts';
import { waitFor } from '../../hack/wait.ts';
import { IMAGE, VMs } from '../fixtures/vms.ts';
import { allowMetrics, readMetrics } from '../support/operatorlog.ts';
import { HTTPClient } from '../wires/httpapi.ts';
import { scaled, tried } from './support/attempts.ts';
import { fuzz } from './support/fuzz.ts';
import { snapshotOf } from './support/snapshot.ts';

/** Number of generated requests of each operation at full scale. */
const EXAMPLES = 200;
/** Time limit of the runs of a test at full scale. */
const TEST_MILLISECONDS = 3_600_000;
/** Time limit of the cluster, and of an installation of schemathesis over a slow connection. */
const SET_UP_MILLISECONDS = 900_000;
/** Time limit for an operator to start and for a simulated VM to run, on a busy machine. */
const STARTED = { deadlineMilliseconds: 120_000 };
/** Namespace of the callers. No request names it, so that none deletes their accounts. */
const SYSTEM = 'berth-system';
const namespace = 'platform-default';
const EXISTING = {
  namespace,
  name: ['one', 'two'],
  node: ['host-0', 'host-1'],
  image: [IMAGE, 'one'],
  binding: ['berth-role-dev', 'berth-role-admin'],
};
/** A token in the form of an OpenID provider, which no provider has issued. */
const UNKNOWN = ['{"alg":"RS256"}', '{"sub":"somebody"}', 'signature']
  .map((part) => Buffer.from(part).toString('base64url'))
  .join('.');

let cluster: Cluster;
let server: ServerProcess;

beforeAll(async () => {
  // The first call on a machine installs it.
  await schemathesis();
  cluster = await startCluster({ name: `hostile-openapi-${process.pid}`, hosts: 2 });
  await cluster.kubectl(['create', '-f', '-'], { input: JSON.stringify(objects()) });
  await allowMetrics(cluster);
  server = await cluster.startServer();
}, SET_UP_MILLISECONDS);

afterAll(async () => {
  await server?.process.stop();
  await cluster?.stop();
});

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
    ].map((object) => ({ ...object, metadata: { name, namespace } })),
  );
  return { apiVersion: 'v1', kind: 'List', items };
}

async function tokenOf(name: string): Promise<string> {
  const account = { namespace: SYSTEM, name };
  await cluster.client().create(SERVICE_ACCOUNTS, { metadata: account });
  return await requestToken(cluster.client(), account, 24 * 3600);
}

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

interface Sender {
  readonly token: string;
  readonly onlyValid: boolean;
}

/** Sends the requests of all callers at once, and checks that no answer is an error of the server. Returns the number of each code. */
async function send(
  context: TestContext,
  who: string,
  senders: readonly Sender[],
): Promise<Map<string, number>> {
  const before = await answers();
  const examples = scaled(EXAMPLES);
  const reports = await Promise.all(
    senders.map(async (sender) => await fuzz(server, { ...sender, examples, existing: EXISTING })),
  );
  const codes = new Map<string, number>();
  for (const [key, count] of await answers()) {
    const code = key.slice(-3);
    const sent = count - (before.get(key) ?? 0);
    codes.set(code, (codes.get(code) ?? 0) + sent);
    for (let one = 0; one < sent; one += 1) {
      tried(context, `generated request, ${who}`, code);
    }
  }
  for (const { report, output } of reports) {
    const { complete, failures, errors, operations } = report;
    const problems = failures.length + errors.length === 0 ? '' : output;
    expect([complete, operations.tested, problems]).toEqual([true, operations.total, '']);
  }
  return codes;
}

it('callers without any right get no error of the server, and change nothing', {
  timeout: TEST_MILLISECONDS,
}, async (context) => {
  const stranger = await tokenOf('stranger');
  const before = await snapshotOf(cluster);
  const codes = await send(context, 'no right or unknown token', [
    { token: stranger, onlyValid: true },
    { token: UNKNOWN, onlyValid: true },
  ]);
  expect(await snapshotOf(cluster)).toEqual(before);
  expect(codes.get('401')).toBeGreaterThan(100);
  expect(codes.get('403')).toBeGreaterThan(100);
});

it('an administrator gets no error of the server', { timeout: TEST_MILLISECONDS }, async (context) => {
  const token = await tokenOf('administrator');
  const subject = `--serviceaccount=${SYSTEM}:administrator`;
  await cluster.kubectl(['create', 'clusterrolebinding', 'fuzz', '--clusterrole=cluster-admin', subject]);
  await cluster.startOperator();
  await new VMs(cluster).waitForPhase('one', 'Running', undefined, STARTED);
  const api = new HTTPClient(server);
  const path = `/api/v1/namespaces/${namespace}/vms`;
  await waitFor('the rights', async () => (await api.call(path, { token })).status === 200);
  const codes = await send(context, 'administrator', [{ token, onlyValid: false }]);
  for (const code of ['200', '202', '207', '404', '409', '422']) {
    expect([code, codes.get(code)]).toEqual([code, expect.any(Number)]);
  }
  await api.close();
});
