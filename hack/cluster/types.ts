import type { KubeClient } from '../../kube/client.ts';
import type { HostOptions } from './hosts.ts';
import type { KubectlOptions, KubectlResult } from './kubectl.ts';
import type { OperatorOptions, OperatorProcess } from './operator.ts';

export interface ClusterOptions {
  name: string;
  /** Number of simulated ARM hosts at the start. */
  hosts?: number;
  /** Whether to start the operator too. */
  operator?: boolean;
  /** Whether to run the operator from its bundle, as images do, instead of its sources. */
  bundle?: boolean;
  displayDpiMaximum?: 240 | 320;
  operatorConfig?: Record<string, unknown>;
  /** Folder of the cluster; `.berth/NAME` below the project when absent. */
  stateDirectory?: string;
  /** Time in which a node may be silent before it counts as lost. The default of Kubernetes is 50 s. */
  nodeMonitorGracePeriodSeconds?: number;
  /** Whether the API server records every write with its user in `audit.log` of the cluster's folder. */
  audit?: boolean;
  /** Whether the cluster continues when this process ends. Otherwise everything is killed then at the latest. */
  lasting?: boolean;
}

export type Component = 'kube-apiserver' | 'etcd' | 'kube-controller-manager' | 'kube-scheduler' | 'kwok';

export interface ComponentProcess {
  pid: number;
  /** Ends the process with `signal` (SIGKILL when absent) and starts it again. Resolves when the API server answers. */
  restart(signal?: NodeJS.Signals): Promise<void>;
  /** Sends a signal, for example SIGSTOP. */
  signal(signal: NodeJS.Signals): Promise<void>;
}

export interface Cluster {
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
  /** Runs kubectl as administrator. Rejects with its stderr when it fails. */
  kubectl(args: readonly string[], options?: KubectlOptions): Promise<KubectlResult>;
  /** Returns the client of the administrator, the same at every call. */
  client(): KubeClient;
  addHosts(count: number, options?: HostOptions): Promise<string[]>;
  startOperator(options?: OperatorOptions): Promise<OperatorProcess>;
  /** Creates a namespace that Berth may serve, with Pod Security `privileged`. */
  createNamespace(name: string): Promise<void>;
  /** Resolves with the path of a kubeconfig with a new bootstrap token for the host of that name. */
  createAgentBootstrap(hostName: string): Promise<{ kubeconfig: string }>;
  component(name: Component): ComponentProcess;
  /** Ends the connections and timers of this process. The cluster continues to run. */
  disconnect(): Promise<void>;
  /** Ends all processes and removes the state folder. */
  stop(): Promise<void>;
}
