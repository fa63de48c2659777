/**
 * A server that gets generated requests to every operation of the HTTP API, in a cluster with objects that the requests read, change and
 * delete.
 */
import { expect, type TestContext } from 'vitest';
import { type Cluster, startCluster } from '../../../hack/cluster/index.ts';
import type { ServerProcess } from '../../../hack/cluster/program.ts';
import { requestToken, SERVICE_ACCOUNTS } from '../../../hack/cluster/tokens.ts';
import { pythonWith } from '../../../hack/python/install.ts';
import { IMAGE } from '../../fixtures/vms.ts';
import { allowMetrics, readMetrics } from '../../support/operatorlog.ts';
import { scaled, tried } from './attempts.ts';
import { fuzz } from './fuzz.ts';

/** Time limit of the runs of a test at full scale. */
export const TEST_MILLISECONDS = 3_600_000;
/** Time limit of the cluster, and of an installation of schemathesis over a slow connection. */
export const SET_UP_MILLISECONDS = 900_000;
/** Namespace of the callers. No request names it, so that none deletes their accounts. */
export const SYSTEM = 'berth-system';
export const NAMESPACE = 'platform-default';
const EXISTING = {
  namespace: NAMESPACE,
  name: ['one', 'two'],
  node: ['host-0', 'host-1'],
  image: [IMAGE, 'one'],
  binding: ['berth-role-dev', 'berth-role-admin'],
};

/** Caller of the HTTP API. */
export interface Sender {
  readonly token: string;
  /** Number of generated requests of each operation at full scale. */
  readonly examples: number;
  /** Whether all requests follow the OpenAPI document. */
  readonly onlyValid: boolean;
}

export class FuzzedServer implements AsyncDisposable {
  readonly cluster: Cluster;
  readonly server: ServerProcess;
  readonly #parts: AsyncDisposableStack;

  private constructor(cluster: Cluster, server: ServerProcess, parts: AsyncDisposableStack) {
    this.cluster = cluster;
    this.server = server;
    this.#parts = parts;
  }

  static async start(name: string): Promise<FuzzedServer> {
    // The first call on a machine installs it.
    await pythonWith('schemathesis');
    await using parts = new AsyncDisposableStack();
    const cluster = parts.adopt(
      await startCluster({ name: `hostile-${name}-${process.pid}`, hosts: 2 }),
      (one) => one.stop(),
    );
    await cluster.kubectl(['create', '-f', '-'], { input: JSON.stringify(objects()) });
    await allowMetrics(cluster);
    const server = parts.adopt(await cluster.startServer(), (one) => one.process.stop());
    return new FuzzedServer(cluster, server, parts.move());
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#parts.disposeAsync();
  }

  /** Returns the token of a new account without rights. */
  async tokenOf(name: string): Promise<string> {
    const account = { namespace: SYSTEM, name };
    await this.cluster.client().create(SERVICE_ACCOUNTS, { metadata: account });
    return await requestToken(this.cluster.client(), account, 24 * 3600);
  }

  /** Sends the requests of all callers at once, and checks that no answer is an error of the server. Returns the number of each code. */
  async send(context: TestContext, who: string, senders: readonly Sender[]): Promise<Map<string, number>> {
    const before = await this.#answers();
    const reports = await Promise.all(
      senders.map(
        async (sender) =>
          await fuzz(this.server, { ...sender, examples: scaled(sender.examples), existing: EXISTING }),
      ),
    );
    const codes = new Map<string, number>();
    for (const [key, count] of await this.#answers()) {
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

  /** Number of answers of the server by method, route and code, as it counts them itself. */
  async #answers(): Promise<Map<string, number>> {
    const metrics = await readMetrics(this.cluster, this.server.process);
    const lines = metrics.matchAll(
      /^berth_http_requests_total\{method="(.*)",route="(.*)",code="(.*)"\} (\d+)$/gm,
    );
    return new Map(
      [...lines].map(([, method, route, code, count]) => [`${method} ${route} ${code}`, Number(count)]),
    );
  }
}

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
