/** Computes the whole status of a VMSnapshot from its VM, the VM's Pod and the report of the host. All functions are pure. */
import type { SnapshotReport } from '../../api/v1alpha1/machine.ts';
import { SNAPSHOT_LIMIT } from '../../api/v1alpha1/names.ts';
import { formatQuantity } from '../../api/v1alpha1/quantity.ts';
import { type Reason, type SaidReason, saidReason } from '../../api/v1alpha1/reasons.ts';
import type { VM } from '../../api/v1alpha1/vm.ts';
import type { VMSnapshot, VMSnapshotStatus } from '../../api/v1alpha1/vmsnapshot.ts';
import { timestamp } from '../../base/time.ts';
import type { Pod } from '../../kube/core.ts';
import { type ConditionDraft, stampConditions } from '../objects/conditions.ts';
import { snapshotLoss, snapshotReport, wantedSnapshots } from '../vm/snapshots.ts';

/** The state that one reconcile of a snapshot observes. */
export interface ObservedSnapshot {
  readonly snapshot: Readonly<VMSnapshot>;
  /** All snapshots that name the same VM, with this one. */
  readonly siblings: readonly Readonly<VMSnapshot>[];
  /** The VM of the name in the spec. It is undefined if there is none. */
  readonly vm: VM | undefined;
  /** The Pod of the name in the spec. It is undefined if there is none. */
  readonly pod: Pod | undefined;
  /** Current time in milliseconds since the epoch. */
  readonly now: number;
}

/** Facts that are written once. */
type Facts = Pick<
  VMSnapshotStatus,
  'vmUID' | 'takenAt' | 'consistency' | 'size' | 'storageSize' | 'memory' | 'failure'
>;

interface Summary {
  readonly phase: 'Pending' | 'Saving' | 'Ready' | 'Failed';
  readonly reason: SaidReason;
  readonly message: string;
}

export function snapshotStatus(observed: ObservedSnapshot): VMSnapshotStatus {
  const { snapshot, now } = observed;
  const facts = gatherFacts(observed);
  const summary = summarize(observed, facts);
  const { phase } = summary;
  const generation = snapshot.metadata.generation ?? 0;
  const stamp = { now: timestamp(now), generation };
  return {
    ...facts,
    observedGeneration: generation,
    phase,
    conditions: stampConditions(drafts(summary), snapshot.status?.conditions, stamp),
  };
}

function drafts({ phase, reason, message }: Summary): ConditionDraft[] {
  const ready = { type: 'Ready', status: phase === 'Ready' ? 'True' : 'False', reason, message } as const;
  switch (phase) {
    case 'Ready':
      return [ready];
    case 'Failed':
      return [ready, { ...ready, type: 'Stalled', status: 'True' }];
    default:
      return [ready, { ...ready, type: 'Reconciling', status: 'True' }];
  }
}

function gatherFacts(observed: ObservedSnapshot): Facts {
  const { vmUID, takenAt, consistency, size, storageSize, memory, failure } = observed.snapshot.status ?? {};
  const stored = { vmUID, takenAt, consistency, size, storageSize, memory, failure };
  if (takenAt !== undefined || failure !== undefined) {
    return stored;
  }
  const owned = { ...stored, vmUID: vmUID ?? adoptingVM(observed) };
  const report =
    owned.vmUID === undefined ? undefined : snapshotReport(observed.snapshot, observed.pod, owned.vmUID);
  if (report?.takenAt !== undefined) {
    return { ...owned, ...takenFacts(report) };
  }
  const why = failureOf(observed, owned.vmUID, report);
  return { ...owned, failure: why && { ...why, time: timestamp(observed.now) } };
}

function takenFacts({
  takenAt,
  consistency,
  sizeBytes,
  storageBytes,
  memory,
}: SnapshotReport): Partial<Facts> {
  return {
    takenAt,
    consistency,
    size: sizeBytes === undefined ? undefined : formatQuantity(sizeBytes),
    storageSize: storageBytes === undefined ? undefined : formatQuantity(storageBytes),
    memory: memory && { size: formatQuantity(memory.bytes), cpu: memory.cpu },
  };
}

/** Returns the uid of the VM to which a new snapshot will belong. The result is undefined if there is no such VM yet. */
function adoptingVM({ vm }: ObservedSnapshot): string | undefined {
  return vm?.metadata.deletionTimestamp === undefined ? vm?.metadata.uid : undefined;
}

/** Returns why a snapshot will never be taken. */
function failureOf(
  observed: ObservedSnapshot,
  vmUID: string | undefined,
  report: SnapshotReport | undefined,
): { reason: SaidReason; message: string } | undefined {
  const { vm, snapshot } = observed;
  const { vmName } = snapshot.spec;
  const said = report?.failure;
  if (said !== undefined) {
    return { reason: saidReason(said.reason, 'SnapshotNotTaken'), message: said.message };
  }
  if (vmUID === undefined) {
    return undefined;
  }
  if (vm?.metadata.uid !== vmUID) {
    return { reason: 'VMNotFound', message: `VM ${vmName} is gone, and no snapshot was taken of it` };
  }
  if (vm.status?.failure !== undefined) {
    return {
      reason: 'SnapshotNotTaken',
      message: `VM ${vmName} has failed, and no snapshot was taken of it`,
    };
  }
  return isSurplus(observed, vm) ? tooMany(vmName) : undefined;
}

function tooMany(vmName: string): { reason: Reason; message: string } {
  return {
    reason: 'TooManySnapshots',
    message: `VM ${vmName} has ${SNAPSHOT_LIMIT} snapshots already. Delete one, and create another snapshot`,
  };
}

/** Returns true if the VM has its largest number of snapshots without this one. */
function isSurplus({ snapshot, siblings }: ObservedSnapshot, vm: VM): boolean {
  const { uid } = snapshot.metadata;
  const others = siblings.filter((other) => other.metadata.uid !== uid);
  const owned = { ...snapshot, status: { ...snapshot.status, vmUID: vm.metadata.uid } };
  return !wantedSnapshots({ vm, snapshots: [...others, owned] }).some((one) => one.uid === uid);
}

function summarize(observed: ObservedSnapshot, facts: Facts): Summary {
  const { vmUID, takenAt, failure } = facts;
  const { vm, snapshot } = observed;
  const { vmName } = snapshot.spec;
  if (failure !== undefined) {
    return {
      phase: 'Failed',
      reason: saidReason(failure.reason, 'SnapshotNotTaken'),
      message: failure.message,
    };
  }
  if (takenAt !== undefined) {
    return summarizeTaken({ ...observed, snapshot: { ...snapshot, status: facts } });
  }
  if (vmUID === undefined) {
    return { phase: 'Pending', reason: 'VMNotFound', message: `There is no VM ${vmName}` };
  }
  const { phase = 'Pending' } = vm?.status ?? {};
  const message = `The host of VM ${vmName} has not taken the snapshot yet. The VM is ${phase}`;
  return { phase: 'Saving', reason: 'SnapshotSaving', message };
}

/** Tells whether the host still has a snapshot that was taken. */
function summarizeTaken({ snapshot, vm, pod }: ObservedSnapshot): Summary {
  if (vm === undefined || vm.metadata.uid !== snapshot.status?.vmUID) {
    const message = `VM ${snapshot.spec.vmName} of the snapshot is gone`;
    return { phase: 'Failed', reason: 'VMNotFound', message };
  }
  const loss = snapshotLoss(snapshot, { vm, pod });
  return loss === undefined
    ? { phase: 'Ready', reason: 'SnapshotTaken', message: withoutMemory(snapshot) }
    : { phase: 'Failed', reason: 'SnapshotLost', message: loss };
}

/** Returns a text about a snapshot that was to have memory, but has none, because its host does not know how. */
function withoutMemory({ spec, status }: Readonly<VMSnapshot>): string {
  return spec.memory === true && status?.memory === undefined
    ? 'The snapshot has no memory. A VM that is reset to it boots from its disk'
    : '';
}
