/** Names that other parts and people rely on: group, labels, annotations, finalizers, taints, resources, conditions. */
export const GROUP = 'berth.dev';
export const API_VERSION = `${GROUP}/v1alpha1`;

/** On every host's Node: label and taint, both with this key. For selectors and people: a node may label itself so. */
export const HOST_KEY = 'berth.dev/host';
export const HOST_VALUE = 'true';
/**
 * The label that makes a Node a host. Its value is {@link HOST_VALUE}. NodeRestriction lets no node set it on itself:
 * the operator sets it for a name whose certificate it approved, or an administrator does.
 */
export const HOST_MARK = 'berth.node-restriction.kubernetes.io/host';
const HOST_NAME_MAXIMUM = 63;
const HOST_NAME = /^[a-z0-9]([a-z0-9-]*[a-z0-9])?$/;
/** Longest life of the certificate that a host joins with; the host renews it by itself as soon as its Node is there. */
export const FIRST_CERTIFICATE_SECONDS = 3_600;
/** The agent's name at the API server: the owner of the fields that it applies, and its user agent. */
export const AGENT_NAME = 'berth-agent';
/** On the operator's Pod that leads. */
export const LEADER_LABEL = 'berth.dev/leader';
/** Prefix of a host's tags: `tag.berth.dev/<tag>`. */
export const TAG_LABEL_PREFIX = 'tag.berth.dev/';
/** Taint on a host whose NAT could not be healed. */
export const NAT_TAINT = 'berth.dev/nat-unready';
/** A host given to one namespace: label (only the operator can set it on a Node) and taint with this key. */
export const DEDICATED_KEY = 'berth.node-restriction.kubernetes.io/namespace';

/** Extended resources. */
export const SLOT_RESOURCE = 'berth.dev/slot';
export const MACOS_GUEST_RESOURCE = 'berth.dev/macos-guest';
export const SHARED_DISK_RESOURCE = 'berth.dev/shared-disk';

/** Operator → agent. */
export const MACHINE_ANNOTATION = 'berth.dev/machine';
export const DESIRED_ANNOTATION = 'berth.dev/desired';

/** Operator → agent, on the Pods of Jobs: work on images. */
export const TASK_ANNOTATION = 'berth.dev/task';

export const VM_UID_LABEL = 'berth.dev/vm-uid';
/** `vm`, `emulator`, `cache` (Jobs of an ImageCacheEntry) or `image` (Jobs of an Image or ISO). */
export const WORKLOAD_LABEL = 'berth.dev/workload';

/** On the VM: held until nothing of it remains. */
export const VM_FINALIZER = 'berth.dev/machine';
/** On the Pod: held until its facts are in the VM's status, so that none can run and vanish unseen. */
export const POD_FINALIZER = 'berth.dev/observed';

/** Name of the one container of a machine's Pod. */
export const MACHINE_CONTAINER = 'machine';

/** Name of the one container of a task's Pod. */
export const TASK_CONTAINER = 'task';

/** Pod and Node condition types that the agent writes. */
export const MACHINE_CONDITION = 'berth.dev/Machine';
export const TASK_CONDITION = 'berth.dev/Task';
export const NETWORK_CONDITION = 'berth.dev/Network';
/** On a machine's Pod only while the disk of its host is in the machine's way; then False, with one of the two reasons below. */
export const DISK_CONDITION = 'berth.dev/Disk';
/** The machine is paused, because its disk grew while the host's became full. */
export const HOST_DISK_FULL = 'HostDiskFull';
/** The machine runs on, because the host has no room for its memory. */
export const NO_ROOM_TO_SUSPEND = 'NoRoomToSuspend';
export const NAT_READY_CONDITION = 'berth.dev/NATReady';

/** On a silent host's Node, a list as JSON: MAC addresses of machines that were given up there and may still run. */
export const GIVEN_UP_ANNOTATION = 'berth.dev/given-up';

export const SYSTEM_NAMESPACE = 'berth-system';
export const DEFAULT_NAMESPACE = 'platform-default';
export const NAMESPACE_PREFIX = 'platform-';
/** Of every bootstrap token that a host joins with: it may ask for a certificate. */
export const BOOTSTRAP_GROUP = 'system:bootstrappers:berth';

/** The group of a bootstrap token that says which host it is for. */
export function bootstrapGroupOf(hostName: string): string {
  return `${BOOTSTRAP_GROUP}:${hostName}`;
}

/** Whether a host may have this name: a lower-case DNS label, which labels and file names take as it is. */
export function isHostName(name: string): boolean {
  return name.length <= HOST_NAME_MAXIMUM && HOST_NAME.test(name);
}
