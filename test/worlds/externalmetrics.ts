/** A server for external metrics, as autoscalers read them. The API server passes requests for `external.metrics.k8s.io` to it. */
import { once } from 'node:events';
import { createServer, type Server } from 'node:https';
import type { AddressInfo } from 'node:net';
import type { Cluster } from '../../hack/cluster/index.ts';
import { selfMadeCertificate } from '../../kube/certificates/serving.ts';
import { loopbackAPIService } from './apiservice.ts';

const NAME = 'external-metrics';
const NAMESPACE = 'kube-system';
const GROUP = 'external.metrics.k8s.io';
const VERSION = 'v1beta1';
const API_SERVICE = `${VERSION}.${GROUP}`;
/** Time limit until the API server has reached this server. */
const AVAILABLE_SECONDS = 60;

export class ExternalMetrics implements AsyncDisposable {
  /** Value of each metric. */
  value: number;
  readonly #cluster: Cluster;
  readonly #server: Server;

  private constructor(cluster: Cluster, server: Server, value: number) {
    this.#cluster = cluster;
    this.#server = server;
    this.value = value;
  }

  /** Starts the server. Resolves when the API server reaches it. */
  static async start(cluster: Cluster, value: number): Promise<ExternalMetrics> {
    const { certificate, key } = await selfMadeCertificate({ commonName: NAME, dnsNames: ['localhost'] })();
    const server = createServer({ cert: certificate, key });
    const started = new ExternalMetrics(cluster, server, value);
    server.on('request', ({ url = '' }, response) => {
      const answer = started.#answer(new URL(url, 'https://localhost').pathname);
      response.writeHead(answer === undefined ? 404 : 200, { 'content-type': 'application/json' });
      response.end(JSON.stringify(answer ?? {}));
    });
    await once(server.listen(0, '127.0.0.1'), 'listening');
    const { port } = server.address() as AddressInfo;
    const items = loopbackAPIService({
      group: GROUP,
      version: VERSION,
      name: NAME,
      namespace: NAMESPACE,
      port,
    });
    const list = { apiVersion: 'v1', kind: 'List', items };
    await cluster.kubectl(['apply', '-f', '-'], { input: JSON.stringify(list) });
    const timeout = `--timeout=${AVAILABLE_SECONDS}s`;
    await cluster.kubectl(['wait', '--for=condition=Available', `apiservice/${API_SERVICE}`, timeout]);
    return started;
  }

  #answer(path: string): object | undefined {
    const groupVersion = `${GROUP}/${VERSION}`;
    if (path === `/apis/${groupVersion}`) {
      const resources = [
        { name: 'externalmetrics', kind: 'ExternalMetricValueList', namespaced: true, verbs: ['get'] },
      ];
      return { kind: 'APIResourceList', apiVersion: 'v1', groupVersion, resources };
    }
    const [, metricName] =
      /^\/apis\/external\.metrics\.k8s\.io\/v1beta1\/namespaces\/[^/]+\/([^/]+)$/.exec(path) ?? [];
    if (metricName === undefined) {
      return undefined;
    }
    const item = {
      metricName,
      metricLabels: {},
      timestamp: new Date().toISOString(),
      value: String(this.value),
    };
    return { kind: 'ExternalMetricValueList', apiVersion: groupVersion, metadata: {}, items: [item] };
  }

  async [Symbol.asyncDispose](): Promise<void> {
    // A group without a server would delay the deletion of namespaces.
    await this.#cluster.kubectl(['delete', 'apiservice', API_SERVICE]);
    this.#server.closeAllConnections();
    this.#server.close();
  }
}
