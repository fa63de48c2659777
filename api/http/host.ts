/** Reads facts about hosts from their Nodes and Pods, and makes their items, for the HTTP API and the `berth` command. */
import {
  CORDONED_FOR_ANNOTATION,
  DEDICATED_KEY,
  HOST_KEY,
  HOST_MARK,
  HOST_VALUE,
  NAT_READY_CONDITION,
  NAT_TAINT,
  SLOT_RESOURCE,
  WORKLOAD_LABEL,
} from '../v1alpha1/names.ts';
import { parseBytes } from '../v1alpha1/quantity.ts';
import { agentVersion } from '../v1alpha1/version.ts';
import { tagsOf } from '../v1alpha1/hosts.ts';
import type { NodeItem } from './node.ts';

/** The fields of a Node that the code in this folder uses. */
export interface HostNode {
  readonly metadata: {
    readonly name: string;
    readonly labels?: Readonly<Record<string, string>>;
    readonly annotations?: Readonly<Record<string, string>>;
  };
  readonly spec?: {
    readonly unschedulable?: boolean;
    readonly taints?: readonly { readonly key: string; readonly effect: string }[];
  };
  readonly status?: {
    readonly allocatable?: Readonly<Record<string, string>>;
    readonly conditions?: readonly HostCondition[];
    readonly addresses?: readonly { readonly type: string; readonly address: string }[];
    readonly nodeInfo?: {
      readonly architecture?: string;
      readonly osImage?: string;
      readonly kubeletVersion?: string;
    };
    readonly images?: readonly CachedContent[];
  };
}

interface HostCondition {
  readonly type: string;
  readonly status: string;
  readonly reason?: string;
  readonly message?: string;
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
    ...closureOf(node),
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

function isReady(node: HostNode): boolean {
  return conditionOf(node, 'Ready')?.status === 'True';
}

function conditionOf({ status }: HostNode, wanted: string): HostCondition | undefined {
  return status?.conditions?.find(({ type }) => type === wanted);
}

/** Conditions of a host that can close it for new VMs, each with the status that closes the host. */
const CLOSING: Readonly<Record<string, 'True' | 'False'>> = {
  Ready: 'False',
  DiskPressure: 'True',
  [NAT_READY_CONDITION]: 'False',
};
/** Taints that VMs tolerate, or whose cause a condition or the cordon of the host tells. */
const KNOWN_TAINTS: ReadonlySet<string> = new Set([
  HOST_KEY,
  DEDICATED_KEY,
  NAT_TAINT,
  'node.kubernetes.io/not-ready',
  'node.kubernetes.io/unreachable',
  'node.kubernetes.io/unschedulable',
  'node.kubernetes.io/disk-pressure',
]);

/** Reports whether {@link nodeItem} reads conditions of this type. */
export function isHostCondition(type: string): boolean {
  return CLOSING[type] !== undefined;
}

/** Returns why the host takes no VMs: the reason of the first cause, and all causes. The result is empty if the host takes VMs. */
function closureOf(node: HostNode): Pick<NodeItem, 'reason' | 'message'> {
  const causes = [...powerCauses(node), ...conditionCauses(node), ...taintCauses(node)];
  const [first] = causes;
  return first === undefined
    ? {}
    : { reason: first.reason, message: causes.map(({ message }) => message).join('. ') };
}

interface Cause {
  readonly reason: string;
  readonly message: string;
}

const SILENT: Cause = { reason: 'HostUnreachable', message: 'The host does not report' };
const CORDONED: Cause = { reason: 'Cordoned', message: 'An administrator has cordoned the host' };

/** Returns why the host does not run, or may get no VMs. A host that Berth switches off is cordoned, and does not report. */
function powerCauses(node: HostNode): Cause[] {
  const server = node.metadata.annotations?.[CORDONED_FOR_ANNOTATION];
  if (server !== undefined) {
    return [{ reason: 'SwitchedOff', message: `The Server ${server} is switched off, or will be soon` }];
  }
  return [
    ...(conditionOf(node, 'Ready')?.status === 'False' || isReady(node) ? [] : [SILENT]),
    ...(node.spec?.unschedulable === true ? [CORDONED] : []),
  ];
}

function conditionCauses(node: HostNode): Cause[] {
  return Object.entries(CLOSING).flatMap(([type, closing]) => {
    const { status, reason = type, message } = conditionOf(node, type) ?? {};
    return status === closing ? [{ reason, message: message || reason }] : [];
  });
}

function taintCauses({ spec }: HostNode): Cause[] {
  const hard = (spec?.taints ?? []).filter(({ effect }) => effect !== 'PreferNoSchedule');
  const unknown = hard.filter(({ key }) => !KNOWN_TAINTS.has(key));
  return unknown.map(({ key }) => ({ reason: 'Tainted', message: `The host has the taint ${key}` }));
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
