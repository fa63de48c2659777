/** Computes the slots on a host's Node, and the taints that follow from the host's state. Pure. */
import {
  DEDICATED_KEY,
  MACOS_GUEST_RESOURCE,
  NAT_READY_CONDITION,
  NAT_TAINT,
  SHARED_DISK_RESOURCE,
  SLOT_RESOURCE,
} from '../../api/v1alpha1/names.ts';
import type { Node, Taint } from '../../kube/core.ts';
import type { OperatorConfig } from '../config/config.ts';

/** Number of macOS guests that a macOS host may run, set by the licence of macOS. */
const MACOS_GUESTS_PER_HOST = 2;
/** Number of machines on an ARM host that can hold the shared attached disk. On an x86 host, this disk limits no machine. */
const SHARED_DISKS_PER_ARM_HOST = 1;

/** Returns the extended resources that a host should offer, both as capacity and as allocatable. */
function hostResources(node: Node, config: OperatorConfig): Record<string, string> {
  const isArm = architecture(node) === 'arm64';
  const quota = isArm ? config.osx_node_platform_quota_pod : config.x86_node_platform_quota_pod;
  const os = node.status?.nodeInfo?.operatingSystem ?? node.metadata.labels?.['kubernetes.io/os'];
  return {
    [SLOT_RESOURCE]: String(quota),
    ...(isArm && os === 'darwin' && { [MACOS_GUEST_RESOURCE]: String(MACOS_GUESTS_PER_HOST) }),
    ...(config.vm_shared_disk_enabled && {
      [SHARED_DISK_RESOURCE]: String(isArm ? SHARED_DISKS_PER_ARM_HOST : quota),
    }),
  };
}

/** Returns the resources to apply; undefined when the Node has all of them. Keys of others are not in the result, so they stay. */
export function resourcesToApply(node: Node, config: OperatorConfig): Record<string, string> | undefined {
  const wanted = hostResources(node, config);
  const { capacity = {}, allocatable = {} } = node.status ?? {};
  const isThere = Object.entries(wanted).every(
    ([name, value]) => capacity[name] === value && allocatable[name] === value,
  );
  return isThere ? undefined : wanted;
}

const OUR_TAINTS: ReadonlySet<string> = new Set([NAT_TAINT, DEDICATED_KEY]);

/** Returns the Node's whole list of taints with Berth's taints corrected; undefined when nothing must change. Taints of others stay. */
export function taintsToWrite(node: Node): Taint[] | undefined {
  const present = node.spec?.taints ?? [];
  const ours = wantedTaints(node);
  const isRight =
    present.filter(({ key }) => OUR_TAINTS.has(key)).length === ours.length &&
    ours.every((taint) => present.some((other) => sameTaint(taint, other)));
  return isRight ? undefined : [...present.filter(({ key }) => !OUR_TAINTS.has(key)), ...ours];
}

/**
 * Returns Berth's taints for the Node. A Node without the NAT condition gets no taint for NAT; only the status False causes this
 * taint.
 */
function wantedTaints(node: Node): Taint[] {
  const natReady = node.status?.conditions?.find(({ type }) => type === NAT_READY_CONDITION);
  const namespace = node.metadata.labels?.[DEDICATED_KEY];
  return [
    ...(natReady?.status === 'False'
      ? [{ key: NAT_TAINT, value: 'true', effect: 'NoSchedule' as const }]
      : []),
    ...(namespace === undefined
      ? []
      : [{ key: DEDICATED_KEY, value: namespace, effect: 'NoSchedule' as const }]),
  ];
}

function sameTaint(a: Taint, b: Taint): boolean {
  return a.key === b.key && a.effect === b.effect && (a.value ?? '') === (b.value ?? '');
}

function architecture(node: Node): string | undefined {
  return node.status?.nodeInfo?.architecture ?? node.metadata.labels?.['kubernetes.io/arch'];
}
