/** Computes the whole status of a VM from the observed state, the facts (see facts.ts), the Pod and the report of its host. */
import { timestamp } from '../../base/time.ts';
import {
  LAYERS_CONDITION,
  MACOS_ACCELERATOR,
  MACOS_GUEST_RESOURCE,
  NETWORK_CONDITION,
  USER_DATA_CONDITION,
  WARM_START_CONDITION,
} from '../../api/v1alpha1/names.ts';
import { classOf, isReason, isSeen, saidReason } from '../../api/v1alpha1/reasons.ts';
import type { VMStatus } from '../../api/v1alpha1/vmstatus.ts';
import type { Condition } from '../../kube/objects.ts';
import { type ConditionDraft, type ConditionDraft as Draft, stampConditions } from '../objects/conditions.ts';
import { awaitedChange, doneStamps, hasEndedByItself, refusedChange } from './declared.ts';
import { sshDueAt } from './deadlines.ts';
import { deployTimeoutOf, type VMFacts } from './facts.ts';
import { pausedByDisk } from './disktrouble.ts';
import type { ObservedVM } from './observe.ts';
import { phasesIn, type VMPhase } from '../../api/v1alpha1/phases.ts';
import { isOffAsDeclared, PENDING_PHASES, type VMPhaseReport, phaseOf } from './phase.ts';
import {
  containerState,
  desiredOf,
  machineContainer,
  machineOf,
  machineReport,
  podCondition,
  readyByPod,
  waitingState,
} from '../podbacked/pod.ts';
import type { Unresolved } from './resolve.ts';
import { schedulingReason } from './scheduling.ts';
import { restartRequired, startedSize } from './size.ts';
import { GUEST_ADDRESSES_LIMIT, type Machine, type MachineReport } from '../../api/v1alpha1/machine.ts';
import { formatQuantity } from '../../api/v1alpha1/quantity.ts';
import { shortImageName } from '../../api/v1alpha1/reference.ts';
import type { VM } from '../../api/v1alpha1/vm.ts';
import type { Pod, PodCondition } from '../../kube/core.ts';
import { endpointsOf } from './ports.ts';
import type { Blocked, Run } from '../podbacked/kind.ts';

/** Result of the steps of a reconcile that the Pod does not show: why the VM's Pod could not be created. */
export type Findings = Pick<Run<ObservedVM>, 'blocked'>;

export function summarize(observed: ObservedVM, facts: VMFacts, findings: Findings): VMStatus {
  const { vm, pod } = observed;
  const phase = phaseOf(observed, facts);
  return {
    observedGeneration: vm.metadata.generation ?? 0,
    phase: phase.name,
    nodeName: pod?.spec.nodeName,
    hostAddress: hostAddress(observed),
    ...machineStatus(observed, phase.name),
    attempt: facts.attempt,
    firstRunningTime: facts.firstRunningTime,
    avoidedNodes: nonEmpty([...facts.avoidedNodes]),
    failure: facts.failure,
    ...doneStamps(observed),
    conditions: conditions(observed, { phase, facts, findings }),
  };
}

function hostAddress({ pod, node }: ObservedVM): string | undefined {
  if (pod?.spec.nodeName === undefined) {
    return undefined;
  }
  const internal = node?.status?.addresses?.find(({ type }) => type === 'InternalIP');
  return pod.status?.hostIP ?? internal?.address;
}

interface Derived {
  readonly phase: VMPhaseReport;
  readonly facts: VMFacts;
  readonly findings: Findings;
}

/**
 * Returns the conditions of a VM. `Ready` and `Scheduled` exist from the first reconcile on. Other conditions exist only while they have
 * information. The rules of kstatus require this for Reconciling and Stalled. An absent condition means Unknown. There are few conditions,
 * because each one costs the API server 0.3 ms each time the status is stored.
 */
function conditions(observed: ObservedVM, { phase, facts, findings }: Derived): Condition[] {
  const generation = observed.vm.metadata.generation ?? 0;
  const placement = scheduled(observed, findings);
  // The end of a machine changes what its host says of it. Nobody waits for that, and it would be one more write for each deleted VM.
  const ofMachine = phase.name === 'Terminating' ? [] : machineConditions(observed, findings);
  const drafts = [
    ready(observed, { phase, findings }, placement),
    reconciling(observed, { phase, findings }, placement),
    stalled(observed, { phase, facts, findings }),
    placement,
    ...ofMachine,
  ].filter((draft) => draft !== undefined);
  return stampConditions(drafts, observed.vm.status?.conditions, {
    now: timestamp(observed.now),
    generation,
  });
}

function machineConditions(observed: ObservedVM, findings: Findings): (Draft | undefined)[] {
  return [
    imageReady(observed, findings),
    networkReady(observed),
    restartRequired(observed),
    guestAgent(observed),
    userDataReady(observed),
    warmStart(observed),
    layersMerged(observed),
    displayReady(observed),
    identityReady(observed),
    keysReady(observed),
  ];
}

/**
 * Returns the condition Ready. It is True if the VM is as declared: it runs and is ready, or it is off on request. While the VM waits for a
 * host, it says what the condition Scheduled (`placement`) says, because lists show Ready alone.
 */
function ready(
  observed: ObservedVM,
  { phase, findings: { blocked } }: Pick<Derived, 'phase' | 'findings'>,
  placement: Draft,
): Draft {
  const type = 'Ready';
  if (blocked !== undefined) {
    return { type, status: 'False', reason: blocked.reason, message: blocked.message };
  }
  if (placement.status === 'False') {
    return { ...placement, type };
  }
  const { reason, message } = phase;
  if (reason === 'HostUnreachable' || reason === 'HostPoweredOff') {
    return { type, status: 'Unknown', reason, message };
  }
  const awaited = awaitedChange(observed, phase);
  if (awaited !== undefined) {
    return { type, status: 'False', ...awaited };
  }
  if (phase.name !== 'Running') {
    return { type, status: isOffAsDeclared(observed, phase) ? 'True' : 'False', reason, message };
  }
  return pausedByDisk(observed.pod) ?? withoutSSH(observed) ?? guestReady(observed);
}

function guestReady({ pod }: ObservedVM): Draft {
  return readyByPod(pod, 'The guest is not ready yet');
}

/** Returns the condition of a VM whose guest should have had an SSH server for long. */
function withoutSSH(observed: ObservedVM): Draft | undefined {
  const due = sshDueAt(observed);
  if (due === undefined || observed.now < due) {
    return undefined;
  }
  const message = `No SSH server of the guest has answered on port 22 for ${deployTimeoutOf(observed)} s. The VM waits for one, because its guest has SSH keys`;
  return { type: 'Ready', status: 'False', reason: 'NoSSHServer', message };
}

const SETTLED = phasesIn('settled');

/** Returns the condition Reconciling. Its message tells why the VM is not as declared yet. `placement` is the condition Scheduled. */
function reconciling(
  observed: ObservedVM,
  { phase, findings: { blocked } }: Pick<Derived, 'phase' | 'findings'>,
  placement: Draft,
): Draft | undefined {
  const draft = { type: 'Reconciling', status: 'True' } as const;
  const awaited = awaitedChange(observed, phase);
  if (awaited !== undefined) {
    return refusedChange(observed, phase) === undefined ? { ...draft, ...awaited } : undefined;
  }
  if (SETTLED.has(phase.name) || blocked?.condition === 'Stalled') {
    return undefined;
  }
  const { message } = blocked ?? (waitsForHost(observed) ? placement : phase);
  return { ...draft, reason: phase.name, message };
}

function waitsForHost({ pod }: Pick<ObservedVM, 'pod'>): boolean {
  return pod !== undefined && pod.spec.nodeName === undefined;
}

/**
 * Returns the condition Stalled: the VM has failed, cannot run, or its guest ended by itself, or its hypervisor never makes the change that
 * the VM declares. A VM on a silent host is Failed too, but has no recorded failure. It is not Stalled, because the host can return with its
 * machine.
 */
function stalled(observed: ObservedVM, { phase, facts, findings: { blocked } }: Derived): Draft | undefined {
  const type = 'Stalled';
  const refused = refusedChange(observed, phase);
  if (refused !== undefined) {
    return { type, status: 'True', ...refused };
  }
  const hasFailed = phase.name === 'Failed' && facts.failure !== undefined;
  if (hasFailed || hasEndedByItself(observed, phase)) {
    return { type, status: 'True', reason: phase.reason, message: phase.message };
  }
  return blocked?.condition === 'Stalled'
    ? { type, status: 'True', reason: blocked.reason, message: blocked.message }
    : undefined;
}

function scheduled({ vm, pod, portHolder, hosts, startingHosts }: ObservedVM, { blocked }: Findings): Draft {
  const type = 'Scheduled';
  if (blocked?.condition === 'Scheduled') {
    return { type, status: 'False', reason: blocked.reason, message: blocked.message };
  }
  if (pod === undefined) {
    return { type, status: 'Unknown', reason: 'NoPod', message: 'The VM has no Pod' };
  }
  if (pod.spec.nodeName !== undefined) {
    return { type, status: 'True', reason: 'Scheduled', message: `The VM is on host ${pod.spec.nodeName}` };
  }
  const avoidedNodes = vm.status?.avoidedNodes ?? [];
  const { reason, message } = schedulingReason(pod, { portHolder, hosts, startingHosts, avoidedNodes });
  return { type, status: reason === 'WaitingForScheduler' ? 'Unknown' : 'False', reason, message };
}

/** Message of a VM whose image only a host that runs macOS can use, while the cluster has none. */
const NO_APPLE_HOST =
  'The image is an IPSW, from which only a host with macOS can install a guest. The cluster has no such host';

/** Returns true if the VM waits for a host that installs macOS, and the cluster has none. */
function lacksAppleHost({ pod, hosts }: ObservedVM): boolean {
  const isWaiting = pod !== undefined && waitsForHost({ pod });
  return (
    isWaiting &&
    machineOf(pod)?.image?.type === 'ipsw' &&
    !hosts().some(({ status }) => Number(status?.allocatable?.[MACOS_GUEST_RESOURCE] ?? 0) > 0)
  );
}

function imageReady(observed: ObservedVM, { blocked }: Findings): Draft | undefined {
  const type = 'ImageReady';
  const { pod } = observed;
  if (lacksAppleHost(observed)) {
    return { type, status: 'False', reason: 'NoAppleHost', message: NO_APPLE_HOST };
  }
  if (blocked?.condition === 'ImageReady') {
    return { type, status: 'False', reason: blocked.reason, message: blocked.message };
  }
  const { reason, message = '' } = waitingState(pod);
  if (reason !== undefined && isOfImage(reason)) {
    return { type, status: 'False', reason: saidReason(reason, 'ImageFetchFailed'), message };
  }
  return pod?.status?.phase === 'Running'
    ? { type, status: 'True', reason: 'Deployed', message: '' }
    : undefined;
}

/**
 * Returns true if the reason means that the machine waits for its image. A newer agent can report reasons that this release does not know.
 * Such an unknown reason counts if it begins with `Image`.
 */
function isOfImage(reason: string): boolean {
  return isReason(reason)
    ? isSeen(reason, 'VM', 'ImageReady') && classOf(reason, 'VM') !== 'state'
    : /^Image\w*$/.test(reason);
}

function networkReady({ pod }: ObservedVM): Draft | undefined {
  const said = pod?.spec.nodeName === undefined ? undefined : podCondition(pod, NETWORK_CONDITION);
  return said && hostCondition('NetworkReady', said);
}

/** Returns a condition of the VM with the content of a condition that the host wrote to the Pod. */
function hostCondition(type: string, { status, reason, message = '' }: PodCondition): Draft {
  return { type, status, reason: saidReason(reason, 'Reported'), message };
}

/**
 * Returns the condition that tells whether the machine started from the memory of its image. `Ready` does not depend on it, because a
 * machine that booted is as good. The result is undefined if the image has no memory.
 */
function warmStart({ pod }: ObservedVM): Draft | undefined {
  const said = podCondition(pod, WARM_START_CONDITION);
  return said && hostCondition('WarmStart', said);
}

/** Returns the condition that tells of a merge of layers that the host has given up. `Ready` does not depend on it, because no data is lost. */
function layersMerged({ pod }: ObservedVM): Draft | undefined {
  const said = podCondition(pod, LAYERS_CONDITION);
  return said && hostCondition('LayersMerged', said);
}

function guestAgent({ pod }: ObservedVM): Draft | undefined {
  const type = 'GuestAgentConnected';
  const connected = machineReport(pod).guestAgentConnected;
  return connected === undefined
    ? undefined
    : {
        type,
        status: connected ? 'True' : 'False',
        reason: connected ? 'Connected' : 'NotConnected',
        message: '',
      };
}

/**
 * Returns the condition with the host's report about the display. `Ready` does not depend on it: a VM without the requested DPI can be
 * Ready.
 */
function displayReady({ pod }: ObservedVM): Draft | undefined {
  return reportedState('DisplayReady', machineReport(pod).display);
}

/**
 * Returns the condition with the host's report about serial number, hardware UUID and MAC address. `Ready` does not depend on it. The result
 * is undefined on hosts whose guests have exactly the identity of their VMs.
 */
function identityReady({ pod }: ObservedVM): Draft | undefined {
  return reportedState('IdentityReady', machineReport(pod).identity);
}

/**
 * Returns the condition with the host's report about the SSH keys of the VM. `Ready` does not depend on it, because a guest can let users log in
 * otherwise. The result is undefined if the guest reads its keys from its seed.
 */
function keysReady({ pod }: ObservedVM): Draft | undefined {
  return reportedState('KeysReady', machineReport(pod).keys);
}

function reportedState(type: string, state: MachineReport['display']): Draft | undefined {
  return (
    state && {
      type,
      status: state.ready ? 'True' : 'False',
      reason: saidReason(state.reason, 'Reported'),
      message: state.message,
    }
  );
}

/** Returns the condition, reason and message for a VM that cannot be resolved. */
export function blockedBy(unresolved: Unresolved): Blocked {
  const { reason, message } = unresolved;
  if (reason === 'ImageNotFound' || reason === 'ImageNotReady') {
    return { condition: 'ImageReady', reason, message };
  }
  return { condition: unresolved.kind === 'terminal' ? 'Stalled' : 'Scheduled', reason, message };
}

/** Phases in which a machine has a disk, but its host reports no disk size, because the machine does not run. */
const OFF: ReadonlySet<VMPhase> = new Set(['Stopped', 'Suspended']);

/** Returns the machine's part of the status. After the deletion of the Pod, the status keeps its last values. */
export function machineStatus({ vm, pod }: ObservedVM, phase: VMPhase): Partial<VMStatus> {
  const machine = pod === undefined ? undefined : machineOf(pod);
  if (pod === undefined || machine === undefined) {
    return keptStatus(vm.status ?? {});
  }
  const report = machineReport(pod);
  return {
    ...identity(machine, report),
    image: imageStatus(pod, machine, report),
    config: machine.config,
    resources: resources(pod, vm, report, phase),
    accelerator: report.accelerator?.toUpperCase(),
    addresses: guestAddresses(pod, report),
    guest: guestFacts(report),
    endpoints: nonEmpty(hostPorts(pod, machine, report)),
    startTime: containerState(pod)?.running?.startedAt ?? vm.status?.startTime,
    progressPercent: report.progressPercent,
    progress: progress(phase, report),
  };
}

/**
 * Returns the identity that the machine has in its guest. On a host with the hypervisor of macOS it follows from the image, and the operator
 * does not know it.
 */
function identity(
  { hardware, os }: Machine,
  { accelerator }: MachineReport,
): Pick<VMStatus, 'hardwareUUID' | 'serialNumber'> {
  const isOfImage = os === 'MacOS' || accelerator === MACOS_ACCELERATOR;
  return isOfImage
    ? { hardwareUUID: undefined, serialNumber: undefined }
    : { hardwareUUID: hardware.uuid, serialNumber: hardware.serialNumber };
}

/** Returns the endpoints of the machine on its host. Before a host has taken the VM, another VM can hold the reserved ports. */
function hostPorts({ spec }: Pod, machine: Machine, report: MachineReport): ReturnType<typeof endpointsOf> {
  return spec.nodeName === undefined ? [] : endpointsOf(machine, report);
}

function keptStatus(last: VMStatus): Partial<VMStatus> {
  const { image, config, hardwareUUID, serialNumber, resources, accelerator, startTime } = last;
  return { image, config, hardwareUUID, serialNumber, resources, accelerator, startTime };
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

function nonEmpty<T>(list: T[]): T[] | undefined {
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

/**
 * Returns CPU, memory and disk size of the machine: those with which it runs or is suspended, else those of its next start. While the machine
 * is off, the disk size is the size at its last start.
 */
function resources(pod: Pod, vm: VM, report: MachineReport, phase: VMPhase): VMStatus['resources'] {
  const desired = desiredOf(pod);
  if (desired === undefined) {
    return vm.status?.resources;
  }
  const { cpu, memoryBytes } = startedSize(pod) ?? desired;
  const { diskSizeBytes: wanted } = desired;
  const { diskSizeBytes = wanted } = report;
  const last = OFF.has(phase) ? vm.status?.resources?.diskSize : undefined;
  const size = diskSizeBytes === undefined ? undefined : formatQuantity(BigInt(diskSizeBytes));
  return { cpu, memory: formatQuantity(BigInt(memoryBytes)), diskSize: last ?? size };
}

/**
 * Returns the condition `UserDataReady`. The result is undefined for a VM without user data, and before a host has tried to start the
 * machine. If the agent of the host is so old that it ignores user data, the status of the condition is Unknown.
 */
export function userDataReady({ vm, pod }: ObservedVM): ConditionDraft | undefined {
  const type = 'UserDataReady';
  const said = podCondition(pod, USER_DATA_CONDITION);
  if (said !== undefined) {
    return hostCondition(type, said);
  }
  const { userData, userDataSecretRef } = vm.spec;
  return pod?.status?.phase === 'Running' && (userData ?? userDataSecretRef) !== undefined
    ? { type, status: 'Unknown', reason: 'NotReported', message: '' }
    : undefined;
}
