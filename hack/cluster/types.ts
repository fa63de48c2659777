import type { KubeClient } from '../../kube/client.ts';
import type { HostOptions } from './hosts.ts';
import type { KubectlOptions, KubectlResult } from './kubectl.ts';
import type { OperatorOptions, OperatorProcess } from './operator.ts';

export interface ClusterOptions {
  name: string;
  /** Simulated ARM hosts to begin with. */
  hosts?: number;
  /** Start the operator too. */
  operator?: boolean;
  /** Run the operator from its bundle, as images do, instead of its sources. */
  bundle?: boolean;
  displayDpiMaximum?: 240 | 320;
  operatorConfig?: Record<string, unknown>;
  /** `.berth/NAME` below the project when absent. */
  stateDirectory?: string;
  /** How long a node may be silent before it counts as lost; Kubernetes' own value is 50. */
  nodeMonitorGracePeriodSeconds?: number;
  /** The API server records every write, with who made it, in `audit.log` of the cluster's folder. */
  audit?: boolean;
  /** Goes on when this process ends; otherwise everything is killed then at the latest. */
  lasting?: boolean;
}

export type Component = 'kube-apiserver' | 'etcd' | 'kube-controller-manager' | 'kube-scheduler' | 'kwok';

export interface ComponentProcess {
  pid: number;
  /** Ends it with `signal` (SIGKILL when absent), starts it again, resolves when the API server answers. */
  restart(signal?: NodeJS.Signals): Promise<void>;
  /** Sends a signal, e.g. SIGSTOP. */
  signal(signal: NodeJS.Signals): Promise<void>;
}

export interface Cluster {
  readonly name: string;
  /** Folder of its state. */
  readonly directory: string;
  readonly server: string;
  /** Path of the administrator's kubeconfig. */
  readonly kubeconfig: string;
  /** Path of the operator's: a ServiceAccount's token in a file that is renewed. */
  readonly operatorKubeconfig: string;
  /** Path of the kubectl program. */
  readonly kubectlPath: string;
  /** kubectl as administrator; rejects with its stderr when it fails. */
  kubectl(args: readonly string[], options?: KubectlOptions): Promise<KubectlResult>;
  /** Client as administrator; the same one at every call. */
  client(): KubeClient;
  addHosts(count: number, options?: HostOptions): Promise<string[]>;
  startOperator(options?: OperatorOptions): Promise<OperatorProcess>;
  /** A namespace that Berth may serve, with Pod Security `privileged`. */
  createNamespace(name: string): Promise<void>;
  /** Path of a kubeconfig with a fresh bootstrap token for the host of that name. */
  createAgentBootstrap(hostName: string): Promise<{ kubeconfig: string }>;
  component(name: Component): ComponentProcess;
  /** Lets go of it: connections and timers of this process end, the cluster does not. */
  disconnect(): Promise<void>;
  /** Ends everything and removes the state folder. */
  stop(): Promise<void>;
}
