/**
 * Decides, as a kubelet does, whether the host has enough free resources for a Pod. The host must check this, because it can get too many
 * Pods. The scheduler can decide with old data, and a Pod can bypass the scheduler with `spec.nodeName`.
 *
 * Also handles a new size (requests of CPU and memory) of a Pod that has a machine on this host. Like a kubelet, the agent allocates the new
 * size when the host has enough CPU and memory left. The machine gets that size at its next start. Until then, the Pod's status shows
 * both the allocated and the actual size.
 */
import { EMULATOR_MEMORY_OVERHEAD_BYTES } from '../../api/v1alpha1/emulatormachine.ts';
import { type Desired, MACHINE_MEMORY_OVERHEAD_BYTES } from '../../api/v1alpha1/machine.ts';
import { TASK_ANNOTATION } from '../../api/v1alpha1/names.ts';
import { formatMillis, formatQuantity } from '../../api/v1alpha1/quantity.ts';
import type { Reason, RefusalReason } from '../../api/v1alpha1/reasons.ts';
import type { Container, ContainerStatus, Pod } from '../../kube/core.ts';
import { condition, type SaidCondition } from '../../kube/podstatus.ts';
import type { TaskRunner } from '../tasks/runner.ts';
import type { MachineClaim, HostCapacity, MachineDocument, MachineRecord } from './machine.ts';
import { type Amount, claimOf, isEnded, outlives, total } from './pod.ts';
import { portName } from '../../api/v1alpha1/ports.ts';
import { awaitedPort } from './ports.ts';
import { podUidOf, type RecordStore } from './records.ts';

export type Admission =
  | { kind: 'admitted' }
  /**
   * The Pod must wait. There are three causes: another machine occupies one of the Pod's host ports, a machine that is being removed still
   * occupies resources, or the operator has not set the host's number of slots.
   */
  | { kind: 'wait'; reason?: Reason; message: string }
  | { kind: 'refused'; reason: RefusalReason; message: string };

/**
 * Resources that the host checks for a Pod. If several resources are insufficient, the refusal names the one that is first in this list.
 */
const AMOUNTS: readonly {
  amount: Amount;
  reason: RefusalReason;
  message: (wanted: number, taken: number, all: number) => string;
}[] = [
  {
    amount: 'slots',
    reason: 'OutOfSlot',
    message: (_, taken, all) => `${taken} of ${all} slots of this host are in use`,
  },
  {
    amount: 'macosGuests',
    reason: 'MacOSLimit',
    message: (_, taken, all) =>
      all === 0
        ? 'This host runs no guests with macOS'
        : `${taken} of ${all} places for guests with macOS on this host are in use`,
  },
  {
    amount: 'cpuMillis',
    reason: 'OutOfcpu',
    message: (wanted, taken, all) =>
      `The Pod requests ${wanted}m of CPU, and the host has only ${all - taken}m of ${all}m left`,
  },
  {
    amount: 'memoryBytes',
    reason: 'OutOfmemory',
    message: (wanted, taken, all) =>
      `The Pod requests ${wanted} bytes of memory, and the host has only ${all - taken} left`,
  },
  {
    amount: 'diskBytes',
    reason: 'OutOfDisk',
    message: (wanted, taken, all) =>
      `The Pod requests ${wanted} bytes of disk (ephemeral-storage), and the host has only ${all - taken} left`,
  },
];

/** Returns the memory in bytes that the process of a machine needs in addition to the guest's memory. */
function overheadOf({ emulator }: Readonly<MachineDocument>): number {
  return emulator === undefined ? MACHINE_MEMORY_OVERHEAD_BYTES : EMULATOR_MEMORY_OVERHEAD_BYTES;
}

/** Returns the CPU and memory that a guest of this size and its process use on the host. */
function claimOfSize(
  size: { cpu: number; memoryBytes: number },
  document: Readonly<MachineDocument>,
): Pick<MachineClaim, 'cpuMillis' | 'memoryBytes'> {
  return { cpuMillis: size.cpu * 1000, memoryBytes: size.memoryBytes + overheadOf(document) };
}

/**
 * Decides whether the host has enough free resources for a claim.
 *
 * @param alive claims of machines that are not being removed
 * @param leaving claims of machines that are being removed; their resources become free only after the removal
 */
export function admit(
  claim: MachineClaim,
  alive: readonly MachineClaim[],
  leaving: readonly MachineClaim[],
  capacity: HostCapacity,
): Admission {
  if (claim.slots > 0 && capacity.slots === undefined) {
    return { kind: 'wait', message: 'The operator has not set the number of slots of this host yet' };
  }
  const refusal = refuse(claim, alive, capacity);
  if (refusal !== undefined) {
    return refusal;
  }
  const later = refuse(claim, [...alive, ...leaving], capacity);
  return later === undefined
    ? { kind: 'admitted' }
    : {
        kind: 'wait',
        message: `${later.message}. The Pod is waiting until the machine of another Pod is removed`,
      };
}

function refuse(
  claim: MachineClaim,
  others: readonly MachineClaim[],
  capacity: HostCapacity,
): (Admission & { kind: 'refused' }) | undefined {
  const lacking = AMOUNTS.find(
    ({ amount }) => total([claim], amount) > 0 && total([claim, ...others], amount) > (capacity[amount] ?? 0),
  );
  if (lacking !== undefined) {
    const { amount, reason, message } = lacking;
    const taken = total(others, amount);
    return refused(reason, message(total([claim], amount), taken, capacity[amount] ?? 0));
  }
  const names = new Set(others.flatMap(({ ports }) => ports.map(portName)));
  const taken = claim.ports.find((port) => names.has(portName(port)));
  return taken === undefined
    ? undefined
    : refused(
        'PortTaken',
        `Another machine of this host uses the host port ${taken.protocol}/${taken.hostPort}`,
      );
}

function refused(reason: RefusalReason, message: string): Admission & { kind: 'refused' } {
  return { kind: 'refused', reason, message };
}

/** All Pods, machines and tasks that use the host's resources, with the host's capacity. */
export interface Claimants {
  host: {
    readonly records: RecordStore;
    capacity(): HostCapacity;
    isAwaited(record: Readonly<MachineRecord>): boolean;
  };
  /** All Pods bound to this host. */
  pods: readonly Readonly<Pod>[];
  /** States of the tasks that this agent started. The key is the uid of the task's Pod. */
  tasks: Pick<TaskRunner, 'state'>;
}

/** Decides whether a Pod may start on this host. The Pod has no machine and no task on this host yet. */
export function admitPod(pod: Readonly<Pod>, claimants: Claimants): Admission {
  const { alive, leaving } = claimsBeside(pod, claimants);
  const claim = claimOf(pod);
  const admission = admit(claim, alive, leaving, claimants.host.capacity());
  const message = awaitedPort(pod, claim.ports, claimants.host.records.list());
  return admission.kind === 'admitted' && message !== undefined
    ? { kind: 'wait', reason: 'PortTaken', message }
    : admission;
}

/** Returns the claims of all machines and tasks, except the claim of this Pod. {@link admit} has two parameters for the two lists. */
function claimsBeside(
  pod: Readonly<Pod>,
  claimants: Claimants,
): { alive: readonly MachineClaim[]; leaving: readonly MachineClaim[] } {
  const alive = taskClaims(pod, claimants);
  const leaving: MachineClaim[] = [];
  const byUid = new Map(claimants.pods.map((other) => [other.metadata.uid, other]));
  for (const record of claimants.host.records.list()) {
    if (podUidOf(record) === pod.metadata.uid) {
      continue;
    }
    if (record.failure === undefined && isWanted(record, byUid.get(podUidOf(record)), claimants.host)) {
      alive.push(heldBy(record));
    } else if (!record.released) {
      leaving.push(heldBy(record));
    }
  }
  return { alive, leaving };
}

/** Returns whether the machine stays. `owner` is its Pod. A machine can stay without a Pod until it gets another one. */
function isWanted(
  record: Readonly<MachineRecord>,
  owner: Readonly<Pod> | undefined,
  host: Claimants['host'],
): boolean {
  return owner === undefined
    ? host.isAwaited(record)
    : owner.metadata.deletionTimestamp === undefined || outlives(owner, record);
}

/** Returns the machine's claim. If the machine was started with more CPU or memory than it claims now, the larger amount applies. */
function heldBy(record: Readonly<MachineRecord>): MachineClaim {
  const { claim, startedWith } = record;
  if (startedWith === undefined) {
    return claim;
  }
  const running = claimOfSize(startedWith, record);
  return {
    ...claim,
    cpuMillis: Math.max(claim.cpuMillis, running.cpuMillis),
    memoryBytes: Math.max(claim.memoryBytes, running.memoryBytes),
  };
}

/**
 * Returns the claims of all Pods whose tasks run, except the claim of `pod`. After a restart of the agent, each Pod in phase Running counts,
 * because the agent will start its task again.
 */
function taskClaims(pod: Readonly<Pod>, { pods, tasks }: Claimants): MachineClaim[] {
  return pods
    .filter((other) => other.metadata.annotations?.[TASK_ANNOTATION] !== undefined && !isEnded(other))
    .filter(
      ({ metadata: { uid = '' }, status }) => tasks.state(uid) !== undefined || status?.phase === 'Running',
    )
    .filter((other) => other.metadata.uid !== pod.metadata.uid)
    .map(claimOf);
}

/**
 * Reason why the agent does not allocate the requested size: the host has too little CPU or memory left now (`Deferred`), or the whole host
 * is too small for this size (`Infeasible`). A kubelet uses the same words.
 */
export interface PendingResize {
  readonly reason: 'Deferred' | 'Infeasible';
  readonly message: string;
}

/** CPU and memory of a guest. */
type GuestSize = Pick<Desired, 'cpu' | 'memoryBytes'>;

/** Saves the Pod's new size in the record if the host has enough CPU and memory left. If not, returns the reason. */
export function allocate(
  pod: Readonly<Pod>,
  record: MachineRecord,
  claimants: Claimants,
): PendingResize | undefined {
  const { cpuMillis, memoryBytes } = claimOf(pod);
  const { claim } = record;
  const isSame = cpuMillis === claim.cpuMillis && memoryBytes === claim.memoryBytes;
  if (isSame || pod.metadata.deletionTimestamp !== undefined || record.failure !== undefined) {
    return undefined;
  }
  const { alive, leaving } = claimsBeside(pod, claimants);
  const { host } = claimants;
  const pending = refusalOf({ ...claim, cpuMillis, memoryBytes }, [...alive, ...leaving], host.capacity());
  if (pending === undefined) {
    host.records.update(record, { claim: { ...claim, cpuMillis, memoryBytes } });
  }
  return pending;
}

/**
 * Returns the refusal if the host has too little CPU or memory for the new size. A resize changes only CPU and memory, so the function
 * checks nothing else.
 */
function refusalOf(
  wanted: MachineClaim,
  others: readonly MachineClaim[],
  capacity: HostCapacity,
): PendingResize | undefined {
  const size = { ...wanted, slots: 0, macosGuests: 0, diskBytes: 0, ports: [] };
  const alone = admit(size, [], [], capacity);
  if (alone.kind !== 'admitted') {
    return { reason: 'Infeasible', message: alone.message };
  }
  const beside = admit(size, others, [], capacity);
  return beside.kind === 'admitted' ? undefined : { reason: 'Deferred', message: beside.message };
}

/** Returns the size for the machine's next start: the desired size, but never more than the host has allocated to the Pod. */
export function grantedSize(record: Readonly<MachineRecord>, desired: GuestSize): GuestSize {
  const { cpuMillis, memoryBytes } = record.claim;
  return {
    cpu: Math.max(1, Math.min(desired.cpu, Math.floor(cpuMillis / 1000))),
    memoryBytes: Math.min(desired.memoryBytes, memoryBytes - overheadOf(record)),
  };
}

/**
 * Returns two fields of a container's status: the allocated size, and the size that the machine has until its next start. Without
 * these fields, the API server does not resize the container.
 */
export function resourceStatus(
  { resources = {} }: Container,
  record: Readonly<MachineRecord>,
): Pick<ContainerStatus, 'allocatedResources' | 'resources'> {
  const { requests = {}, limits } = resources;
  const allocated = { ...requests, ...requestsOf(record.claim, requests) };
  const actual = { ...allocated, ...requestsOf(actualClaim(record), requests) };
  return {
    allocatedResources: allocated,
    resources: {
      requests: actual,
      ...(limits !== undefined && { limits: { ...limits, ...requestsOf(actualClaim(record), limits) } }),
    },
  };
}

/**
 * Returns the claim in the form of a container's requests or limits. An unchanged amount keeps the text of the Pod's spec, because one amount can be
 * written in several ways (`1` and `1000m`).
 */
function requestsOf(
  { cpuMillis, memoryBytes }: Pick<MachineClaim, 'cpuMillis' | 'memoryBytes'>,
  said: Readonly<Record<string, string>>,
): Record<string, string> {
  const asked = claimOf({ spec: { containers: [{ resources: { requests: said } }] } } as unknown as Pod);
  return {
    ...(said['cpu'] !== undefined && {
      cpu: asked.cpuMillis === cpuMillis ? said['cpu'] : formatMillis(cpuMillis),
    }),
    ...(said['memory'] !== undefined && {
      memory: asked.memoryBytes === memoryBytes ? said['memory'] : formatQuantity(memoryBytes),
    }),
  };
}

/** Returns the claim with the actual CPU and memory. A machine that runs or is suspended has the size of its last start. */
function actualClaim(record: Readonly<MachineRecord>): MachineClaim {
  const { claim, startedWith } = record;
  return startedWith === undefined ? claim : { ...claim, ...claimOfSize(startedWith, record) };
}

/**
 * Returns the conditions that show a resize. A kubelet uses the same conditions. `PodResizePending` means that the new size is not
 * allocated. `PodResizeInProgress` means that the new size is allocated, but the machine gets it only at its next start.
 */
export function resizeConditions(
  record: Readonly<MachineRecord>,
  pending: PendingResize | undefined,
): SaidCondition<Reason>[] {
  const { claim } = record;
  const actual = actualClaim(record);
  const waits = actual.cpuMillis !== claim.cpuMillis || actual.memoryBytes !== claim.memoryBytes;
  const message = 'The machine gets its new size at its next start';
  return [
    ...(pending === undefined
      ? []
      : [condition<Reason>('PodResizePending', true, pending.reason, pending.message)]),
    ...(waits ? [condition<Reason>('PodResizeInProgress', true, undefined, message)] : []),
  ];
}
