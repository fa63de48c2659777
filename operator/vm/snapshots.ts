/**
 * Snapshots of a VM, as its host must know them. The annotation `berth.dev/desired` lists them: the host takes those that it does not have,
 * and removes all others. All functions are pure.
 */
import {
  type Desired,
  type SnapshotReport,
  snapshotReportsSchema,
  type WantedSnapshot,
} from '../../api/v1alpha1/machine.ts';
import {
  MACHINE_CONDITION,
  SNAPSHOT_LIMIT,
  SNAPSHOTS_CONDITION,
  VM_UID_LABEL,
} from '../../api/v1alpha1/names.ts';
import type { Reason } from '../../api/v1alpha1/reasons.ts';
import type { VM } from '../../api/v1alpha1/vm.ts';
import type { VMSnapshot } from '../../api/v1alpha1/vmsnapshot.ts';
import type { Pod } from '../../kube/core.ts';
import { Documents } from '../objects/documents.ts';
import { desiredOf, machineReport, podCondition } from '../podbacked/pod.ts';

/** Index of snapshots by the key of the VM that their spec names. */
export const SNAPSHOTS_BY_VM = 'vm';

/** Returns the key of the VM that a snapshot names: `namespace/name`. */
export function vmKeyOf({ metadata, spec }: Readonly<VMSnapshot>): string {
  return `${metadata.namespace}/${spec.vmName}`;
}

/** Returns true if the snapshot belongs to this VM, and not to an earlier VM of the same name. */
function belongsTo({ status }: Readonly<VMSnapshot>, vm: Readonly<VM>): boolean {
  return status?.vmUID !== undefined && status.vmUID === vm.metadata.uid;
}

const documents = new Documents(snapshotReportsSchema);

/**
 * Returns what the host of the VM with this uid reports about its snapshots. The result is undefined if the Pod is that of another VM, if
 * the host has not reported yet, or if its report cannot be read.
 */
function reportsOf(pod: Pod | undefined, vmUID: string | undefined): readonly SnapshotReport[] | undefined {
  if (vmUID === undefined || pod?.metadata.labels?.[VM_UID_LABEL] !== vmUID) {
    return undefined;
  }
  const said = podCondition(pod, SNAPSHOTS_CONDITION);
  if (said !== undefined) {
    return documents.in(said.message);
  }
  // A host that reports on the machine and mentions no snapshots has none of them.
  return podCondition(pod, MACHINE_CONDITION) === undefined ? undefined : [];
}

/** Returns what the host of the VM with this uid reports about the snapshot. The result is undefined if it reports nothing about it. */
export function snapshotReport(
  { metadata: { uid } }: Readonly<VMSnapshot>,
  pod: Pod | undefined,
  vmUID: string,
): SnapshotReport | undefined {
  return reportsOf(pod, vmUID)?.find((report) => report.uid === uid);
}

/**
 * Returns why a snapshot of the VM that was taken is no longer there. The result is undefined if its host has it, or does not say. A host
 * that took a snapshot with this uid at another time has another content.
 */
export function snapshotLoss(
  { metadata: { uid }, status }: Readonly<VMSnapshot>,
  { vm, pod }: { readonly vm: Readonly<VM>; readonly pod: Pod | undefined },
): string | undefined {
  const { name, uid: vmUID } = vm.metadata;
  const failure = failureWithoutMachine(vm, pod);
  if (failure !== undefined) {
    return `VM ${name} has failed with ${failure}, so no host has its snapshots`;
  }
  const reports = reportsOf(pod, vmUID);
  const isThere = reports?.some((one) => one.uid === uid && one.takenAt === status?.takenAt) ?? true;
  return isThere ? undefined : `The present machine of VM ${name} does not have the snapshot`;
}

/** Returns the reason of the VM's failure if the VM has no machine any more, or if its host is lost. */
function failureWithoutMachine(
  { metadata, status = {} }: Readonly<VM>,
  pod: Pod | undefined,
): string | undefined {
  const { reason } = status.failure ?? {};
  const hasMachine = pod?.metadata.labels?.[VM_UID_LABEL] === metadata.uid;
  return hasMachine && reason !== 'HostLost' ? undefined : reason;
}

/** The part of an observed VM that concerns its snapshots. `snapshots` are the snapshots that name the VM. */
export interface WithSnapshots {
  readonly vm: VM;
  readonly pod: Pod | undefined;
  readonly snapshots: readonly Readonly<VMSnapshot>[];
}

/** The fields of the desired state that concern the disk. */
type DesiredDisk = Pick<Desired, 'snapshots' | 'revertRequestedAt' | 'revertTo'>;

/**
 * Returns the snapshots that the host must have, and the revert that it must do. A revert to a snapshot that is not there is kept from the
 * host, which then goes on as before.
 */
export function desiredDisk(observed: WithSnapshots): DesiredDisk {
  const before = observed.pod && desiredOf(observed.pod);
  const list = wantedSnapshots(observed);
  const isKnown = list.length > 0 || before?.snapshots !== undefined;
  return { snapshots: isKnown ? list : undefined, ...desiredRevert(observed, before) };
}

function desiredRevert(
  observed: WithSnapshots,
  before: Desired | undefined,
): Pick<Desired, 'revertRequestedAt' | 'revertTo'> {
  const { revertRequestedAt, revertTo } = observed.vm.spec;
  const isNew = revertRequestedAt !== before?.revertRequestedAt;
  if (!isNew || revertObstacle(observed) !== undefined) {
    return { revertRequestedAt: before?.revertRequestedAt, revertTo: before?.revertTo };
  }
  const snapshot = revertTo === undefined ? undefined : namedSnapshot(observed, revertTo);
  return { revertRequestedAt, revertTo: snapshot?.metadata.uid };
}

/** Returns the snapshots that the host must have, at most as many as a VM may have. Those that it has are first. */
export function wantedSnapshots({
  vm,
  snapshots,
}: Pick<WithSnapshots, 'vm' | 'snapshots'>): WantedSnapshot[] {
  return snapshots
    .filter((one) => belongsTo(one, vm) && isWanted(one))
    .toSorted((one, other) => rank(one).localeCompare(rank(other)))
    .slice(0, SNAPSHOT_LIMIT)
    .map(({ metadata: { uid = '', name }, spec: { memory } }) => ({
      uid,
      name,
      ...(memory === true && { memory }),
    }));
}

function isWanted({ metadata, status }: Readonly<VMSnapshot>): boolean {
  return metadata.deletionTimestamp === undefined && status?.failure === undefined;
}

function rank({ metadata: { creationTimestamp = '', name }, status }: Readonly<VMSnapshot>): string {
  return `${status?.takenAt === undefined ? 1 : 0} ${creationTimestamp} ${name}`;
}

/** Returns true if the VM requests a revert that its host has neither done nor been asked for. */
function isNewRevert({ vm, pod }: Pick<WithSnapshots, 'vm' | 'pod'>): boolean {
  const { revertRequestedAt } = vm.spec;
  const done = machineReport(pod).revertedAt ?? vm.status?.revertedAt;
  const known = [done, pod && desiredOf(pod)?.revertRequestedAt];
  return revertRequestedAt !== undefined && !known.includes(revertRequestedAt);
}

/** Why a revert is not done. */
interface RevertObstacle {
  readonly reason: Reason;
  readonly message: string;
}

/** Returns why the VM cannot be reverted to the snapshot that it names. The result is undefined if it can, or names none. */
export function revertObstacle(observed: WithSnapshots): RevertObstacle | undefined {
  const { vm } = observed;
  const { revertTo } = vm.spec;
  if (revertTo === undefined || !isNewRevert(observed)) {
    return undefined;
  }
  const found = namedSnapshot(observed, revertTo);
  if (found === undefined) {
    return {
      reason: 'SnapshotNotFound',
      message: `spec.revertTo: VM ${vm.metadata.name} has no VMSnapshot ${revertTo}, so its disk is not reset`,
    };
  }
  if (found.status?.takenAt === undefined) {
    return {
      reason: 'SnapshotNotReady',
      message: `spec.revertTo: VMSnapshot ${revertTo} is ${found.status?.phase ?? 'new'}, so the disk is not reset`,
    };
  }
  const loss = snapshotLoss(found, observed);
  return loss === undefined
    ? undefined
    : {
        reason: 'SnapshotLost',
        message: `spec.revertTo: VMSnapshot ${revertTo} is lost, so the disk is not reset. ${loss}`,
      };
}

function namedSnapshot({ vm, snapshots }: WithSnapshots, name: string): Readonly<VMSnapshot> | undefined {
  return snapshots.find(
    (one) => one.metadata.name === name && belongsTo(one, vm) && one.metadata.deletionTimestamp === undefined,
  );
}

/**
 * Returns the snapshots that the host has been told about, and that the caches do not show at all. Before the host removes their content, the
 * API server must confirm that they are gone.
 */
export function missingSnapshots({ pod, snapshots }: WithSnapshots): WantedSnapshot[] {
  const listed = (pod && desiredOf(pod)?.snapshots) ?? [];
  return listed.filter(({ uid }) => !snapshots.some(({ metadata }) => metadata.uid === uid));
}
