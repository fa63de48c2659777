/** Reads facts about hosts from their Nodes and from the Pods on these Nodes, for the HTTP API and the `berth` command. */
import { HOST_MARK, HOST_VALUE, WORKLOAD_LABEL } from '../v1alpha1/names.ts';

/** The fields of a Node that the code in this folder uses. */
export interface HostNode {
  readonly metadata: { readonly name: string; readonly labels?: Readonly<Record<string, string>> };
  readonly status?: {
    readonly allocatable?: Readonly<Record<string, string>>;
    readonly conditions?: readonly { readonly type: string; readonly status: string }[];
    readonly addresses?: readonly { readonly type: string; readonly address: string }[];
    readonly nodeInfo?: {
      readonly architecture?: string;
      readonly osImage?: string;
      readonly kubeletVersion?: string;
    };
    readonly images?: readonly CachedContent[];
  };
}

/** Image in the store of a host. */
export interface CachedContent {
  /** Names of the image. The API server writes null if the host reported the image without names. */
  readonly names: readonly string[] | null;
  readonly sizeBytes?: number;
}

/** The fields of a Pod on a host that the code in this folder uses. */
export interface HostPod {
  readonly metadata: { readonly name: string; readonly namespace?: string };
  readonly spec: {
    readonly nodeName?: string;
    readonly containers: readonly { readonly resources?: { readonly requests?: Record<string, string> } }[];
  };
  readonly status?: { readonly phase?: string };
}

/** Label selector of the Nodes that are hosts. */
export const HOSTS_SELECTOR = `${HOST_MARK}=${HOST_VALUE}`;
/** Label selector of the Pods of machines and tasks. */
export const WORKLOADS_SELECTOR = WORKLOAD_LABEL;

/** Reports whether a Pod has ended. A Pod that has ended uses no CPU, memory or disk of its host. */
export function hasEnded({ status }: HostPod): boolean {
  return status?.phase === 'Failed' || status?.phase === 'Succeeded';
}
