/** The Pod status that says what a machine is: a pure function, so that nothing is written when nothing changed. */
import type { Desired, MachineReport } from '../../api/v1alpha1/machine.ts';
import { MACHINE_CONDITION, MACHINE_CONTAINER, NETWORK_CONDITION } from '../../api/v1alpha1/names.ts';
import type {
  Container,
  ContainerState,
  ContainerStatus,
  Pod,
  PodCondition,
  PodStatus,
} from '../../kube/core.ts';
import type { MachineFailure, MachineRecord } from './record.ts';

/** What people read in the STATUS column and in the VM's phase. */
export type MachinePhase =
  | 'Pulling'
  | 'Cloning'
  | 'Starting'
  | 'Running'
  | 'Stopping'
  | 'Stopped'
  | 'Suspending'
  | 'Suspended'
  | 'Resuming'
  | 'Failed'
  | 'Terminating';

export interface MachineView {
  phase: MachinePhase;
  /** For people, beside the phase. */
  message: string | undefined;
  progressPercent: number | undefined;
  record: Readonly<MachineRecord>;
  desired: Desired | undefined;
  /** Of the fulfilled desired; undefined while on the way. */
  desiredHash: string | undefined;
  accelerator: string | undefined;
  /** Stopped by the guest itself. */
  guestShutdown: boolean;
  /** Whether the guest answers as the VM's readiness asks; the message says what is missing. */
  readiness: { ready: boolean; message: string };
  /** Undefined while the network has not been looked at. */
  network: { healthy: boolean; message: string } | undefined;
  guestAddress: string | undefined;
}

/** A kubelet keeps as much of a termination message. */
const MESSAGE_LENGTH = 4096;

/** 128 + SIGTERM and 128 + SIGKILL, as a kubelet reports processes that it ended. */
export const STOPPED_EXIT_CODE = 143;
const KILLED_EXIT_CODE = 137;

/** The end of a long text: the last words matter. */
export function lastWords(text: string): string {
  return text.length <= MESSAGE_LENGTH ? text : `…${text.slice(1 - MESSAGE_LENGTH)}`;
}

/** Phases with a process in them: the container is shown running. */
const WITH_PROCESS: ReadonlySet<MachinePhase> = new Set([
  'Running',
  'Stopping',
  'Suspending',
  'Resuming',
  'Terminating',
]);

export function machineStatus(pod: Pod, view: MachineView, hostAddress: string, now: string): PodStatus {
  const running = view.phase === 'Running';
  const ready = running && view.readiness.ready;
  const state = containerState(view);
  const phase = podPhase(pod, view);
  const notReady = running ? 'GuestNotReady' : view.phase;
  const conditions: PodCondition[] = [
    condition('PodReadyToStartContainers', view.record.created),
    condition('Initialized', true),
    condition('Ready', ready, ready ? undefined : notReady, running ? view.readiness.message : view.message),
    condition('ContainersReady', ready, ready ? undefined : notReady),
    machineCondition(view),
    ...networkCondition(pod, view),
  ];
  const address = view.guestAddress ?? hostAddress;
  return {
    ...frame(pod, phase, hostAddress, now),
    ...(view.record.failure !== undefined && phase === 'Failed'
      ? { reason: view.record.failure.reason, message: lastWords(view.record.failure.message) }
      : {}),
    podIP: address,
    podIPs: [{ ip: address }],
    conditions: stamp(pod, conditions, now),
    containerStatuses: pod.spec.containers.map((container) => ({
      ...emptyContainer(container),
      ready,
      started: running,
      restartCount: view.record.restarts,
      imageID: view.record.base?.digest ?? '',
      ...(view.record.startedAt === undefined ? {} : { containerID: `berth://${view.record.uid}` }),
      state:
        container.name === MACHINE_CONTAINER || pod.spec.containers.length === 1 ? state : waiting('Unused'),
    })),
  };
}

/** A Pod that gets no machine here: it stays Pending, for a ReplicaSet would replace a failed one within milliseconds. */
export function parkedStatus(
  pod: Pod,
  why: { reason: string; message: string },
  hostAddress: string,
  now: string,
): PodStatus {
  return {
    ...frame(pod, 'Pending', hostAddress, now),
    conditions: stamp(
      pod,
      [
        condition('Initialized', false, why.reason, why.message),
        condition('Ready', false, why.reason, why.message),
        condition('ContainersReady', false, why.reason),
      ],
      now,
    ),
    containerStatuses: pod.spec.containers.map((container) => ({
      ...emptyContainer(container),
      state: waiting(why.reason, why.message),
    })),
  };
}

/** A Pod that ends without ever having had a machine on this host, or none that this agent remembers. */
export function refusedStatus(
  pod: Pod,
  why: { reason: string; message: string; exitCode: number },
  hostAddress: string,
  now: string,
): PodStatus {
  const terminated = {
    exitCode: why.exitCode,
    reason: why.reason,
    message: lastWords(why.message),
    finishedAt: now,
  };
  return {
    ...frame(pod, 'Failed', hostAddress, now),
    reason: why.reason,
    message: lastWords(why.message),
    conditions: stamp(
      pod,
      [condition('Ready', false, 'PodFailed'), condition('ContainersReady', false, 'PodFailed')],
      now,
    ),
    containerStatuses: pod.spec.containers.map((container) => ({
      ...emptyContainer(container),
      state: { terminated },
    })),
  };
}

function machineCondition(view: MachineView): PodCondition {
  const reason = view.phase === 'Stopped' && view.guestShutdown ? 'GuestShutdown' : view.phase;
  return condition(MACHINE_CONDITION, view.phase === 'Running', reason, JSON.stringify(reportOf(view)));
}

/** Until the network has been looked at, what was last said stays. */
function networkCondition(pod: Pod, { network }: MachineView): PodCondition[] {
  if (network === undefined) {
    const said = pod.status?.conditions?.find(({ type }) => type === NETWORK_CONDITION);
    return said === undefined
      ? []
      : [condition(NETWORK_CONDITION, said.status === 'True', said.reason, said.message)];
  }
  return [
    condition(NETWORK_CONDITION, network.healthy, network.healthy ? 'Healthy' : 'Faulty', network.message),
  ];
}

function frame(
  pod: Pod,
  phase: NonNullable<PodStatus['phase']>,
  hostAddress: string,
  now: string,
): PodStatus {
  return {
    ...(pod.metadata.generation === undefined ? {} : { observedGeneration: pod.metadata.generation }),
    phase,
    hostIP: hostAddress,
    hostIPs: [{ ip: hostAddress }],
    startTime: pod.status?.startTime ?? now,
  };
}

function podPhase(pod: Pod, view: MachineView): NonNullable<PodStatus['phase']> {
  if (view.phase === 'Failed') {
    return 'Failed';
  }
  const settledOff = view.phase === 'Stopped' || view.phase === 'Suspended';
  const started = view.record.everRan || settledOff || pod.status?.phase === 'Running';
  return started ? 'Running' : 'Pending';
}

function containerState(view: MachineView): ContainerState {
  const { record, phase } = view;
  if (phase === 'Failed') {
    return { terminated: terminated(record) };
  }
  if (WITH_PROCESS.has(phase) && record.startedAt !== undefined) {
    return { running: { startedAt: record.startedAt } };
  }
  return waiting(phase, view.message ?? percent(view.progressPercent));
}

/** Without a failure of its own, the machine was ended with its Pod: never an exit code of 0, which a Job would count as done. */
function terminated(record: Readonly<MachineRecord>): NonNullable<ContainerState['terminated']> {
  const { failure, killed } = record;
  const ended: MachineFailure = failure ?? {
    reason: 'Terminated',
    message: 'the machine was stopped because its Pod was deleted',
    exitCode: killed ? KILLED_EXIT_CODE : STOPPED_EXIT_CODE,
    graceMilliseconds: 0,
  };
  return {
    exitCode: ended.exitCode,
    reason: ended.reason,
    message: lastWords(ended.message),
    ...defined('startedAt', record.startedAt),
    ...defined('finishedAt', record.finishedAt),
  };
}

function percent(progress: number | undefined): string | undefined {
  return progress === undefined ? undefined : `${progress}%`;
}

function waiting(reason: string, message?: string): ContainerState {
  return { waiting: { reason, ...(message === undefined ? {} : { message }) } };
}

function emptyContainer(container: Container): ContainerStatus {
  return {
    name: container.name,
    image: container.image,
    imageID: '',
    ready: false,
    started: false,
    restartCount: 0,
  };
}

function reportOf(view: MachineView): MachineReport {
  const { record, message } = view;
  return {
    ...defined('desiredHash', view.desiredHash),
    ...defined('restartedAt', record.restartedAt),
    ...defined('revertedAt', record.revertedAt),
    ...record.startedWith,
    ...defined('progressPercent', view.progressPercent),
    ...defined('accelerator', view.accelerator),
    ...defined('imageDigest', record.base?.digest),
    ...defined('message', message),
  };
}

function defined<K extends string, V>(key: K, value: V | undefined): Partial<Record<K, V>> {
  return value === undefined ? {} : ({ [key]: value } as Record<K, V>);
}

function condition(type: string, ok: boolean, reason?: string, message?: string): PodCondition {
  return {
    type,
    status: ok ? 'True' : 'False',
    ...(reason === undefined ? {} : { reason }),
    ...(message === undefined || message === '' ? {} : { message: lastWords(message) }),
  };
}

/** A condition keeps its transition time while its status stays. */
function stamp(pod: Pod, conditions: PodCondition[], now: string): PodCondition[] {
  return conditions.map((condition) => {
    const before = pod.status?.conditions?.find(({ type }) => type === condition.type);
    const kept = before?.status === condition.status ? before.lastTransitionTime : undefined;
    return {
      ...condition,
      lastTransitionTime: kept ?? now,
      ...(pod.metadata.generation === undefined ? {} : { observedGeneration: pod.metadata.generation }),
    };
  });
}
