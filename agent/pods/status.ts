/** The Pod status that says what a machine is: a pure function, so that nothing is written when nothing changed. */
import type { Desired, MachineReport } from '../../api/v1alpha1/machine.ts';
import {
  DISK_CONDITION,
  HOST_DISK_FULL,
  MACHINE_CONDITION,
  MACHINE_CONTAINER,
  NETWORK_CONDITION,
  type NO_ROOM_TO_SUSPEND,
} from '../../api/v1alpha1/names.ts';
import type { ContainerState, Pod, PodCondition, PodStatus } from '../../kube/core.ts';
import {
  condition,
  emptyContainer,
  frame,
  lastWords,
  STOPPED_EXIT_CODE,
  stamp,
  waiting,
} from '../../kube/podstatus.ts';
import type { MachineFailure, MachineRecord } from './machine.ts';
import { type PendingResize, resizeConditions, resourceStatus } from './resize.ts';

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
  /** Why the image is not here yet, while that is being tried again. */
  imageTrouble: string | undefined;
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
  /** How the host's disk is in the way of a machine that runs, while it is. */
  disk: { reason: typeof HOST_DISK_FULL | typeof NO_ROOM_TO_SUSPEND; message: string } | undefined;
  /** Undefined while the network has not been looked at. */
  network: { healthy: boolean; message: string } | undefined;
  guestAddress: string | undefined;
  /** Why the Pod's new size is not promised, while it is not. */
  pendingResize: PendingResize | undefined;
}

/** 128 + SIGKILL, as a kubelet reports processes that it ended. */
const KILLED_EXIT_CODE = 137;

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
  const { ready, reason: notReady, message } = readinessOf(view);
  const state = containerState(view);
  const phase = podPhase(pod, view);
  const conditions: PodCondition[] = [
    condition('PodReadyToStartContainers', view.record.created),
    condition('Initialized', true),
    condition('Ready', ready, notReady, message),
    condition('ContainersReady', ready, notReady),
    machineCondition(view),
    ...networkCondition(pod, view),
    ...diskCondition(view),
    ...resizeConditions(view.record, view.pendingResize),
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
      ...resourceStatus(container, view.record),
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

function readinessOf({ phase, disk, readiness, message }: MachineView): {
  ready: boolean;
  /** Why it is not. */
  reason: string | undefined;
  message: string | undefined;
} {
  if (phase !== 'Running') {
    return { ready: false, reason: phase, message };
  }
  if (disk?.reason === HOST_DISK_FULL) {
    return { ready: false, ...disk };
  }
  return { ...readiness, reason: readiness.ready ? undefined : 'GuestNotReady' };
}

/** Only while the disk is in the machine's way. */
function diskCondition({ disk }: MachineView): PodCondition[] {
  return disk === undefined ? [] : [condition(DISK_CONDITION, false, disk.reason, disk.message)];
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
  return waiting(view.imageTrouble ?? phase, view.message ?? percent(view.progressPercent));
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
