/**
 * Decides, as a kubelet does, whether the host has enough free resources for a Pod. The host must check this, because it can get too many
 * Pods. The scheduler can decide with old data, and a Pod can bypass the scheduler with `spec.nodeName`.
 */
import { EMULATOR_MEMORY_OVERHEAD_BYTES } from '../../api/v1alpha1/emulatormachine.ts';
import { MACHINE_MEMORY_OVERHEAD_BYTES } from '../../api/v1alpha1/machine.ts';
import { SLOT_RESOURCE, TASK_ANNOTATION } from '../../api/v1alpha1/names.ts';
import { parseQuantity } from '../../api/v1alpha1/quantity.ts';
import type { Reason, RefusalReason } from '../../api/v1alpha1/reasons.ts';
import type { Container, Pod } from '../../kube/core.ts';
import type { TaskRunner } from '../tasks/runner.ts';
import { type Claim, type HostCapacity, type MachineDocument, type MachineRecord } from './machine.ts';
import { isEnded, outlives } from './pod.ts';
import { podUidOf, type RecordStore } from './records.ts';
import { awaitedPort } from './portclaims.ts';

/** Names of the {@link Claim} fields that are summed over machines. */
type Amount = 'slots' | 'cpuMillis' | 'memoryBytes' | 'diskBytes';

export type Admission =
  | { kind: 'admitted' }
  /**
   * The Pod must wait. There are three causes: another machine occupies one of the Pod's host ports, a machine that is being removed still
   * occupies resources, or the operator has not set the host's number of slots.
   */
  | { kind: 'wait'; reason?: Reason; message: string }
  | { kind: 'refused'; reason: RefusalReason; message: string };

export function claimOf(pod: Pod): Claim {
  const claims = pod.spec.containers.map(claimOfContainer);
  return {
    slots: total(claims, 'slots'),
    cpuMillis: total(claims, 'cpuMillis'),
    memoryBytes: total(claims, 'memoryBytes'),
    diskBytes: total(claims, 'diskBytes'),
    ports: claims.flatMap(({ ports }) => ports),
  };
}

function total(claims: readonly Claim[], amount: Amount): number {
  return claims.reduce((sum, claim) => sum + claim[amount], 0);
}

function claimOfContainer({ resources, ports = [] }: Container): Claim {
  const requests: Record<string, string> = { ...resources?.limits, ...resources?.requests };
  const asked = (name: string): string => requests[name] ?? '0';
  return {
    slots: Number(parseQuantity(asked(SLOT_RESOURCE))),
    cpuMillis: millis(asked('cpu')),
    memoryBytes: Number(parseQuantity(asked('memory'))),
    diskBytes: Number(parseQuantity(asked('ephemeral-storage'))),
    ports: ports
      .filter(({ hostPort = 0 }) => hostPort !== 0)
      .map(({ hostPort, protocol = 'TCP' }) => `${protocol}/${hostPort}`),
  };
}

/**
 * Resources that the host checks for a Pod. If several resources are insufficient, the refusal names the one that is first in this list.
 */
const AMOUNTS: readonly {
  amount: Amount;
  reason: RefusalReason;
  words: (wanted: number, taken: number, all: number) => string;
}[] = [
  {
    amount: 'slots',
    reason: 'OutOfSlot',
    words: (_, taken, all) => `${taken} of ${all} slots of this host are in use`,
  },
  {
    amount: 'cpuMillis',
    reason: 'OutOfcpu',
    words: (wanted, taken, all) =>
      `The Pod requests ${wanted}m of CPU, and the host has only ${all - taken}m of ${all}m left`,
  },
  {
    amount: 'memoryBytes',
    reason: 'OutOfmemory',
    words: (wanted, taken, all) =>
      `The Pod requests ${wanted} bytes of memory, and the host has only ${all - taken} left`,
  },
  {
    amount: 'diskBytes',
    reason: 'OutOfDisk',
    words: (wanted, taken, all) =>
      `The Pod requests ${wanted} bytes of disk (ephemeral-storage), and the host has only ${all - taken} left`,
  },
];

/** Returns the memory in bytes that the process of a machine needs in addition to the guest's memory. */
export function overheadOf({ emulator }: Readonly<MachineDocument>): number {
  return emulator === undefined ? MACHINE_MEMORY_OVERHEAD_BYTES : EMULATOR_MEMORY_OVERHEAD_BYTES;
}

/** Returns the CPU and memory that a guest of this size and its process use on the host. */
export function claimOfSize(
  size: { cpu: number; memoryBytes: number },
  document: Readonly<MachineDocument>,
): Pick<Claim, 'cpuMillis' | 'memoryBytes'> {
  return { cpuMillis: size.cpu * 1000, memoryBytes: size.memoryBytes + overheadOf(document) };
}

/** Converts a CPU quantity to thousandths of a CPU. */
function millis(quantity: string): number {
  return quantity.endsWith('m')
    ? Number(parseQuantity(quantity.slice(0, -1)))
    : Number(parseQuantity(quantity)) * 1000;
}

/**
 * Decides whether the host has enough free resources for a claim.
 *
 * @param alive claims of machines that are not being removed
 * @param leaving claims of machines that are being removed; their resources become free only after the removal
 */
export function admit(
  claim: Claim,
  alive: readonly Claim[],
  leaving: readonly Claim[],
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
  claim: Claim,
  others: readonly Claim[],
  capacity: HostCapacity,
): (Admission & { kind: 'refused' }) | undefined {
  const lacking = AMOUNTS.find(
    ({ amount }) => claim[amount] > 0 && total(others, amount) + claim[amount] > (capacity[amount] ?? 0),
  );
  if (lacking !== undefined) {
    const { amount, reason, words } = lacking;
    return refused(reason, words(claim[amount], total(others, amount), capacity[amount] ?? 0));
  }
  const taken = claim.ports.find((port) => others.some((other) => other.ports.includes(port)));
  return taken === undefined
    ? undefined
    : refused('PortTaken', `Another machine of this host uses the host port ${taken}`);
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
export function claimsBeside(
  pod: Readonly<Pod>,
  claimants: Claimants,
): { alive: readonly Claim[]; leaving: readonly Claim[] } {
  const alive = taskClaims(pod, claimants);
  const leaving: Claim[] = [];
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
function heldBy(record: Readonly<MachineRecord>): Claim {
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
function taskClaims(pod: Readonly<Pod>, { pods, tasks }: Claimants): Claim[] {
  return pods
    .filter((other) => other.metadata.annotations?.[TASK_ANNOTATION] !== undefined && !isEnded(other))
    .filter(
      ({ metadata: { uid = '' }, status }) => tasks.state(uid) !== undefined || status?.phase === 'Running',
    )
    .filter((other) => other.metadata.uid !== pod.metadata.uid)
    .map(claimOf);
}
