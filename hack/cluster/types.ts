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
  /** Whether the API server records every write with its user in `audit.log` of the cluster's folder. */
  audit?: boolean;
  /** Text of the file `authentication.yaml` in the cluster's folder, with the identity providers of users (hack/authentication.ts). */
  authentication?: string;
  /** Text of the file `admission.yaml` in the cluster's folder, with the configuration of admission plug-ins. */
  admission?: string;
  /** Whether the cluster continues when this process ends. Otherwise everything is killed then at the latest. */
  lasting?: boolean;
}

export type Component = 'kube-apiserver' | 'etcd' | 'kube-controller-manager' | 'kube-scheduler' | 'kwok';

export interface ComponentProcess {
  pid: number;
  /**
   * Ends the process with `signal` (SIGKILL when absent), waits for `meanwhile` and starts the process again. Resolves when the API server
   * answers.
   */
  restart(signal?: NodeJS.Signals, meanwhile?: () => Promise<void>): Promise<void>;
  /** Sends a signal, for example SIGSTOP. */
  signal(signal: NodeJS.Signals): Promise<void>;
}
