/** Parts of the server that the handlers of routes need. */
import type { ClusterInfo } from '../api/http/cluster.ts';
import type { ServerConfig } from './config.ts';
import type { Own } from './own/own.ts';
import type { WaitingRequests } from './http/waiting.ts';

export interface Services {
  readonly config: ServerConfig;
  readonly clusterInfo: ClusterInfo;
  /** Parts that act with the server's own identity. */
  readonly own: Own;
  /** Requests that wait for a VM or an emulator to run, or for the deletion of a VM. */
  readonly waiting: WaitingRequests;
}
