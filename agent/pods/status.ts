/**
 * Makes the Pod status of a machine, with the report that the operator reads in one of its conditions. The functions are pure: an unchanged
 * machine gives an equal status, which is not written again.
 */
import {
  type Machine,
  type MachineReport,
  SNAPSHOT_MESSAGE_LENGTH,
  type SnapshotReport,
} from '../../api/v1alpha1/machine.ts';
import {
  ADB_PORT,
  DISK_CONDITION,
  HOST_DISK_FULL,
  LAYERS_CONDITION,
  MACHINE_CONDITION,
  MACHINE_CONTAINER,
  NETWORK_CONDITION,
  NO_ROOM_TO_SUSPEND,
  USER_DATA_CONDITION,
  WARM_START_CONDITION,
  SNAPSHOTS_CONDITION,
} from '../../api/v1alpha1/names.ts';
import { type Reason, type SaidReason, saidReason } from '../../api/v1alpha1/reasons.ts';
import type { ContainerState, Pod, PodStatus } from '../../kube/core.ts';
import {
  condition,
  emptyContainer,
  frame,
  truncateStart,
  MESSAGE_LENGTH,
  type SaidCondition,
  stamp,
  STOPPED_EXIT_CODE,
  waiting,
} from '../../kube/podstatus.ts';
import { type PendingResize, resizeConditions, resourceStatus } from './admission.ts';
import { PAUSED_MESSAGE } from './diskguard.ts';
import type { PodHost } from './host.ts';
import type {
  MachineFailure,
  MachinePhase,
  MachineRecord,
  Runtime,
  MachineStep,
  WantedMachine,
} from './machine.ts';
import { mergeFailure } from './merges.ts';
import { holdsPorts } from './ports.ts';
import { escapeFree, runningReport } from './runningreport.ts';

/** Largest length of the message in the report, in characters. */
const REPORT_MESSAGE_LENGTH = 512;
/** Largest number of characters that JSON needs for one escaped character. */
const LONGEST_ESCAPE = 6;
/** Upper limit for the number of characters that the JSON key `message` takes in the report, with quotes and comma. */
const MESSAGE_KEY_LENGTH = 16;

const USER_DATA_REASONS: ReadonlySet<Reason | undefined> = new Set([
  'SecretNotFound',
  'SecretNotRead',
  'UserDataInvalid',
  'UserDataSecretRefused',
]);

/** Machine with all values that its Pod's status shows. */
export interface MachineView {
  runtime: Readonly<Runtime>;
  /** Step that was planned for the machine. The agent has begun this step, or begins it later. */
  step: MachineStep;
  wanted: Pick<WantedMachine, 'deletion' | 'desiredHash'>;
  accelerator: string | undefined;
  /** Reason why the host does not allocate the Pod's new CPU and memory size; undefined if the host allocates the size. */
  pendingResize: PendingResize | undefined;
}

/** Problem of the host's disk that affects a running machine. */
interface DiskTrouble {
  reason: typeof HOST_DISK_FULL | typeof NO_ROOM_TO_SUSPEND;
  message: string;
}

/** Exit code 128 + SIGKILL. A kubelet uses the same code for processes that it killed. */
const KILLED_EXIT_CODE = 137;

/** Phases in which the machine has a process. In these phases, the container's state is `running`. */
const WITH_PROCESS: ReadonlySet<MachinePhase> = new Set([
  'Running',
  'Stopping',
  'Suspending',
  'Resuming',
  'Terminating',
]);

/** Addresses of the host: the address of its Node, and the address for connections to host ports that lead to machines. */
type HostAddresses = Pick<PodHost, 'address' | 'forwardAddress'>;

export function machineStatus(pod: Pod, view: MachineView, host: HostAddresses, now: string): PodStatus {
  const { record, address = host.address } = view.runtime;
  const phase = phaseOf(view);
  const disk = phase === 'Running' || phase === 'Starting' ? diskTrouble(view) : undefined;
  const { ready, reason: notReady, message } = readinessOf(view, phase, disk);
  const podPhase = podPhaseOf(pod, record, phase);
  const state = containerState(view, phase, podPhase);
  const conditions: SaidCondition<SaidReason>[] = [
    condition('PodReadyToStartContainers', record.created),
    condition('Initialized', true),
    condition('Ready', ready, notReady, message),
    condition('ContainersReady', ready, notReady),
    machineCondition(view, phase, host.forwardAddress),
    ...networkCondition(pod, view),
    // The disk condition exists only while a problem of the host's disk affects the machine.
    ...(disk === undefined ? [] : [condition(DISK_CONDITION, false, disk.reason, disk.message)]),
    ...resizeConditions(record, view.pendingResize),
    ...userDataConditions(view.runtime),
    ...warmStartConditions(view.runtime.record),
    ...snapshotConditions(view.runtime.record),
    ...layerConditions(view.runtime),
  ];
  return {
    ...frame(pod, podPhase, host.address, now),
    ...(record.failure !== undefined && phase === 'Failed'
      ? { reason: record.failure.reason, message: truncateStart(record.failure.message) }
      : {}),
    podIP: address,
    podIPs: [{ ip: address }],
    conditions: stamp(pod, conditions, now),
    containerStatuses: pod.spec.containers.map((container) => ({
      ...emptyContainer(container),
      ...resourceStatus(container, record),
      ready,
      started: phase === 'Running',
      restartCount: record.restarts,
      imageID: record.base?.digest ?? '',
      ...(record.startedAt === undefined ? {} : { containerID: `berth://${record.uid}` }),
      state:
        container.name === MACHINE_CONTAINER || pod.spec.containers.length === 1 ? state : waiting('Unused'),
    })),
  };
}

/** Returns whether the machine is as wanted and no operation is under way. */
function isReached({ runtime, step }: MachineView): boolean {
  return step.kind === 'reached' && runtime.operation === undefined;
}

export function phaseOf(view: MachineView): MachinePhase {
  const { runtime, wanted } = view;
  const { record, operation } = runtime;
  if (wanted.deletion !== undefined) {
    return isReached(view) ? 'Failed' : 'Terminating';
  }
  if (record.failure !== undefined) {
    return record.released ? 'Failed' : 'Stopping';
  }
  const phase = operation?.phase ?? restingPhase(view);
  const isOnTheWay = phase === 'Pulling' || phase === 'Running';
  return isOnTheWay && isBooting(record) ? 'Starting' : phase;
}

/**
 * Returns whether the machine is an emulator whose Android has not booted. Such an emulator is in the phase Starting, because a running
 * process alone does not make it usable.
 */
function isBooting({ emulator, booted }: Readonly<MachineRecord>): boolean {
  return emulator !== undefined && booted !== true;
}

function restingPhase({ runtime, step }: MachineView): MachinePhase {
  if (runtime.state.kind === 'running') {
    return 'Running';
  }
  if (runtime.state.kind === 'suspended') {
    return 'Suspended';
  }
  if (step.kind === 'reached' || step.kind === 'snapshot' || step.kind === 'dropSnapshots') {
    return 'Stopped';
  }
  return step.kind === 'create' ? 'Pulling' : 'Starting';
}

function diskTrouble({ runtime: { state }, step }: MachineView): DiskTrouble | undefined {
  if (state.kind === 'running' && state.paused) {
    return { reason: HOST_DISK_FULL, message: PAUSED_MESSAGE };
  }
  return step.kind === 'wait' && step.noRoomToSuspend !== undefined
    ? { reason: NO_ROOM_TO_SUSPEND, message: `The machine is not suspended: ${step.noRoomToSuspend}` }
    : undefined;
}

/**
 * Returns the message that explains the machine's phase to users: why the last step failed, why the guest is not ready, or how the machine
 * last ended.
 */
function messageOf(
  { record, trouble, state, readiness }: Readonly<Runtime>,
  phase: MachinePhase,
): string | undefined {
  if (trouble !== undefined) {
    return trouble.message;
  }
  if (phase === 'Starting' && state.kind === 'running') {
    return readiness?.message;
  }
  const { end } = record;
  if (end === undefined || phase === 'Running') {
    return undefined;
  }
  // For `Crashed` and `HostLost`, the condition's reason shows only the phase. Therefore the message begins with one of these words.
  return end.how === 'GuestShutdown' ? end.message : `${end.how}: ${end.message}`;
}

function readinessOf(
  { runtime }: MachineView,
  phase: MachinePhase,
  disk: DiskTrouble | undefined,
): {
  ready: boolean;
  /** Reason why the machine is not ready. */
  reason: Reason | undefined;
  message: string | undefined;
} {
  if (phase !== 'Running') {
    return { ready: false, reason: phase, message: messageOf(runtime, phase) };
  }
  if (disk?.reason === HOST_DISK_FULL) {
    return { ready: false, ...disk };
  }
  const { readiness = { ready: false, message: 'The guest has not been checked yet' } } = runtime;
  return { ...readiness, reason: readiness.ready ? undefined : 'GuestNotReady' };
}

function machineCondition(
  view: MachineView,
  phase: MachinePhase,
  forwardAddress: string,
): SaidCondition<SaidReason> {
  const isOwnEnd = phase === 'Stopped' && view.runtime.record.end?.how === 'GuestShutdown';
  const reason = isOwnEnd ? 'GuestShutdown' : phase;
  const { runtime, wanted, accelerator } = view;
  const report = reportOf(runtime, {
    accelerator,
    forwardAddress,
    desiredHash: isReached(view) ? wanted.desiredHash : undefined,
    message: messageOf(runtime, phase),
  });
  return condition(MACHINE_CONDITION, phase === 'Running', reason, JSON.stringify(report));
}

/**
 * Returns a list with the Pod's network condition. Until the network has been checked, the list contains the Pod's present condition, if
 * there is one.
 */
function networkCondition(pod: Pod, { runtime: { network } }: MachineView): SaidCondition<SaidReason>[] {
  if (network === undefined) {
    const said = pod.status?.conditions?.find(({ type }) => type === NETWORK_CONDITION);
    return said === undefined
      ? []
      : [
          condition(
            NETWORK_CONDITION,
            said.status === 'True',
            saidReason(said.reason, 'Faulty'),
            said.message,
          ),
        ];
  }
  return [
    condition(NETWORK_CONDITION, network.healthy, network.healthy ? 'Healthy' : 'Faulty', network.message),
  ];
}

function podPhaseOf(
  pod: Pod,
  record: Readonly<MachineRecord>,
  phase: MachinePhase,
): NonNullable<PodStatus['phase']> {
  if (phase === 'Failed') {
    return 'Failed';
  }
  const isOff = phase === 'Stopped' || phase === 'Suspended';
  const hasRun = record.emulator === undefined ? record.everRan : record.booted === true;
  return hasRun || isOff || pod.status?.phase === 'Running' ? 'Running' : 'Pending';
}

function containerState(
  { runtime }: MachineView,
  phase: MachinePhase,
  podPhase: PodStatus['phase'],
): ContainerState {
  const { record, operation } = runtime;
  if (phase === 'Failed') {
    return { terminated: terminated(record) };
  }
  if (WITH_PROCESS.has(phase) && podPhase === 'Running' && record.startedAt !== undefined) {
    return { running: { startedAt: record.startedAt } };
  }
  const reason = causeOfWait(runtime, phase, podPhase) ?? phase;
  return waiting(reason, messageOf(runtime, phase) ?? percent(operation?.progressPercent));
}

/**
 * Returns the reason why a machine does not start yet. If the result is undefined, the status of the Pod's container shows the phase as the
 * reason.
 */
function causeOfWait(
  { record, trouble }: Readonly<Runtime>,
  phase: MachinePhase,
  podPhase: PodStatus['phase'],
): Reason | undefined {
  const isNewEmulator = record.emulator !== undefined && podPhase === 'Pending';
  return isNewEmulator ? trouble?.reason : obstacle(trouble?.reason, phase, podPhase);
}

/**
 * Returns the final state of the machine's container. If the machine has not failed, it ended because its Pod was deleted. Even in this
 * case, the exit code is not 0, because a Job would treat 0 as success.
 */
function terminated(record: Readonly<MachineRecord>): NonNullable<ContainerState['terminated']> {
  const { failure, killed } = record;
  const ended: MachineFailure = failure ?? {
    reason: 'Terminated',
    message: 'The machine was stopped because its Pod was deleted',
    exitCode: killed ? KILLED_EXIT_CODE : STOPPED_EXIT_CODE,
    graceMilliseconds: 0,
  };
  return {
    exitCode: ended.exitCode,
    reason: ended.reason,
    message: truncateStart(ended.message),
    ...(record.startedAt !== undefined && { startedAt: record.startedAt }),
    ...(record.finishedAt !== undefined && { finishedAt: record.finishedAt }),
  };
}

function percent(progress: number | undefined): string | undefined {
  return progress === undefined ? undefined : `${progress} % of the work is done`;
}

interface ReportFacts extends Pick<MachineReport, 'message'> {
  accelerator: string | undefined;
  /** Hash of the wanted state that the machine fulfils. Undefined while the machine does not fulfil its wanted state. */
  desiredHash: string | undefined;
  /** Address of this host at which others reach the host ports that lead to machines. */
  forwardAddress: string;
}

/**
 * Returns the report. The function shortens the message so that the report fits into a condition. If the report itself were cut, the
 * operator could not parse it.
 */
export function reportOf(runtime: Readonly<Runtime>, { message, ...facts }: ReportFacts): MachineReport {
  const report = factsOf(runtime, facts);
  const room = MESSAGE_LENGTH - MESSAGE_KEY_LENGTH - JSON.stringify(report).length;
  const length = Math.max(2, Math.min(REPORT_MESSAGE_LENGTH, Math.floor(room / LONGEST_ESCAPE)));
  return { ...report, ...defined('message', message && truncateStart(message, length)) };
}

function factsOf(
  runtime: Readonly<Runtime>,
  { accelerator, desiredHash, forwardAddress }: ReportFacts,
): MachineReport {
  const { record, operation, guest } = runtime;
  return {
    ...defined('desiredHash', desiredHash),
    ...defined('restartedAt', record.restartedAt),
    ...defined('revertedAt', record.revertedAt),
    ...defined('stops', record.emulator === undefined ? (record.stops ?? 0) : undefined),
    ...record.startedWith,
    ...defined('progressPercent', operation?.progressPercent),
    ...defined('bytesPerSecond', operation?.bytesPerSecond),
    ...defined('accelerator', accelerator),
    ...defined('imageDigest', record.base?.digest),
    ...defined('guestAgentConnected', guest?.connected),
    ...defined('guest', guest?.facts),
    ...defined('endpoints', chosenPorts(record)),
    ...runningReport(runtime),
    ...defined('adb', adbOf(runtime, forwardAddress)),
  };
}

/**
 * Returns the address and port for ADB of a running emulator; undefined for VMs. `forwardAddress` is the host's address for connections to
 * host ports that lead to machines.
 */
function adbOf({ record, state, address }: Readonly<Runtime>, forwardAddress: string): MachineReport['adb'] {
  if (record.emulator === undefined || state.kind !== 'running') {
    return undefined;
  }
  if (record.emulator.exposure === 'PairedVM') {
    return address === undefined ? undefined : { address, port: ADB_PORT };
  }
  const port = record.automaticPorts.find(({ guestPort }) => guestPort === ADB_PORT)?.hostPort;
  return port === undefined ? undefined : { address: forwardAddress, port };
}

function chosenPorts(record: Readonly<MachineRecord>): number[] | undefined {
  const { automaticPorts } = record;
  const hasPorts = automaticPorts.length > 0 && holdsPorts(record);
  return hasPorts ? automaticPorts.map(({ hostPort }) => hostPort) : undefined;
}

function defined<K extends string, V>(key: K, value: V | undefined): Partial<Record<K, V>> {
  return value === undefined ? {} : ({ [key]: value } as Record<K, V>);
}

/** Returns whether this reason of a failed step means that the user data of a machine could not be fetched. */
function isOfUserData(reason: Reason | undefined): boolean {
  return USER_DATA_REASONS.has(reason);
}

function hasUserData({ userData, userDataSecretRef }: Machine): boolean {
  return userData !== undefined || userDataSecretRef !== undefined;
}

/**
 * Returns a list with the condition `berth.dev/UserData`. The list is empty if the machine has no user data. The list is also empty before
 * the first start of the machine, unless the user data could not be fetched.
 */
export function userDataConditions({
  record,
  trouble,
}: Pick<Runtime, 'record' | 'trouble'>): SaidCondition<Reason>[] {
  const { machine, seedNotice, startedWith } = record;
  if (machine === undefined || !hasUserData(machine)) {
    return [];
  }
  // The host reads the user data after it has made the disk. Before that, it reads other Secrets.
  if (record.created && trouble !== undefined && isOfUserData(trouble.reason)) {
    return [condition(USER_DATA_CONDITION, false, trouble.reason, trouble.message)];
  }
  if (startedWith === undefined) {
    return [];
  }
  const reason = seedNotice === undefined ? 'Delivered' : 'DeliveredWithNotice';
  return [condition(USER_DATA_CONDITION, true, reason, seedNotice)];
}

/** Returns a list with the condition `berth.dev/WarmStart`. The list is empty before the first start, or if the image has no memory. */
function warmStartConditions({ warmStart }: Readonly<MachineRecord>): SaidCondition<Reason>[] {
  if (warmStart === undefined) {
    return [];
  }
  const { reason, message } = warmStart;
  return [condition(WARM_START_CONDITION, reason === 'Renewed', reason, message)];
}

/**
 * Returns a list with the condition `berth.dev/Snapshots`. The list is empty before the first snapshot. A machine that has lost its disk has
 * lost its snapshots, too.
 */
function snapshotConditions({ snapshots, failure: end }: Readonly<MachineRecord>): SaidCondition<Reason>[] {
  if (snapshots === undefined) {
    return [];
  }
  const isLost = end?.reason === 'DiskLost';
  const reports: SnapshotReport[] = snapshots.map(({ uid, taken, failure }) => ({
    uid,
    ...taken,
    ...(failure && {
      failure: { ...failure, message: escapeFree(failure.message).slice(0, SNAPSHOT_MESSAGE_LENGTH) },
    }),
  }));
  return [condition(SNAPSHOTS_CONDITION, true, 'Reported', JSON.stringify(isLost ? [] : reports))];
}

/** Returns a list with the condition `berth.dev/Layers`. The list is empty unless the host has given up a merge of layers. */
function layerConditions(runtime: Readonly<Runtime>): SaidCondition<Reason>[] {
  const message = mergeFailure(runtime);
  return message === undefined ? [] : [condition(LAYERS_CONDITION, false, 'LayersNotMerged', message)];
}

/**
 * Returns the reason why the image or the user data of a machine cannot be fetched yet. Returns undefined if there is no such reason. A
 * reason about user data is returned only while the Pod is Pending. If the container of a running Pod showed such a reason, an operator of
 * an earlier release would take this as a sign that the machine has run.
 */
function obstacle(
  reason: Reason | undefined,
  phase: MachinePhase,
  podPhase: PodStatus['phase'],
): Reason | undefined {
  const isUserData = podPhase === 'Pending' && isOfUserData(reason);
  return phase === 'Pulling' || isUserData ? reason : undefined;
}
