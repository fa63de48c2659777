/** The slots that the operator keeps on a host's Node, and the taints that follow from its state. Pure. */
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

/** A macOS host may run two macOS guests, by the licence of the guest system. */
const MACOS_GUESTS_PER_HOST = 2;
/** The shared attached disk can be held by one machine of an ARM host; on an x86 host it limits nobody. */
const SHARED_DISKS_PER_ARM_HOST = 1;

/** The extended resources a host should offer, as capacity and allocatable alike. */
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

/** The status to apply; undefined when the Node has it all. The keys of others are not named, so they stay. */
export function resourcesToApply(node: Node, config: OperatorConfig): Record<string, string> | undefined {
  const wanted = hostResources(node, config);
  const { capacity = {}, allocatable = {} } = node.status ?? {};
  const isThere = Object.entries(wanted).every(
    ([name, value]) => capacity[name] === value && allocatable[name] === value,
  );
  return isThere ? undefined : wanted;
}

const OUR_TAINTS: ReadonlySet<string> = new Set([NAT_TAINT, DEDICATED_KEY]);

/** The Node's whole list of taints with ours put right; undefined when nothing is to change. Others' stay as they are. */
export function taintsToWrite(node: Node): Taint[] | undefined {
  const present = node.spec?.taints ?? [];
  const ours = wantedTaints(node);
  const isRight =
    present.filter(({ key }) => OUR_TAINTS.has(key)).length === ours.length &&
    ours.every((taint) => present.some((other) => sameTaint(taint, other)));
  return isRight ? undefined : [...present.filter(({ key }) => !OUR_TAINTS.has(key)), ...ours];
}

/** Absence is neutral: only an explicit False taints. */
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
