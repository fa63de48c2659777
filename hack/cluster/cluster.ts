import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { writeWholeSync } from '../../base/files.ts';
import { KubeClient } from '../../kube/client.ts';
import { NAMESPACES, SELF_SUBJECT_REVIEWS } from '../../kube/core.ts';
import { type Connection, loadConnection } from '../../kube/credentials.ts';
import { createMetrics } from '../../kube/metrics.ts';
import { Transport } from '../../kube/transport.ts';
import { createHostToken } from '../host-token.ts';
import { waitFor } from '../wait.ts';
import { waitUntilReady } from './controlplane.ts';
import { createHosts, ensureKwok, type HostOptions, untilPodsAllowed, untilSimulated } from './simulation.ts';
import { writeKubeconfig } from './kubeconfig.ts';
import { type Kubectl, kubectlFor, type KubectlOptions, type KubectlResult } from './kubectl.ts';
import { launch } from './providers/provider.ts';
import {
  type OperatorProgram,
  type OperatorProcess,
  type RunnersProgram,
  type ServerOptions,
  type ServerProcess,
  startOperator,
  startRunners,
  startServer,
} from './program.ts';
import { type ProcessRecord, readRecord, signalProcess, stopProcess } from './processes.ts';
import type { ClusterState } from './state.ts';
import { componentToken, renewRegularly } from './tokens.ts';

export interface ClusterOptions {
  name: string;
  /** Number of simulated ARM hosts at the start. */
  hosts?: number;
  /** Whether to start the operator. */
  operator?: boolean;
  /** Whether to run the operator from its bundle, as images do, instead of its sources. */
  bundle?: boolean;
  displayDpiMaximum?: 240 | 320;
  operatorConfig?: Record<string, unknown>;
  /** Folder of the cluster; `.berth/NAME` below the project when absent. */
  stateDirectory?: string;
  /** Time without a report of a node after which the node counts as lost. The default of Kubernetes is 50 s. */
  nodeMonitorGracePeriodSeconds?: number;
  /** Longest lifetime of a service account's token in seconds, at least 3600. By default, there is no such limit. */
  accountTokenSeconds?: number;
  /** Whether the API server records every write with its user in `audit.log` of the cluster's folder. */
  audit?: boolean;
  /** Text of the file `authentication.yaml` in the cluster's folder, with the identity providers of users (hack/authentication.ts). */
  authentication?: string;
  /** Text of the file `admission.yaml` in the cluster's folder, with the configuration of admission plug-ins. */
  admission?: string;
  /** Whether the cluster continues when this process ends. Otherwise everything is killed then at the latest. */
  lasting?: boolean;
}

type Component = 'kube-apiserver' | 'etcd' | 'kube-controller-manager' | 'kube-scheduler' | 'kwok';

interface ComponentProcess {
  pid: number;
  /**
   * Ends the process with `signal` (SIGKILL when absent), waits for `meanwhile` and starts the process again. Resolves when the API server
   * answers.
   */
  restart(signal?: NodeJS.Signals, meanwhile?: () => Promise<void>): Promise<void>;
  /** Sends a signal, for example SIGSTOP. */
  signal(signal: NodeJS.Signals): Promise<void>;
}

/** Cluster with a state folder. Every process that knows this folder can use the cluster. */
export class Cluster {
  readonly name: string;
  /** Folder with the state of the cluster. */
  readonly directory: string;
  readonly server: string;
  /** Path of the administrator's kubeconfig. */
  readonly kubeconfig: string;
  /** Path of the operator's kubeconfig, with a ServiceAccount's token in a file that is renewed. */
  readonly operatorKubeconfig: string;
  /** Path of the kubectl program. */
  readonly kubectlPath: string;
  readonly #state: ClusterState;
  readonly #kubectl: Kubectl;
  readonly #connection: Connection;
  readonly #transport: Transport;
  readonly #client: KubeClient;
  readonly #end: (cluster: Cluster) => Promise<void>;
  readonly #hosts = new Map<string, number>();
  #stopRenewal: (() => void) | undefined;

  private constructor(
    directory: string,
    state: ClusterState,
    connection: Connection,
    end: (cluster: Cluster) => Promise<void>,
  ) {
    this.#state = state;
    this.#connection = connection;
    this.#end = end;
    this.#transport = new Transport(connection, { metrics: createMetrics(), userAgent: 'berth-harness' });
    this.#client = new KubeClient(this.#transport);
    this.name = state.name;
    this.directory = directory;
    this.server = connection.server;
    this.kubeconfig = join(directory, 'kubeconfig');
    this.operatorKubeconfig = join(directory, 'operator.kubeconfig');
    this.kubectlPath = state.tools.kubectl;
    this.#kubectl = kubectlFor(state.tools.kubectl, this.kubeconfig);
  }

  static async open(
    directory: string,
    state: ClusterState,
    end: (cluster: Cluster) => Promise<void>,
  ): Promise<Cluster> {
    const connection = await loadConnection({ kubeconfigPath: join(directory, 'kubeconfig') });
    return new Cluster(directory, state, connection, end);
  }

  /** Runs kubectl as administrator. Rejects with its stderr when it fails. */
  kubectl(args: readonly string[], options?: KubectlOptions): Promise<KubectlResult> {
    return this.#kubectl(args, options);
  }

  /** Returns the client of the administrator, the same at every call. */
  client(): KubeClient {
    return this.#client;
  }

  async addHosts(count: number, options: HostOptions = {}): Promise<string[]> {
    if (count === 0) {
      return [];
    }
    const prefix = options.prefix ?? 'host';
    const first = this.#hosts.get(prefix) ?? 0;
    this.#hosts.set(prefix, first + count);
    await ensureKwok(this.directory);
    const names = await createHosts(this.#client, { first, count }, options);
    await untilSimulated(this.#client, names);
    return names;
  }

  startOperator(options?: OperatorProgram): Promise<OperatorProcess> {
    return startOperator(this.directory, this.operatorKubeconfig, options);
  }

  /** Starts the HTTP API with the rights of its ServiceAccount. */
  startServer(options?: ServerOptions): Promise<ServerProcess> {
    return startServer(this.directory, join(this.directory, 'server.kubeconfig'), options);
  }

  /** Starts the runners for GitHub with the rights of their ServiceAccount. */
  startRunners(program: RunnersProgram): Promise<OperatorProcess> {
    return startRunners(this.directory, join(this.directory, 'runners.kubeconfig'), program);
  }

  /** Creates a namespace that Berth can serve, with Pod Security `privileged`. */
  async createNamespace(name: string): Promise<void> {
    await this.#client.create(NAMESPACES, {
      apiVersion: 'v1',
      kind: 'Namespace',
      metadata: { name, labels: { 'pod-security.kubernetes.io/enforce': 'privileged' } },
    });
    await untilPodsAllowed(this.#client, name);
  }

  /** Resolves with the path of a kubeconfig with a new bootstrap token for the host of that name. */
  async createAgentBootstrap(hostName: string): Promise<{ kubeconfig: string }> {
    const token = await createHostToken(this.#client, this.#connection, hostName);
    const kubeconfig = join(this.directory, `bootstrap-${token.id}.kubeconfig`);
    writeWholeSync(kubeconfig, token.kubeconfig);
    await untilKnown(kubeconfig);
    return { kubeconfig };
  }

  /** Writes kubeconfigs for the operator, the HTTP API and KWOK. Unless the cluster is lasting, this process also renews the operator's token. */
  async writeComponentKubeconfigs(): Promise<void> {
    const tokenFile = join(this.directory, 'operator.token');
    const renew = async (): Promise<void> => {
      writeWholeSync(tokenFile, await componentToken(this.#client, 'berth-operator', this.#state.lasting));
    };
    await renew();
    const content = { server: this.server, authority: this.#connection.certificateAuthority ?? '' };
    writeKubeconfig(this.operatorKubeconfig, { ...content, user: { kind: 'tokenFile', path: tokenFile } });
    for (const component of ['server', 'runners', 'kwok']) {
      const token = await componentToken(this.#client, `berth-${component}`, true);
      const file = join(this.directory, `${component}.kubeconfig`);
      writeKubeconfig(file, { ...content, user: { kind: 'token', token } });
    }
    if (this.#state.lasting) {
      return;
    }
    this.#stopRenewal = renewRegularly(renew, (error) => {
      writeFileSync(join(this.directory, 'token-renewal.log'), `${String(error)}\n`, { flag: 'a' });
    });
  }

  component(name: Component): ComponentProcess {
    if (this.#state.provider === 'kubeconfig') {
      throw new Error(`${name} of a cluster that was given cannot be reached; leave BERTH_CLUSTER unset`);
    }
    const record = readRecord(this.directory, name);
    return {
      pid: record.pid,
      restart: (signal = 'SIGKILL', meanwhile = async () => {}) => this.#restart(record, signal, meanwhile),
      signal: async (signal) => {
        await signalProcess(record, signal);
      },
    };
  }

  async #restart(
    record: ProcessRecord,
    signal: NodeJS.Signals,
    meanwhile: () => Promise<void>,
  ): Promise<void> {
    await stopProcess(this.directory, record, signal);
    try {
      await meanwhile();
    } finally {
      await launch(this.directory, record);
      await waitUntilReady(this.directory, this.server);
    }
  }

  /** Ends the connections and timers of this process. The cluster continues to run. */
  async disconnect(): Promise<void> {
    this.#stopRenewal?.();
    await this.#transport.close();
  }

  /** Ends all processes and removes the state folder. */
  async stop(): Promise<void> {
    await this.disconnect();
    await this.#end(this);
  }
}

/** Resolves when the API server knows the token of a kubeconfig. It learns of new tokens by a watch, and an agent that it refuses ends. */
async function untilKnown(kubeconfigPath: string): Promise<void> {
  const transport = new Transport(await loadConnection({ kubeconfigPath }), { metrics: createMetrics() });
  const client = new KubeClient(transport);
  try {
    const whoAmI = () => client.create(SELF_SUBJECT_REVIEWS, { metadata: {} });
    await waitFor('the API server to know a new token', whoAmI);
  } finally {
    await transport.close();
  }
}
