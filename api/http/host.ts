/** Reads facts about hosts from their Nodes and Pods, and makes their items, for the HTTP API and the `berth` command. */
import { HOST_MARK, HOST_VALUE, SLOT_RESOURCE, WORKLOAD_LABEL } from '../v1alpha1/names.ts';
import { parseBytes } from '../v1alpha1/quantity.ts';
import { agentVersion } from '../v1alpha1/version.ts';
import { tagsOf } from '../v1alpha1/hosts.ts';
import type { NodeItem } from './node.ts';

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

const GIGABYTE = 1_000_000_000;

/** Returns the item for the host of a Node. `pods` are the Pods that are bound to this Node. */
export function nodeItem(node: HostNode, pods: readonly HostPod[], namespace: string): NodeItem {
  const { metadata, status = {} } = node;
  const { allocatable = {}, addresses = [], nodeInfo = {} } = status;
  const used = usedOf(pods.filter((pod) => !hasEnded(pod)));
  const cpu = millisOf(allocatable.cpu);
  const memory = numberOf(allocatable.memory);
  const slots = numberOf(allocatable[SLOT_RESOURCE]);
  return {
    name: metadata.name,
    namespace,
    nodeIP: addresses.find(({ type }) => type === 'InternalIP')?.address,
    availableCpu: wholeCPUs(cpu - used.cpu),
    availableMemory: gigabytes(memory - used.memory),
    availableGpu: 0,
    allocatableCpu: wholeCPUs(cpu),
    allocatableMemory: gigabytes(memory),
    allocatableGpu: 0,
    nodeType: 'WORKER',
    phase: isReady(node) ? 'READY' : 'NOT READY',
    tags: tagsOf(node),
    architecture: nodeInfo.architecture ?? metadata.labels?.['kubernetes.io/arch'],
    slots,
    slotsFree: Math.max(0, slots - used.slots),
    versions: {
      agent: agentVersion(nodeInfo.kubeletVersion),
      os: nodeInfo.osImage || undefined,
    },
  };
}

function isReady({ status }: HostNode): boolean {
  return status?.conditions?.some(({ type, status }) => type === 'Ready' && status === 'True') === true;
}

function usedOf(pods: readonly HostPod[]): { cpu: number; memory: number; slots: number } {
  const used = { cpu: 0, memory: 0, slots: 0 };
  for (const { resources: { requests = {} } = {} } of pods.flatMap(({ spec }) => spec.containers)) {
    used.cpu += millisOf(requests.cpu);
    used.memory += numberOf(requests.memory);
    used.slots += numberOf(requests[SLOT_RESOURCE]);
  }
  return used;
}

/** Converts a quantity of CPU to a number of thousandths of a CPU. The API server writes fractions of a CPU with the suffix `m`. */
function millisOf(quantity = '0'): number {
  return quantity.endsWith('m') ? numberOf(quantity.slice(0, -1)) : numberOf(quantity) * 1000;
}

/**
 * Converts a quantity to a number that the HTTP API can show. A text without a usable value counts as 0, because a host writes the
 * quantities of its own Node. One host must not make the list of all hosts fail.
 */
function numberOf(quantity = '0'): number {
  return Math.min(Math.max(0, Number(parseBytes(quantity) ?? 0n)), Number.MAX_SAFE_INTEGER);
}

function wholeCPUs(millis: number): number {
  return Math.max(0, Math.floor(millis / 1000));
}

/** Formats a number of bytes as a multiple of 10⁹ with two decimals, for example `31.23G`. */
export function gigabytes(bytes: number): string {
  return `${(Math.max(0, bytes) / GIGABYTE).toFixed(2)}G`;
}
