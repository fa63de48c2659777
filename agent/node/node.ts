/**
 * Computes the Node object that the agent wants. The functions are pure: equal inputs give an equal Node, which causes no request to the
 * API server.
 */
import { isDeepStrictEqual } from 'node:util';
import {
  DEDICATED_KEY,
  EMULATORS_CONDITION,
  HOST_KEY,
  HOST_VALUE,
  NAT_READY_CONDITION,
  ONLY_NAMESPACE_LABEL,
  SLOTS_MAXIMUM,
  SYSTEM_IMAGE_LABEL_PREFIX,
  TAG_LABEL_PREFIX,
} from '../../api/v1alpha1/names.ts';
import { IMAGES_LISTED } from '../../api/v1alpha1/reference.ts';
import { formatMillis, formatQuantity } from '../../api/v1alpha1/quantity.ts';
import { type Reason, REASONS } from '../../api/v1alpha1/reasons.ts';
import { TASK_CPU_MILLIS, TASK_MEMORY_BYTES } from '../../api/v1alpha1/task.ts';
import { nodeVersion } from '../../api/v1alpha1/version.ts';
import type { ContainerImage, Node, NodeCondition, NodeStatus } from '../../kube/core.ts';
import type { Unsaved } from '../../kube/objects.ts';
import type { EmulatorOffer } from '../drivers/driver.ts';
import { emulatorCondition, emulatorLabels } from './emulators.ts';
import type { HostFacts } from './facts.ts';

/**
 * Number of Pods that the Node offers. It does not limit machines, because each machine needs one of the Node's slots. A slot is the right
 * to run one machine. The number of other Pods is the one that a kubelet offers by default. An example is the Pod of a task without a slot.
 */
const PODS = SLOTS_MAXIMUM + 110;
/**
 * Number of tasks for which a host full of machines has room. Their work is part of the agent's own work, so the host needs no other
 * resources for them. Without this room, nobody could save the disk of a machine on a full host.
 */
const TASKS_BESIDE_MACHINES = 10;
/** Time, in milliseconds, after which the agent writes the Node's status even if it has not changed. A kubelet has the same period. */
export const HEARTBEAT_MILLISECONDS = 300_000;

/** The settings of the agent that its Node shows. */
export interface NodeSettings {
  nodeName: string;
  /** Address that the Node publishes as InternalIP. */
  address: string;
  tags: readonly string[];
  /** The only namespace whose Pods the host sees. */
  namespace?: string | undefined;
  cpuOvercommit: number;
  /** Upper limits of the resources that the Node offers to machines, in processors and bytes. */
  offered: { cpu?: number | undefined; memory?: number | undefined };
  /** Resources that are kept for the host itself, in processors and bytes. */
  reserved: { cpu: number; memory: number };
  /** Number of bytes that images leave free on the disk. */
  images: { minimumFree: number };
}

/** Facts that change while the agent runs. */
export interface HostState {
  kubeletPort: number;
  images: readonly ContainerImage[];
  /** State of the network. Undefined if the network driver sets up nothing for the host as a whole. */
  nat: { healthy: boolean; message: string } | undefined;
  diskPressure: boolean;
  /** Why the free space of the disk is unknown. Undefined if it is known. */
  diskFault?: string | undefined;
  /** System images for emulators, or the reason why the host runs no emulators. */
  emulators: EmulatorOffer;
  /** Size in bytes of the images that are in use and therefore cannot be removed. */
  heldImageBytes: number;
  /** Version of the API server. Undefined if it is not known. */
  serverVersion?: string | undefined;
}

interface Amounts {
  cpuMillis: number;
  memoryBytes: number;
  diskBytes: number;
}

/** Returns the resources for machines and tasks on this host. The disk space excludes `minimumFree` and the images that cannot be removed. */
export function allocatable(config: NodeSettings, facts: HostFacts, heldImageBytes: number): Amounts {
  const { offered, reserved, images } = config;
  const cpus = Math.min(facts.cpus, offered.cpu ?? Infinity) * config.cpuOvercommit;
  const memoryBytes = facts.memoryBytes - reserved.memory;
  const cpuMillis = Math.floor(Math.min(cpus, facts.cpus * config.cpuOvercommit - reserved.cpu) * 1000);
  return {
    cpuMillis: Math.max(0, cpuMillis) + TASKS_BESIDE_MACHINES * TASK_CPU_MILLIS,
    memoryBytes:
      Math.max(0, Math.min(memoryBytes, offered.memory ?? Infinity)) +
      TASKS_BESIDE_MACHINES * TASK_MEMORY_BYTES,
    diskBytes: Math.max(0, facts.diskBytes - images.minimumFree - heldImageBytes),
  };
}

/**
 * Returns the labels of the Node. The label `kubernetes.io/os` is left out. If its value were `linux`, DaemonSets for Linux nodes (network,
 * proxy) would wait forever for this Node, and their rollouts would never finish. If it had another value, the API server's admission
 * plugin PodResize would refuse to resize Pods of this Node.
 */
export function nodeLabels(
  config: NodeSettings,
  facts: HostFacts,
  { emulators }: Pick<HostState, 'emulators'>,
): Record<string, string> {
  return {
    [HOST_KEY]: HOST_VALUE,
    'kubernetes.io/arch': facts.architecture,
    'kubernetes.io/hostname': config.nodeName,
    // With this label, external load balancers send nothing to this Node. If a kubelet on the same computer has a Node too, traffic for
    // Services arrives through the kubelet's Node.
    'node.kubernetes.io/exclude-from-external-load-balancers': '',
    ...Object.fromEntries(config.tags.map((tag) => [TAG_LABEL_PREFIX + tag, ''])),
    // The scheduler must send no Pods of other namespaces, because this host would not see them.
    ...(config.namespace !== undefined && {
      [DEDICATED_KEY]: config.namespace,
      [ONLY_NAMESPACE_LABEL]: config.namespace,
    }),
    ...emulatorLabels(emulators),
  };
}

/** Returns the keys of the Node's labels for system images that the host no longer has. */
export function staleLabels(node: Readonly<Node>, wanted: Record<string, string>): string[] {
  return Object.keys(node.metadata.labels ?? {}).filter(
    (key) => key.startsWith(SYSTEM_IMAGE_LABEL_PREFIX) && wanted[key] === undefined,
  );
}

/**
 * Returns the Node as the agent creates it. The taints are set at creation, because NodeRestriction refuses every later change of the
 * taints.
 */
export function newNode(
  config: NodeSettings,
  facts: HostFacts,
  state: HostState,
  now: string,
): Unsaved<Node> {
  return {
    metadata: { name: config.nodeName, labels: nodeLabels(config, facts, state) },
    spec: { taints: [{ key: HOST_KEY, value: HOST_VALUE, effect: 'NoSchedule' }] },
    status: nodeStatus({ config, facts, state, current: undefined, now }),
  };
}

/** Returns the part of the Node's status that the agent writes. The operator writes the slots and other resources. */
export function nodeStatus(o: {
  config: NodeSettings;
  facts: HostFacts;
  state: HostState;
  current: Readonly<Node> | undefined;
  now: string;
}): NodeStatus {
  const { config, facts, state } = o;
  return {
    capacity: resourceList({ ...facts, cpuMillis: facts.cpus * config.cpuOvercommit * 1000 }),
    allocatable: resourceList(allocatable(config, facts, state.heldImageBytes)),
    conditions: conditions(state).map((condition) => stamped(condition, o.current, o.now)),
    // The only address is an IP address that the API server can reach. A host name is left out, because the API server does not
    // try a second address when the first address fails.
    addresses: [{ type: 'InternalIP', address: config.address }],
    daemonEndpoints: { kubeletEndpoint: { Port: state.kubeletPort } },
    nodeInfo: { ...facts.system, kubeletVersion: nodeVersion(state.serverVersion) },
    images: state.images.slice(0, IMAGES_LISTED).map(listed),
  };
}

function resourceList(amounts: Amounts): Record<string, string> {
  return {
    cpu: formatMillis(amounts.cpuMillis),
    memory: formatQuantity(amounts.memoryBytes),
    'ephemeral-storage': formatQuantity(amounts.diskBytes),
    pods: String(PODS),
  };
}

/**
 * Returns an image for the Node's list. An image of zeros alone takes no space, so it has the size 0. The function leaves out a size of 0,
 * because the API server also leaves it out.
 */
function listed({ names, sizeBytes = 0 }: ContainerImage): ContainerImage {
  return sizeBytes === 0 ? { names } : { names, sizeBytes };
}

function conditions(state: HostState): NodeCondition[] {
  const { nat, diskPressure, diskFault } = state;
  const { offered, message } = emulatorCondition(state.emulators);
  const natReason = nat?.healthy ? 'Healthy' : 'SelfHealFailed';
  return [
    conditionOf('Ready', true, 'AgentReady'),
    conditionOf('MemoryPressure', false, 'SufficientMemory'),
    conditionOf('DiskPressure', diskPressure, diskPressure ? 'DiskNearlyFull' : 'SufficientDisk', diskFault),
    conditionOf('PIDPressure', false, 'SufficientPIDs'),
    ...(nat === undefined ? [] : [conditionOf(NAT_READY_CONDITION, nat.healthy, natReason, nat.message)]),
    conditionOf(EMULATORS_CONDITION, offered, offered ? 'EmulatorsOffered' : 'EmulatorsUnavailable', message),
  ];
}

/** Returns a condition of the Node. If `message` is not given, the message is the standard sentence of the reason. */
function conditionOf(
  type: string,
  holds: boolean,
  reason: Reason,
  message: string = REASONS[reason].says,
): NodeCondition {
  return { type, status: holds ? 'True' : 'False', reason, message };
}

function stamped(condition: NodeCondition, current: Readonly<Node> | undefined, now: string): NodeCondition {
  const before = current?.status?.conditions?.find(({ type }) => type === condition.type);
  const kept = before?.status === condition.status ? before.lastTransitionTime : undefined;
  return { ...condition, lastHeartbeatTime: now, lastTransitionTime: kept ?? now };
}

/** Reports whether a label of the Node is missing or has another value than the agent wants. */
export function labelsDiffer(node: Readonly<Node>, wanted: Record<string, string>): boolean {
  return Object.entries(wanted).some(([key, value]) => node.metadata.labels?.[key] !== value);
}

/**
 * Reports whether the agent must write the status. This is the case if the heartbeat is old, or if a value differs, for example because
 * another program overwrote it. A heartbeat in the future means that the clock of the host was set back. The control plane then ignores
 * each renewal of the Lease whose time is before that of an earlier renewal, until it sees another heartbeat.
 */
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

/**
 * Reports whether `current` has all values of `wanted`. If `current` lacks a field, the field counts as having the value `empty`, because
 * the API server leaves out empty values.
 */
function contains(current: object | undefined, wanted: object, empty?: unknown): boolean {
  const fields: Record<string, unknown> = { ...current };
  return Object.entries(wanted).every(([key, value]) => isDeepStrictEqual(fields[key] ?? empty, value));
}

function conditionDiffers(current: NodeCondition[] | undefined, wanted: NodeCondition, now: number): boolean {
  const found = current?.find(({ type }) => type === wanted.type);
  const ageMilliseconds = now - Date.parse(found?.lastHeartbeatTime ?? '');
  return (
    found === undefined ||
    found.status !== wanted.status ||
    found.reason !== wanted.reason ||
    (found.message ?? '') !== wanted.message ||
    ageMilliseconds < 0 ||
    ageMilliseconds >= HEARTBEAT_MILLISECONDS
  );
}
