/** The Node object as the agent wants it: pure, so that nothing is written when nothing changed. */
import { isDeepStrictEqual } from 'node:util';
import { HOST_KEY, HOST_VALUE, NAT_READY_CONDITION, TAG_LABEL_PREFIX } from '../../api/v1alpha1/names.ts';
import { formatMillis, formatQuantity } from '../../api/v1alpha1/quantity.ts';
import type { Reason } from '../../api/v1alpha1/reasons.ts';
import type { ContainerImage, Node, NodeCondition, NodeStatus, NodeSystemInfo } from '../../kube/core.ts';
import type { Unsaved } from '../../kube/objects.ts';
import { type HostFacts, KUBELET_VERSION } from './facts.ts';

/** A kubelet's own number; slots are what really limits machines. */
const PODS = 110;
/** A kubelet lists 50, at which an image of a cache entry could be missing; these many take some 50 KiB. */
const IMAGES_LISTED = 200;
/** How long an unchanged status may stay unwritten: a kubelet's period. */
export const HEARTBEAT_MILLISECONDS = 300_000;

/** The agent's configuration, as far as its Node tells it. */
export interface NodeSettings {
  nodeName: string;
  /** Published as InternalIP. */
  address: string;
  tags: readonly string[];
  cpuOvercommit: number;
  /** At most this is offered to machines; bytes, processors. */
  offered: { cpu?: number | undefined; memory?: number | undefined };
  /** Kept for the host itself; bytes, processors. */
  reserved: { cpu: number; memory: number };
  /** Bytes that images leave free on the disk. */
  images: { minimumFree: number };
}

/** Facts that change while the agent runs. */
export interface HostState {
  kubeletPort: number;
  images: readonly ContainerImage[];
  /** Undefined where the network driver has no host-wide part to heal. */
  nat: { healthy: boolean; message: string } | undefined;
  diskPressure: boolean;
  /** Bytes of the disk that images take which somebody holds. */
  heldImageBytes: number;
}

/** The room for machines on this host. Of its disk, images that somebody holds and `minimumFree` are taken off. */
export function allocatable(
  config: NodeSettings,
  facts: HostFacts,
  heldImageBytes: number,
): { cpuMillis: number; memoryBytes: number; diskBytes: number } {
  const { offered, reserved, images } = config;
  const cpus = Math.min(facts.cpus, offered.cpu ?? Infinity) * config.cpuOvercommit;
  const memoryBytes = facts.memoryBytes - reserved.memory;
  return {
    cpuMillis: Math.max(
      0,
      Math.floor(Math.min(cpus, facts.cpus * config.cpuOvercommit - reserved.cpu) * 1000),
    ),
    memoryBytes: Math.max(0, Math.min(memoryBytes, offered.memory ?? Infinity)),
    diskBytes: Math.max(0, facts.diskBytes - images.minimumFree - heldImageBytes),
  };
}

/**
 * Without the label `kubernetes.io/os`. With `linux`, whatever a cluster runs on each of its Linux nodes (its network, its proxy)
 * would wait here for ever, and its roll-outs with it. With another value the API server resizes no Pod of this Node
 * (its admission plugin PodResize).
 */
export function nodeLabels(config: NodeSettings, facts: HostFacts): Record<string, string> {
  return {
    [HOST_KEY]: HOST_VALUE,
    'kubernetes.io/arch': facts.architecture,
    'kubernetes.io/hostname': config.nodeName,
    // Traffic for Services comes by the kubelet's Node of the same machine, if there is one.
    'node.kubernetes.io/exclude-from-external-load-balancers': '',
    ...Object.fromEntries(config.tags.map((tag) => [TAG_LABEL_PREFIX + tag, ''])),
  };
}

/** The Node for the one POST: afterwards NodeRestriction refuses every change of the taints. */
export function newNode(
  config: NodeSettings,
  facts: HostFacts,
  state: HostState,
  now: string,
): Unsaved<Node> {
  return {
    metadata: { name: config.nodeName, labels: nodeLabels(config, facts) },
    spec: { taints: [{ key: HOST_KEY, value: HOST_VALUE, effect: 'NoSchedule' }] },
    status: nodeStatus({ config, facts, state, current: undefined, now }),
  };
}

/** The agent's own part of the status; slots and other resources beside it are the operator's. */
export function nodeStatus(o: {
  config: NodeSettings;
  facts: HostFacts;
  state: HostState;
  current: Readonly<Node> | undefined;
  now: string;
}): NodeStatus {
  const { config, facts, state } = o;
  const free = allocatable(config, facts, state.heldImageBytes);
  return {
    capacity: {
      cpu: formatMillis(facts.cpus * config.cpuOvercommit * 1000),
      memory: formatQuantity(facts.memoryBytes),
      'ephemeral-storage': formatQuantity(facts.diskBytes),
      pods: String(PODS),
    },
    allocatable: {
      cpu: formatMillis(free.cpuMillis),
      memory: formatQuantity(free.memoryBytes),
      'ephemeral-storage': formatQuantity(free.diskBytes),
      pods: String(PODS),
    },
    conditions: conditions(state).map((condition) => stamped(condition, o.current, o.now)),
    // The API server tries no second address when the first one fails: one that it can reach, and no host name.
    addresses: [{ type: 'InternalIP', address: config.address }],
    daemonEndpoints: { kubeletEndpoint: { Port: state.kubeletPort } },
    nodeInfo: systemInfo(facts),
    images: state.images.slice(0, IMAGES_LISTED).map(listed),
  };
}

/** A file that is used where it lies takes no room, and the API server leaves out a size of 0: it would differ at each look. */
function listed({ names, sizeBytes = 0 }: ContainerImage): ContainerImage {
  return sizeBytes === 0 ? { names } : { names, sizeBytes };
}

function conditions(state: HostState): NodeCondition[] {
  const list: (NodeCondition & { reason: Reason })[] = [
    { type: 'Ready', status: 'True', reason: 'AgentReady', message: 'The agent runs' },
    pressure('MemoryPressure', false, 'SufficientMemory'),
    pressure('DiskPressure', state.diskPressure, 'SufficientDisk', 'DiskNearlyFull'),
    pressure('PIDPressure', false, 'SufficientPIDs'),
  ];
  if (state.nat !== undefined) {
    list.push({
      type: NAT_READY_CONDITION,
      status: state.nat.healthy ? 'True' : 'False',
      reason: state.nat.healthy ? 'Healthy' : 'SelfHealFailed',
      message: state.nat.message,
    });
  }
  return list;
}

function pressure(
  type: string,
  pressed: boolean,
  fine: Reason,
  bad = fine,
): NodeCondition & { reason: Reason } {
  return { type, status: pressed ? 'True' : 'False', reason: pressed ? bad : fine, message: '' };
}

function stamped(condition: NodeCondition, current: Readonly<Node> | undefined, now: string): NodeCondition {
  const before = current?.status?.conditions?.find(({ type }) => type === condition.type);
  const kept = before?.status === condition.status ? before.lastTransitionTime : undefined;
  return { ...condition, lastHeartbeatTime: now, lastTransitionTime: kept ?? now };
}

function systemInfo(facts: HostFacts): NodeSystemInfo {
  return {
    architecture: facts.architecture,
    operatingSystem: facts.operatingSystem,
    osImage: facts.osImage,
    kernelVersion: facts.kernelVersion,
    kubeletVersion: KUBELET_VERSION,
    kubeProxyVersion: '',
    containerRuntimeVersion: facts.hypervisor,
    machineID: facts.machineId,
    systemUUID: facts.machineId,
    bootID: facts.bootId,
  };
}

/** Whether the Node lacks a label, or has another value than the agent wants. */
export function labelsDiffer(node: Readonly<Node>, wanted: Record<string, string>): boolean {
  return Object.entries(wanted).some(([key, value]) => node.metadata.labels?.[key] !== value);
}

/** Whether the status must be written: something differs (the control plane may have written over it), or its heartbeat is old. */
export function statusDiffers(node: Readonly<Node>, wanted: NodeStatus, now: number): boolean {
  const { conditions = [], capacity = {}, allocatable = {}, nodeInfo = {}, ...rest } = wanted;
  const current = node.status ?? {};
  return (
    !contains(current.capacity, capacity) ||
    !contains(current.allocatable, allocatable) ||
    !contains(current.nodeInfo, nodeInfo, '') ||
    !contains(current, rest, []) ||
    conditions.some((condition) => conditionDiffers(current.conditions, condition, now))
  );
}

/** `empty` is the value that the server leaves out of its answers. */
function contains(current: object | undefined, wanted: object, empty?: unknown): boolean {
  const fields: Record<string, unknown> = { ...current };
  return Object.entries(wanted).every(([key, value]) => isDeepStrictEqual(fields[key] ?? empty, value));
}

function conditionDiffers(current: NodeCondition[] | undefined, wanted: NodeCondition, now: number): boolean {
  const found = current?.find(({ type }) => type === wanted.type);
  return (
    found === undefined ||
    found.status !== wanted.status ||
    found.reason !== wanted.reason ||
    (found.message ?? '') !== wanted.message ||
    now - Date.parse(found.lastHeartbeatTime ?? '') >= HEARTBEAT_MILLISECONDS
  );
}
