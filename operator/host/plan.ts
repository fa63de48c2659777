/** Computes the slots on a host's Node, and the taints that follow from the host's state. All functions are pure. */
import { type AwaitedVMs, awaitedOn, awaitedText } from '../../api/v1alpha1/machine.ts';
import {
  ADOPTING_TAINT,
  AWAITED_ANNOTATION,
  DEDICATED_KEY,
  HOST_KEY,
  HOST_VALUE,
  MACOS_DRIVER,
  MACOS_GUEST_RESOURCE,
  NAT_READY_CONDITION,
  NAT_TAINT,
  SHARED_DISK_RESOURCE,
  SLOT_RESOURCE,
  VERSION_SKEW_CONDITION,
} from '../../api/v1alpha1/names.ts';
import type { Reason } from '../../api/v1alpha1/reasons.ts';
import { agentVersion, VERSION } from '../../api/v1alpha1/version.ts';
import type { Node, NodeCondition, NodeStatus, Taint } from '../../kube/core.ts';
import type { OperatorConfig } from '../config/config.ts';
import { conditionIn } from '../objects/conditions.ts';
import { CORDON_TAINT, isPassing } from '../../kube/scheduling.ts';
import { isReady, isTooOldOrNew } from './observe.ts';

/** Largest number of macOS guests on a host whose driver runs macOS. The licence of macOS sets this limit. */
const MACOS_GUESTS_PER_HOST = 2;
/** Number of machines on an ARM host that can use the shared attached disk at the same time. On an x86 host, every machine can use it. */
const SHARED_DISKS_PER_ARM_HOST = 1;

/** Returns the extended resources that a host should offer, both as capacity and as allocatable. */
function hostResources(node: Node, config: OperatorConfig): Record<string, string> {
  const isArm = architecture(node) === 'arm64';
  const quota = isArm ? config.osx_node_platform_quota_pod : config.x86_node_platform_quota_pod;
  const runtime = node.status?.nodeInfo?.containerRuntimeVersion ?? '';
  return {
    [SLOT_RESOURCE]: String(quota),
    ...(runtime.startsWith(`${MACOS_DRIVER}://`) && {
      [MACOS_GUEST_RESOURCE]: String(MACOS_GUESTS_PER_HOST),
    }),
    ...(config.vm_shared_disk_enabled && {
      [SHARED_DISK_RESOURCE]: String(isArm ? SHARED_DISKS_PER_ARM_HOST : quota),
    }),
  };
}

/**
 * Returns the fields of the Node's status that belong to the operator, for a server-side apply. The result is undefined if the Node already
 * has these values. The result has no fields of other writers, so the apply leaves those fields unchanged. `now` is the current time in RFC
 * 3339.
 */
export function statusToApply(node: Node, config: OperatorConfig, now: string): NodeStatus | undefined {
  const wanted = hostResources(node, config);
  const { capacity = {}, allocatable = {} } = node.status ?? {};
  const isThere = Object.entries(wanted).every(
    ([name, value]) => capacity[name] === value && allocatable[name] === value,
  );
  const present = conditionIn(node.status, VERSION_SKEW_CONDITION);
  const skew = versionSkew(node, present, now);
  return isThere && present?.message === skew?.message
    ? undefined
    : { capacity: wanted, allocatable: wanted, ...(skew && { conditions: [skew] }) };
}

/**
 * Returns the condition for a host whose agent is too many releases older or newer than this operator. For other hosts the result is
 * undefined.
 */
function versionSkew(node: Node, present: NodeCondition | undefined, now: string): NodeCondition | undefined {
  const version = agentVersion(node.status?.nodeInfo?.kubeletVersion) ?? '';
  const reason: Reason = 'AgentVersionUnsupported';
  return isTooOldOrNew(node)
    ? {
        type: VERSION_SKEW_CONDITION,
        status: 'True',
        reason,
        message: `The agent has version ${version} and the operator has version ${VERSION}. The difference must be at most one minor release`,
        lastTransitionTime: present?.lastTransitionTime ?? now,
      }
    : undefined;
}

/**
 * Returns the merge patch that lists these VMs on the Node as awaited, with the taint that follows. The patch fails if the Node has changed
 * since it was read. `now` is in milliseconds since the epoch.
 */
export function awaitedPatch(node: Node, awaited: AwaitedVMs, now: number): object {
  const { uid, resourceVersion, annotations: before } = node.metadata;
  const text = awaitedText(awaited);
  const annotations = { ...before, [AWAITED_ANNOTATION]: text ?? '{}' };
  const taints = taintsToWrite({ ...node, metadata: { ...node.metadata, annotations } }, now);
  return {
    metadata: { uid, resourceVersion, annotations: { [AWAITED_ANNOTATION]: text } },
    ...(taints && { spec: { taints } }),
  };
}

const OUR_TAINTS: ReadonlySet<string> = new Set([NAT_TAINT, DEDICATED_KEY, ADOPTING_TAINT]);

/**
 * Longest time in milliseconds for which {@link ADOPTING_TAINT} keeps other VMs from a host. Usually a machine has its new Pod within a
 * second. The limit exists because a tenant can delay the Pod, for example with a full quota.
 */
const ADOPTING_MILLISECONDS = 60_000;

/** Taint that keeps the Pods of others away. An agent sets it when it creates its Node, and may not set it later. */
const HOST_TAINT: Taint = { key: HOST_KEY, value: HOST_VALUE, effect: 'NoSchedule' };

/**
 * Returns the Node's whole list of taints with Berth's taints corrected and all other taints kept. The result is undefined if nothing must
 * change. `now` is in milliseconds since the epoch.
 */
export function taintsToWrite(node: Node, now: number): Taint[] | undefined {
  const present = node.spec?.taints ?? [];
  const ours = wantedTaints(node, now);
  const others = present.filter((taint) => !isOurTaint(taint));
  const isRight =
    present.length - others.length === ours.length &&
    ours.every((taint) => present.some((other) => sameTaint(taint, other)));
  return isRight ? undefined : [...others, ...ours];
}

/** Returns true if the operator alone writes the taint. A taint of an administrator can have the key of {@link HOST_TAINT}. */
export function isOurTaint({ key, effect }: Taint): boolean {
  return OUR_TAINTS.has(key) || (key === HOST_TAINT.key && effect === HOST_TAINT.effect);
}

/**
 * Returns Berth's taints for the Node. Only a NAT condition with the status False causes the taint for NAT. A missing condition
 * causes no taint.
 */
function wantedTaints(node: Node, now: number): Taint[] {
  const natReady = conditionIn(node.status, NAT_READY_CONDITION);
  const namespace = node.metadata.labels?.[DEDICATED_KEY];
  return [
    HOST_TAINT,
    ...(natReady?.status === 'False'
      ? [{ key: NAT_TAINT, value: 'true', effect: 'NoSchedule' as const }]
      : []),
    ...(namespace === undefined
      ? []
      : [{ key: DEDICATED_KEY, value: namespace, effect: 'NoSchedule' as const }]),
    ...(isAdopting(node, now) ? [{ key: ADOPTING_TAINT, value: 'true', effect: 'NoSchedule' as const }] : []),
  ];
}

/** What a cordon or its end changes in the spec of a Node, as a merge patch. The list of taints is complete. */
export interface CordonPatch {
  readonly unschedulable: true | null;
  readonly taints: readonly Taint[];
}

/** Returns the change that cordons a Node. Kubernetes would add the taint in a request of its own. */
export function cordonPatch({ spec }: Readonly<Node>): CordonPatch {
  const others = (spec?.taints ?? []).filter(({ key }) => key !== CORDON_TAINT.key);
  return { unschedulable: true, taints: [...others, CORDON_TAINT] };
}

/**
 * Returns the change that ends the cordon of a Node. If the Node is Ready, the taints of its silence end with it. Kubernetes would remove each
 * taint in a request of its own. The scheduler would then try all waiting Pods after the end of the cordon, in vain because of its taint, and
 * again later.
 */
export function uncordonPatch(node: Readonly<Node>): CordonPatch {
  const isOver = (taint: Taint) => (isReady(node) ? isPassing(taint) : taint.key === CORDON_TAINT.key);
  return { unschedulable: null, taints: (node.spec?.taints ?? []).filter((taint) => !isOver(taint)) };
}

/** Returns true while a machine of the host waits for its Pod, but not longer than {@link ADOPTING_MILLISECONDS}. */
function isAdopting(node: Readonly<Node>, now: number): boolean {
  return Object.values(awaitedOn(node)).some(({ since }) => now < Date.parse(since) + ADOPTING_MILLISECONDS);
}

function sameTaint(a: Taint, b: Taint): boolean {
  return a.key === b.key && a.effect === b.effect && (a.value ?? '') === (b.value ?? '');
}

function architecture(node: Node): string | undefined {
  return node.status?.nodeInfo?.architecture ?? node.metadata.labels?.['kubernetes.io/arch'];
}
