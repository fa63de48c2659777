/**
 * Handles a new size of a Pod that has a machine on this host. As a kubelet does, the host promises the new size when it has room. The
 * machine gets that size at its next start. Until then the Pod's status shows both the promised and the present size.
 */
import { type Desired, MACHINE_MEMORY_OVERHEAD_BYTES } from '../../api/v1alpha1/machine.ts';
import { formatMillis, formatQuantity } from '../../api/v1alpha1/quantity.ts';
import type { Reason } from '../../api/v1alpha1/reasons.ts';
import type { Container, ContainerStatus, Pod } from '../../kube/core.ts';
import { condition, type SaidCondition } from '../../kube/podstatus.ts';
import { admit, type Claimants, claimOf, claimOfSize, claimsBeside } from './admission.ts';
import type { Claim, HostCapacity, MachineRecord } from './machine.ts';

/** Reason why the host does not promise the requested size: not now (Deferred) or never (Infeasible). The reasons are a kubelet's. */
export interface PendingResize {
  readonly reason: 'Deferred' | 'Infeasible';
  readonly message: string;
}

/** CPU and memory of a guest. */
export type GuestSize = Pick<Desired, 'cpu' | 'memoryBytes'>;

/** Saves the Pod's new size in the record if the host has room. If not, returns the reason. */
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

/** Returns the reason if the host has no room for the size. Checks CPU and memory only, because a resize does not change the rest. */
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

/** Returns the size for the machine's next start: the desired size, but never more than the host has promised the Pod. */
export function grantedSize({ cpuMillis, memoryBytes }: Claim, desired: GuestSize): GuestSize {
  return {
    cpu: Math.max(1, Math.min(desired.cpu, Math.floor(cpuMillis / 1000))),
    memoryBytes: Math.min(desired.memoryBytes, memoryBytes - MACHINE_MEMORY_OVERHEAD_BYTES),
  };
}

/**
 * Returns the promised size, and the size of the machine until its next start. The API server resizes no container without these fields.
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
    resources: { requests: actual, ...(limits === undefined ? {} : { limits }) },
  };
}

/** Formats an amount as the Pod's spec does if both are equal. The spelling matters because equal quantities have several spellings. */
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

/** Returns the actual claim. The size at the start applies to a machine that runs or is suspended. */
function actualClaim({ claim, startedWith }: Readonly<MachineRecord>): Claim {
  return startedWith === undefined ? claim : { ...claim, ...claimOfSize(startedWith) };
}

/** Returns a kubelet's conditions for a size that is not promised, and for a promised size that waits for the next start. */
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
