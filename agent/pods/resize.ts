/**
 * Another size of a Pod whose machine is here. As a kubelet does, the host promises the new size as soon as it has room; the
 * machine gets it at its next start. Until then the Pod's status shows the promised size and the present one.
 */
import { type Desired, MACHINE_MEMORY_OVERHEAD_BYTES } from '../../api/v1alpha1/machine.ts';
import { formatMillis, formatQuantity } from '../../api/v1alpha1/quantity.ts';
import type { Reason } from '../../api/v1alpha1/reasons.ts';
import type { Container, ContainerStatus, Pod } from '../../kube/core.ts';
import { condition, type SaidCondition } from '../../kube/podstatus.ts';
import { admit, type Claimants, claimOf, claimOfSize, claimsBeside } from './admission.ts';
import type { Claim, HostCapacity, MachineRecord } from './machine.ts';

/** Why the host does not promise the size that the Pod asks for: not now, or never. The reasons are a kubelet's. */
export interface PendingResize {
  readonly reason: 'Deferred' | 'Infeasible';
  readonly message: string;
}

/** A guest's processors and memory. */
export type GuestSize = Pick<Desired, 'cpu' | 'memoryBytes'>;

/** Takes the Pod's new size into the record when the host has room for it; else says why not. */
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

/** Slots, disk and ports do not change with the size, so that only processors and memory are asked for. */
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

/** The size that a machine is started with: as desired, and never more than the host has promised its Pod. */
export function grantedSize({ cpuMillis, memoryBytes }: Claim, desired: GuestSize): GuestSize {
  return {
    cpu: Math.max(1, Math.min(desired.cpu, Math.floor(cpuMillis / 1000))),
    memoryBytes: Math.min(desired.memoryBytes, memoryBytes - MACHINE_MEMORY_OVERHEAD_BYTES),
  };
}

/** The size that the host has promised, and the size of the machine until its next start. The API server resizes no container without them. */
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

/** In the Pod's own words where it says the same: the API server's spelling of a quantity is its own. */
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

/** The size of a machine that runs or is suspended is that of its start; any other machine has its claim. */
function actualClaim({ claim, startedWith }: Readonly<MachineRecord>): Claim {
  return startedWith === undefined ? claim : { ...claim, ...claimOfSize(startedWith) };
}

/** A kubelet's conditions: for a size that is not promised, and for a promised one that waits for the next start. */
export function resizeConditions(
  record: Readonly<MachineRecord>,
  pending: PendingResize | undefined,
): SaidCondition<Reason>[] {
  const { claim } = record;
  const actual = actualClaim(record);
  const waits = actual.cpuMillis !== claim.cpuMillis || actual.memoryBytes !== claim.memoryBytes;
  const words = 'the machine has its new size from its next start on';
  return [
    ...(pending === undefined
      ? []
      : [condition<Reason>('PodResizePending', true, pending.reason, pending.message)]),
    ...(waits ? [condition<Reason>('PodResizeInProgress', true, undefined, words)] : []),
  ];
}
