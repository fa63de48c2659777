/** Reads the state of a machine from its Pod, and trims Pods for the operator's cache. All functions are pure. */
import {
  type Desired,
  desiredSchema,
  type Machine,
  type MachineReport,
  machineReportSchema,
  machineSchema,
} from '../../api/v1alpha1/machine.ts';
import {
  DESIRED_ANNOTATION,
  MACHINE_ANNOTATION,
  MACHINE_CONDITION,
  MACHINE_CONTAINER,
} from '../../api/v1alpha1/names.ts';
import { keepFields } from '../../kube/objects.ts';
import type { Container, ContainerState, ContainerStatus, Pod, PodCondition } from '../../kube/core.ts';
import { type ConditionDraft, conditionIn } from '../objects/conditions.ts';
import { Documents } from '../objects/documents.ts';
import { timestamp } from '../../base/time.ts';
import { type Reason, type SaidReason, saidReason } from '../../api/v1alpha1/reasons.ts';
import type { PodObserved } from './observe.ts';

/**
 * Largest status of a Pod that the cache keeps, in characters of JSON. Messages of agents have at most 4 KiB, so only a hostile host writes
 * more. The Pods of ended VMs and tasks stay for hours, and their statuses could fill the memory.
 */
const STATUS_LENGTH = 128 * 1024;

/**
 * Returns the Pod as the operator's cache keeps it. A bound Pod loses fields that only the scheduler reads, and fields of the status that
 * repeat the spec. The operator does not need these fields, which take two fifths of the memory for a Pod. Of a status that is too long,
 * only the phase is kept.
 */
export function trimPod(pod: Pod): Pod {
  if (pod.spec.nodeName === undefined) {
    return pod;
  }
  const { affinity: _affinity, tolerations: _tolerations, volumes: _volumes, ...spec } = pod.spec;
  if (JSON.stringify(pod.status ?? {}).length > STATUS_LENGTH) {
    return { ...pod, spec, status: keepFields(pod.status ?? {}, ['phase']) };
  }
  const containerStatuses = pod.status?.containerStatuses?.map(
    ({ allocatedResources: _allocated, resources: _resources, ...status }) => status,
  );
  return {
    ...pod,
    spec,
    status: { ...pod.status, ...(containerStatuses === undefined ? {} : { containerStatuses }) },
  };
}

/** Index of Pods by the host ports that they reserve, for example `8822/TCP`. */
export const PODS_BY_PORT = 'port';
/** Returns the container that stands for the machine. An admission webhook can insert other containers before it. */
export function machineContainer(pod: Pod): Container | undefined {
  return pod.spec.containers.find(({ name }) => name === MACHINE_CONTAINER);
}

export function podPorts(pod: Pod): string[] {
  const ports = machineContainer(pod)?.ports ?? [];
  return ports
    .filter(({ hostPort }) => hostPort !== undefined)
    .map(({ hostPort, protocol }) => `${hostPort}/${protocol ?? 'TCP'}`);
}

export function hasEnded(pod: Pod): boolean {
  const hasEndPhase = pod.status?.phase === 'Failed' || pod.status?.phase === 'Succeeded';
  return hasEndPhase && !isCollected(pod);
}

/**
 * Returns true if Kubernetes' garbage collector set the phase of the Pod, because the Pod's Node is missing. The collector knows nothing
 * about the machine, which can run on.
 */
function isCollected(pod: Pod): boolean {
  const disruption = conditionIn(pod.status, 'DisruptionTarget');
  return disruption?.reason === 'DeletionByPodGC' && terminated(pod) === undefined;
}

/**
 * Returns true if a machine of this Pod ever ran. The agent sets the container's id at the first start. Therefore a created machine that
 * never started has a waiting container without an id, also while it is started or removed. If a machine ended and never ran, its
 * terminated container has no `startedAt`.
 */
export function hasRun(pod: Pod): boolean {
  if (pod.status?.phase === 'Running') {
    return containerStatus(pod)?.containerID !== undefined || containerState(pod)?.waiting === undefined;
  }
  if (isCollected(pod)) {
    return hasStarted(pod);
  }
  const startedAt = terminated(pod)?.startedAt;
  return startedAt !== undefined && startedAt !== null;
}

/** Returns true if the container of the machine runs, or has the id that it got at its first start. */
function hasStarted(pod: Pod): boolean {
  const { containerID, state } = containerStatus(pod) ?? {};
  return containerID !== undefined || state?.running !== undefined;
}

export function containerState(pod: Pod): ContainerState | undefined {
  return containerStatus(pod)?.state;
}

function containerStatus(pod: Pod): ContainerStatus | undefined {
  return pod.status?.containerStatuses?.find(({ name }) => name === MACHINE_CONTAINER);
}

export function terminated(pod: Pod): ContainerState['terminated'] {
  return containerState(pod)?.terminated;
}

const machines = new Documents(machineSchema);
const attempts = new Documents(machineSchema.pick({ attempt: true }));
const desires = new Documents(desiredSchema);
const reports = new Documents(machineReportSchema);

/**
 * Returns the machine that a Pod's annotation describes. The result is undefined if the annotation cannot be read, for example because
 * another release wrote it.
 */
export function machineOf(pod: Pod): Machine | undefined {
  return machines.in(pod.metadata.annotations?.[MACHINE_ANNOTATION]);
}

/** Returns the number of the Pod's placement. A machine that another release described counts too, if its number can be read. */
export function podAttempt(pod: Pod): number {
  const { attempt = 1 } = machineOf(pod) ?? attempts.in(pod.metadata.annotations?.[MACHINE_ANNOTATION]) ?? {};
  return attempt;
}

/** Returns the state `waiting` of the machine's container. The result is empty if the container is in another state. */
export function waitingState(pod: Pod | undefined): NonNullable<ContainerState['waiting']> {
  return (pod && containerState(pod)?.waiting) ?? {};
}

/** Returns true if the machine of a VM is stopped or suspended. */
export function isMachineOff(pod: Pod): boolean {
  const { reason } = waitingState(pod);
  return reason === 'Stopped' || reason === 'Suspended';
}

export function machineCondition(pod: Pod): PodCondition | undefined {
  return podCondition(pod, MACHINE_CONDITION);
}

const STATUSES: ReadonlySet<string> = new Set(['True', 'False', 'Unknown']);

/**
 * Returns the Pod's condition of this type. The API server does not check the status that a host writes into a condition. If the host wrote
 * an invalid status, the result has the status Unknown.
 */
export function podCondition(pod: Pod | undefined, type: string): PodCondition | undefined {
  const condition = conditionIn(pod?.status, type);
  return condition === undefined || STATUSES.has(condition.status)
    ? condition
    : { ...condition, status: 'Unknown' };
}

/**
 * Returns the Ready condition of a VM or Emulator that runs. The condition has the status of the Pod's condition Ready. `otherwise` is the
 * message if the host reports no message.
 */
export function readyByPod(pod: Pod | undefined, otherwise: string): ConditionDraft {
  const type = 'Ready';
  const { status, message } = podCondition(pod, type) ?? { status: 'True' };
  return status === 'True'
    ? { type, status, reason: 'Running', message: message ?? '' }
    : { type, status, reason: 'NotReady', message: message ?? otherwise };
}

/**
 * Returns the agent's report of the machine. The result is empty if there is no report or if the report cannot be read. For example, a
 * simulated host does not report.
 */
export function machineReport(pod: Pod | undefined): MachineReport {
  return reports.in(podCondition(pod, MACHINE_CONDITION)?.message) ?? {};
}

/** Returns the text of the Pod's annotation that contains the desired state of the machine. */
export function desiredText(pod: Pod): string | undefined {
  return pod.metadata.annotations?.[DESIRED_ANNOTATION];
}

/** Returns the desired state of the machine in the Pod's annotation. The result is undefined if it cannot be read. */
export function desiredOf(pod: Pod): Desired | undefined {
  return desires.in(desiredText(pod));
}

/** Returns the reason and the last message of a Pod that has ended. */
export function endOf(pod: Pod): End {
  const { status = {} } = pod;
  const { reason = status.reason, message = status.message } = terminated(pod) ?? {};
  return { reason: saidReason(reason, 'MachineFailed'), message: message ?? 'The machine ended' };
}

/** How a machine ended, as the status of its object tells it. */
export interface End {
  readonly reason: SaidReason;
  readonly message: string;
}

/**
 * Returns the last part of an error message. It states the step that the host reported last, and the message that the host added to this
 * step. The result is empty if there is no step.
 */
export function lastReport(pod: Pod | undefined): string {
  const { reason, message = '' } = waitingState(pod);
  const step = message === '' ? reason : `${reason}: ${message}`;
  return step === undefined ? '' : `; the host last reported ${step}`;
}

/** Returns the time when the Pod was bound to its host, in RFC 3339. The result is undefined if the Pod contains no time at all. */
export function boundTime(pod: Pod): string | undefined {
  const scheduled = pod.status?.conditions?.find(
    ({ type, status }) => type === 'PodScheduled' && status === 'True',
  );
  return scheduled?.lastTransitionTime ?? pod.status?.startTime ?? pod.metadata.creationTimestamp;
}

/**
 * Returns the time when the machine of the Pod first ran, in RFC 3339. The result is undefined if the machine never ran. The clock of the
 * host can be wrong. Therefore the result is not before the time when the Pod was bound, and not in the future.
 */
export function firstRun({ pod, now }: Pick<PodObserved, 'pod' | 'now'>): string | undefined {
  if (pod === undefined || !hasRun(pod)) {
    return undefined;
  }
  const state = containerState(pod);
  const startedAt = state?.running?.startedAt ?? state?.terminated?.startedAt ?? timestamp(now);
  const bound = boundTime(pod) ?? startedAt;
  return timestamp(Math.min(now, Math.max(Date.parse(bound), Date.parse(startedAt))));
}

/** Reason of the failure when a deployment takes too long. The operator itself ends the Pod after this failure. */
export const TIMEOUT = 'DeployTimeout' satisfies Reason;
