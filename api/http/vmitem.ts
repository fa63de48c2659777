/** Turns VMs and VMConfigs into the items that the HTTP API and the `berth` command show. */
import type { DeployedVM, VMDetails, VMItem } from './vm.ts';
import type { VMConfigItem } from './vmconfig.ts';
import { machineRequest, vmRequest } from './vmspec.ts';
import { CREATED_BY_ANNOTATION } from '../v1alpha1/names.ts';
import type { VMPhase } from '../v1alpha1/phases.ts';
import { shortImageName } from '../v1alpha1/reference.ts';
import type { VM } from '../v1alpha1/vm.ts';
import type { VMStatus } from '../v1alpha1/vmstatus.ts';
import { gibibytes } from '../v1alpha1/quantity.ts';
import type { VMConfig } from '../v1alpha1/vmconfig.ts';

/**
 * Largest number of labels in an item. Without this limit, the labels of one VM could need a hundred times the memory of its other fields.
 */
const LABELS = 64;

/** Status that clients get for each phase. Clients wait while the status is Pending, and use the VM while the status is Running. */
const STATUS_BY_PHASE: Readonly<Record<VMPhase, VMItem['status']>> = {
  Pending: 'Pending',
  Scheduled: 'Pending',
  Pulling: 'Pending',
  Cloning: 'Pending',
  Starting: 'Pending',
  Running: 'Running',
  Stopping: 'Running',
  Suspending: 'Running',
  Resuming: 'Running',
  Stopped: 'Stopped',
  Suspended: 'Suspended',
  Failed: 'Failed',
  Terminating: 'Terminating',
};

/**
 * Returns the item for a VM. `architectureOf` returns the architecture of a host. If the spec of the VM names no architecture, the item
 * contains the architecture of the VM's host.
 */
export function vmItem(
  vm: VM,
  architectureOf: (host: string) => string | undefined = () => undefined,
): VMItem {
  const { metadata, spec, status = {} } = vm;
  return {
    name: metadata.name,
    node: status.nodeName,
    ip: status.hostAddress,
    ...sizeOf(spec, status),
    image: imageOf(status) ?? spec.image ?? spec.iso,
    gpuPassthrough: false,
    deployDate: metadata.creationTimestamp,
    ...portsOf(status),
    status: statusOf(vm),
    powerState: spec.powerState ?? 'Running',
    owner: metadata.annotations?.[CREATED_BY_ANNOTATION],
    architecture: spec.architecture ?? (status.nodeName && architectureOf(status.nodeName)),
    labels: labelsOf(metadata),
    message: status.failure?.message,
  };
}

/**
 * Returns the status that clients get. If a VM is being deleted, the status is Terminating even before the operator has written this phase.
 */
function statusOf({ metadata, status }: VM): VMItem['status'] {
  return metadata.deletionTimestamp === undefined ? statusOfPhase(status?.phase) : 'Terminating';
}

/** Returns the body of the answer to a deployment. */
export function deployedVM(vm: VM): DeployedVM {
  const { name, node, memory, ip, ssh, vnc, screenshare, status } = vmItem(vm);
  return { name, node, memory, ip, ssh, vnc, screenshare, status };
}

/**
 * Returns the name of the VM's Image or ISO. For an image in a registry, the result is the whole reference, because `name` in the VM's
 * status does not contain the registry.
 */
function imageOf({ image: { name, reference } = {} }: VMStatus): string | undefined {
  const isReference = reference !== undefined && name === shortImageName(reference);
  return isReference ? reference : name;
}

/** Returns the status that clients get for a phase. The phase can be unknown here, because a newer operator can have other phases. */
export function statusOfPhase(phase = 'Pending'): VMItem['status'] {
  return STATUS_BY_PHASE[phase as VMPhase] ?? 'Pending';
}

function labelsOf({ labels }: VM['metadata']): VMItem['labels'] {
  return labels && Object.fromEntries(Object.entries(labels).slice(0, LABELS));
}

function sizeOf(spec: VM['spec'], status: VMStatus): Pick<VMItem, 'cpu' | 'memory'> {
  const { cpu = spec.cpu, memory = spec.memory } = status.resources ?? {};
  const gib = gibibytes(memory);
  return { cpu, memory: gib === undefined ? undefined : `${gib}Gi` };
}

function portsOf({
  endpoints = [],
}: VMStatus): Pick<VMItem, 'ssh' | 'vnc' | 'screenshare' | 'reservedPorts'> {
  // A VM can reserve a fixed host port for the guest port of a service, for example of SSH. In this case, the endpoint is named after the
  // host port, for example `8822-tcp`, and `purpose` names the service.
  const portOf = (wanted: string) =>
    endpoints.find(({ name, purpose }) => (purpose ?? name) === wanted)?.hostPort;
  const reserved = endpoints
    .filter(({ name, purpose, guestPort }) => name !== purpose && guestPort !== undefined)
    .map(({ hostPort, guestPort, protocol }) => `${hostPort}:${guestPort}/${protocol.toLowerCase()}`);
  return {
    ssh: portOf('ssh'),
    vnc: portOf('vnc'),
    screenshare: portOf('screen'),
    reservedPorts: reserved.length === 0 ? undefined : reserved.join(','),
  };
}

/** Returns the item of a VM by its name. `architectureOf` as for {@link vmItem}. */
export function vmDetails(vm: VM, architectureOf?: (host: string) => string | undefined): VMDetails {
  return { ...vmItem(vm, architectureOf), request: { ...vmRequest(vm), labels: labelsOf(vm.metadata) } };
}

export function vmConfigItem({ metadata: { name, namespace }, spec }: VMConfig): VMConfigItem {
  return { name, namespace, ...machineRequest(spec), type: spec.architecture };
}
