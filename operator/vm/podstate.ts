/** The state of a VM's machine as its Pod tells it, and the Pod as the operator's cache keeps it. Pure. */
import {
  type Machine,
  type MachineReport,
  machineReportSchema,
  machineSchema,
  parseDocument,
} from '../../api/v1alpha1/machine.ts';
import {
  DESIRED_ANNOTATION,
  MACHINE_ANNOTATION,
  MACHINE_CONDITION,
  MACHINE_CONTAINER,
} from '../../api/v1alpha1/names.ts';
import type { ContainerState, ContainerStatus, Pod, PodCondition } from '../../kube/core.ts';

/**
 * The Pod as the operator's cache keeps it: a bound Pod without the fields that only the scheduler reads, or that its host repeats.
 * They are two fifths of its memory. The operator reads none of them.
 */
export function trimPod(pod: Pod): Pod {
  if (pod.spec.nodeName === undefined) {
    return pod;
  }
  const { affinity: _affinity, tolerations: _tolerations, volumes: _volumes, ...spec } = pod.spec;
  const containerStatuses = pod.status?.containerStatuses?.map(
    ({ allocatedResources: _allocated, resources: _resources, ...status }) => status,
  );
  return {
    ...pod,
    spec,
    status: { ...pod.status, ...(containerStatuses === undefined ? {} : { containerStatuses }) },
  };
}

/** Index of Pods by the host ports they reserve, `8822/TCP`. */
export const PODS_BY_PORT = 'port';
/** Index of Pods by the Node they are bound to. */
export const PODS_BY_NODE = 'node';

export function podPorts(pod: Pod): string[] {
  const ports = pod.spec.containers[0]?.ports ?? [];
  return ports
    .filter(({ hostPort }) => hostPort !== undefined)
    .map(({ hostPort, protocol }) => `${hostPort}/${protocol ?? 'TCP'}`);
}

export function hasEnded(pod: Pod): boolean {
  return pod.status?.phase === 'Failed' || pod.status?.phase === 'Succeeded';
}

/** The waiting reasons of a machine that was made and not started. */
const NOT_STARTED: ReadonlySet<string> = new Set(['Stopped', 'Starting']);

/**
 * Whether a machine of this Pod ever ran. A machine that was made and not started, because it was wanted off, waits without the id
 * that agents give at the first start. A terminated machine that never ran carries no `startedAt`.
 */
export function hasRun(pod: Pod): boolean {
  if (pod.status?.phase === 'Running') {
    return machineContainer(pod)?.containerID !== undefined || !NOT_STARTED.has(waitingReason(pod));
  }
  const startedAt = terminated(pod)?.startedAt;
  return startedAt !== undefined && startedAt !== null;
}

function waitingReason(pod: Pod): string {
  return containerState(pod)?.waiting?.reason ?? '';
}

export function containerState(pod: Pod): ContainerState | undefined {
  return machineContainer(pod)?.state;
}

function machineContainer(pod: Pod): ContainerStatus | undefined {
  return pod.status?.containerStatuses?.find(({ name }) => name === MACHINE_CONTAINER);
}

export function terminated(pod: Pod): ContainerState['terminated'] {
  return containerState(pod)?.terminated;
}

/** One look reads the document several times, and a Pod of the cache never changes. */
const machines = new WeakMap<Pod, { readonly machine: Machine | undefined }>();

/** The machine document of a Pod; undefined when it cannot be read (another version wrote it). */
export function machineOf(pod: Pod): Machine | undefined {
  const known = machines.get(pod);
  if (known !== undefined) {
    return known.machine;
  }
  const machine = parseMachine(pod);
  machines.set(pod, { machine });
  return machine;
}

function parseMachine(pod: Pod): Machine | undefined {
  const result = machineSchema.safeParse(parseDocument(pod.metadata.annotations?.[MACHINE_ANNOTATION]));
  return result.success ? result.data : undefined;
}

export function podAttempt(pod: Pod): number {
  return machineOf(pod)?.attempt ?? 1;
}

/** The container's waiting state; empty while it is not waiting. */
export function waitingState(pod: Pod | undefined): NonNullable<ContainerState['waiting']> {
  return (pod && containerState(pod)?.waiting) ?? {};
}

export function machineCondition(pod: Pod): PodCondition | undefined {
  return podCondition(pod, MACHINE_CONDITION);
}

export function podCondition(pod: Pod | undefined, type: string): PodCondition | undefined {
  return pod?.status?.conditions?.find((condition) => condition.type === type);
}

/** The agent's report of the machine; empty when there is none (a simulated host) or it cannot be read. */
export function machineReport(pod: Pod | undefined): MachineReport {
  const result = machineReportSchema.safeParse(parseDocument(podCondition(pod, MACHINE_CONDITION)?.message));
  return result.success ? result.data : {};
}

/** The machine as last asked for, from the Pod's annotation. */
export function desiredText(pod: Pod): string | undefined {
  return pod.metadata.annotations?.[DESIRED_ANNOTATION];
}
