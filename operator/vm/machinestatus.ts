/** Computes the part of a VM's status that describes its machine, from the Pod and the report of its host. */
import { GUEST_ADDRESSES_LIMIT, type Machine, type MachineReport } from '../../api/v1alpha1/machine.ts';
import { formatQuantity } from '../../api/v1alpha1/quantity.ts';
import { shortImageName } from '../../api/v1alpha1/reference.ts';
import type { VMPhase } from '../../api/v1alpha1/phases.ts';
import type { VM } from '../../api/v1alpha1/vm.ts';
import type { VMStatus } from '../../api/v1alpha1/vmstatus.ts';
import type { Pod } from '../../kube/core.ts';
import type { Observed } from './observe.ts';
import { PENDING_PHASES } from './phase.ts';
import { endpointsOf } from './ports.ts';
import { containerState, desiredOf, machineContainer, machineOf, machineReport } from './podstate.ts';

/** Phases in which a machine has a disk, but its host reports no disk size, because the machine does not run. */
const OFF: ReadonlySet<VMPhase> = new Set(['Stopped', 'Suspended']);

/** Returns the machine's part of the status. After the deletion of the Pod, the status keeps its last values. */
export function machineStatus({ vm, pod }: Observed, phase: VMPhase): Partial<VMStatus> {
  const machine = pod === undefined ? undefined : machineOf(pod);
  if (pod === undefined || machine === undefined) {
    return keptStatus(vm.status ?? {});
  }
  const report = machineReport(pod);
  return {
    hardwareUUID: machine.hardware.uuid,
    serialNumber: machine.hardware.serialNumber,
    image: imageStatus(pod, machine, report),
    config: machine.config,
    resources: resources(pod, vm, report, phase),
    accelerator: report.accelerator?.toUpperCase(),
    addresses: guestAddresses(pod, report),
    guest: guestFacts(report),
    endpoints: nonEmpty(endpointsOf(machine, report)),
    startTime: containerState(pod)?.running?.startedAt ?? vm.status?.startTime,
    progressPercent: report.progressPercent,
    progress: progress(phase, report),
  };
}

function keptStatus(last: VMStatus): Partial<VMStatus> {
  const { image, config, hardwareUUID, serialNumber, resources, accelerator, startTime } = last;
  // Earlier releases wrote no image name into the status. The name is added here, because `kubectl get` shows it.
  const named = image && { name: shortImageName(image.reference ?? ''), ...image };
  return { image: named, config, hardwareUUID, serialNumber, resources, accelerator, startTime };
}

function progress(phase: VMPhase, { progressPercent, bytesPerSecond }: MachineReport): string | undefined {
  if (progressPercent === undefined || !PENDING_PHASES.has(phase)) {
    return undefined;
  }
  const speed = bytesPerSecond === undefined ? '' : ` (${(bytesPerSecond / 1e6).toFixed(0)} MB/s)`;
  return `${phase} ${progressPercent} %${speed}`;
}

/**
 * Returns the guest's own addresses: first those that the host's network gave the guest, then those that the guest reported. If the network
 * gave the guest no address, the Pod's status contains the address of the host. The function leaves out this address.
 */
function guestAddresses({ status = {} }: Pod, { guest }: MachineReport): string[] | undefined {
  const given = (status.podIPs ?? []).map(({ ip }) => ip).filter((address) => address !== status.hostIP);
  const all = new Set([...given, ...(guest?.addresses ?? [])]);
  return nonEmpty([...all].slice(0, GUEST_ADDRESSES_LIMIT));
}

function guestFacts({ guest: { os, hostName } = { addresses: [] } }: MachineReport): VMStatus['guest'] {
  return os === undefined && hostName === undefined ? undefined : { os, hostName };
}

export function nonEmpty<T>(list: T[]): T[] | undefined {
  return list.length === 0 ? undefined : list;
}

function imageStatus(
  pod: Pod,
  { imageName, isoName }: Machine,
  { imageDigest }: MachineReport,
): VMStatus['image'] {
  const reference = machineContainer(pod)?.image ?? '';
  const object = imageName ?? isoName;
  const digest = imageDigest ?? digestOf(pod.status?.containerStatuses?.[0]?.imageID);
  return { name: object?.slice(object.lastIndexOf('/') + 1) ?? shortImageName(reference), reference, digest };
}

function digestOf(imageID: string | undefined): string | undefined {
  return imageID === undefined || imageID === '' ? undefined : imageID.slice(imageID.lastIndexOf('@') + 1);
}

/** Returns CPU, memory and disk size of the machine. While the machine is off, the disk size is the size at its last start. */
function resources(pod: Pod, vm: VM, report: MachineReport, phase: VMPhase): VMStatus['resources'] {
  const desired = desiredOf(pod);
  if (desired === undefined) {
    return vm.status?.resources;
  }
  const { cpu, memoryBytes, diskSizeBytes: wanted } = desired;
  const { diskSizeBytes = wanted } = report;
  const last = OFF.has(phase) ? vm.status?.resources?.diskSize : undefined;
  const size = diskSizeBytes === undefined ? undefined : formatQuantity(BigInt(diskSizeBytes));
  return { cpu, memory: formatQuantity(BigInt(memoryBytes)), diskSize: last ?? size };
}
