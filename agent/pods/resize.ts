/**
 * Handles a new size (requests of CPU and memory) of a Pod that has a machine on this host. Like a kubelet, the agent allocates the new
 * size when the host has enough CPU and memory left. The machine gets that size at its next start. Until then, the Pod's status shows
 * both the allocated and the actual size.
 */
import type { Desired } from '../../api/v1alpha1/machine.ts';
import { formatMillis, formatQuantity } from '../../api/v1alpha1/quantity.ts';
import type { Reason } from '../../api/v1alpha1/reasons.ts';
import type { Container, ContainerStatus, Pod } from '../../kube/core.ts';
import { condition, type SaidCondition } from '../../kube/podstatus.ts';
import { admit, type Claimants, claimOf, claimOfSize, claimsBeside, overheadOf } from './admission.ts';
import type { Claim, HostCapacity, MachineRecord } from './machine.ts';

/**
 * Reason why the agent does not allocate the requested size: the host has too little CPU or memory left now (`Deferred`), or the whole host
 * is too small for this size (`Infeasible`). A kubelet uses the same words.
 */
export interface PendingResize {
  readonly reason: 'Deferred' | 'Infeasible';
  readonly message: string;
}

/** CPU and memory of a guest. */
export type GuestSize = Pick<Desired, 'cpu' | 'memoryBytes'>;

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
  wanted: Claim,
  others: readonly Claim[],
  capacity: HostCapacity,
): PendingResize | undefined {
  const size = { ...wanted, slots: 0, diskBytes: 0, ports: [] };
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
  { cpuMillis, memoryBytes }: Pick<Claim, 'cpuMillis' | 'memoryBytes'>,
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
function actualClaim(record: Readonly<MachineRecord>): Claim {
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
  const words = 'The machine gets its new size at its next start';
  return [
    ...(pending === undefined
      ? []
      : [condition<Reason>('PodResizePending', true, pending.reason, pending.message)]),
    ...(waits ? [condition<Reason>('PodResizeInProgress', true, undefined, words)] : []),
  ];
}
