/** The real metrics-server as a plain process on loopback. The API server passes requests for `metrics.k8s.io` to it. */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import type { Cluster } from '../../hack/cluster/index.ts';
import { writeKubeconfig } from '../../hack/cluster/kubeconfig.ts';
import { freePort } from '../../hack/cluster/ports.ts';
import { type ProcessRecord, startProcess, stopProcess } from '../../hack/cluster/processes.ts';
import { requestToken } from '../../hack/cluster/tokens.ts';
import { resolveMetricsTools } from '../../hack/cluster/toolchain/toolchain.ts';
import { loopbackAPIService } from './apiservice.ts';

const NAME = 'metrics-server';
const NAMESPACE = 'kube-system';
const GROUP = 'metrics.k8s.io';
const VERSION = 'v1beta1';
const API_SERVICE = `${VERSION}.${GROUP}`;
/** Shortest interval that metrics-server accepts. A request to a host must take less time. */
const RESOLUTION_SECONDS = 10;
const HOST_SECONDS = 9;
const TOKEN_SECONDS = 3600;
/** Time limit until the API server has reached metrics-server, which is ready after its first scrape of the hosts. */
const AVAILABLE_SECONDS = 90;

export class MetricsServer implements AsyncDisposable {
  readonly #cluster: Cluster;
  readonly #process: ProcessRecord;

  private constructor(cluster: Cluster, process: ProcessRecord) {
    this.#cluster = cluster;
    this.#process = process;
  }

  /** Starts metrics-server with the rights of its own manifests. Resolves when the API server reaches it. */
  static async start(cluster: Cluster): Promise<MetricsServer> {
    const port = await freePort();
    await cluster.kubectl(['apply', '-f', '-'], { input: JSON.stringify(manifests(port)) });
    const process = await startProcess(cluster.directory, {
      name: NAME,
      file: (await resolveMetricsTools())[NAME],
      arguments: await parameters(cluster, port),
    });
    const started = new MetricsServer(cluster, process);
    const timeout = `--timeout=${AVAILABLE_SECONDS}s`;
    await cluster.kubectl(['wait', '--for=condition=Available', `apiservice/${API_SERVICE}`, timeout]);
    return started;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#cluster.kubectl(['delete', 'apiservice', API_SERVICE]);
    await stopProcess(this.#cluster.directory, this.#process);
  }
}

async function parameters(cluster: Cluster, port: number): Promise<string[]> {
  const authority = join(cluster.directory, 'pki', 'ca.crt');
  const kubeconfig = join(cluster.directory, `${NAME}.kubeconfig`);
  const account = { namespace: NAMESPACE, name: NAME };
  const token = await requestToken(cluster.client(), account, TOKEN_SECONDS);
  writeKubeconfig(kubeconfig, {
    server: cluster.server,
    authority: readFileSync(authority, 'utf8'),
    user: { kind: 'token', token },
  });
  return [
    ...['kubeconfig', 'authentication-kubeconfig', 'authorization-kubeconfig'].map(
      (flag) => `--${flag}=${kubeconfig}`,
    ),
    '--bind-address=127.0.0.1',
    `--secure-port=${port}`,
    `--cert-dir=${join(cluster.directory, NAME)}`,
    `--metric-resolution=${RESOLUTION_SECONDS}s`,
    `--kubelet-request-timeout=${HOST_SECONDS}s`,
    // As in the manifests of metrics-server. The certificates of hosts come from the cluster, so they can be checked.
    '--kubelet-preferred-address-types=InternalIP',
    '--kubelet-use-node-status-port',
    `--kubelet-certificate-authority=${authority}`,
  ];
}

function manifests(port: number): object {
  const metadata = { name: NAME, namespace: NAMESPACE };
  const subjects = [{ kind: 'ServiceAccount', ...metadata }];
  const rbac = 'rbac.authorization.k8s.io';
  const apiVersion = `${rbac}/v1`;
  const binding = (kind: string, name: string, role: string): object => ({
    apiVersion,
    kind,
    metadata: { name, namespace: NAMESPACE },
    roleRef: { apiGroup: rbac, kind: kind.replace('Binding', ''), name: role },
    subjects,
  });
  const items = [
    { apiVersion: 'v1', kind: 'ServiceAccount', metadata },
    {
      apiVersion,
      kind: 'ClusterRole',
      metadata: { name: NAME },
      rules: [
        { apiGroups: [''], resources: ['nodes/metrics'], verbs: ['get'] },
        { apiGroups: [''], resources: ['pods', 'nodes'], verbs: ['get', 'list', 'watch'] },
      ],
    },
    binding('ClusterRoleBinding', NAME, NAME),
    binding('ClusterRoleBinding', `${NAME}-delegator`, 'system:auth-delegator'),
    binding('RoleBinding', NAME, 'extension-apiserver-authentication-reader'),
    ...loopbackAPIService({ group: GROUP, version: VERSION, ...metadata, port }),
  ];
  return { apiVersion: 'v1', kind: 'List', items };
}
