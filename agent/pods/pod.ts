/** Reads the wanted state of a Pod's machine or task from the operator's annotations and from the Pod's deadlines. */
import { createHash } from 'node:crypto';
import { EMULATOR_API_VERSION, emulatorMachineSchema } from '../../api/v1alpha1/emulatormachine.ts';
import {
  type Desired,
  desiredSchema,
  MACHINE_API_VERSION,
  type MachineReport,
  machineReportSchema,
  machineSchema,
  parseDocument,
  SHORTEST_GRACE_SECONDS,
} from '../../api/v1alpha1/machine.ts';
import {
  DESIRED_ANNOTATION,
  MACHINE_ANNOTATION,
  MACHINE_CONDITION,
  MACHINE_CONTAINER,
  MACOS_GUEST_RESOURCE,
  SLOT_RESOURCE,
  TASK_ANNOTATION,
} from '../../api/v1alpha1/names.ts';
import { parseQuantity } from '../../api/v1alpha1/quantity.ts';
import type { Reason } from '../../api/v1alpha1/reasons.ts';
import { type Task, TASK_API_VERSION, taskSchema } from '../../api/v1alpha1/task.ts';
import { LONGEST_TIMER_MILLISECONDS } from '../../base/time.ts';
import type { Container, Pod } from '../../kube/core.ts';
import { isForced } from '../../kube/objects.ts';
import type { MachineClaim, MachineDocument, MachineRecord, Runtime, WantedMachine } from './machine.ts';

export type PodRole =
  /** A Pod without Berth's annotations. Such a Pod is on this Node because it tolerates all taints or sets `spec.nodeName`. */
  | { kind: 'foreign' }
  /** A Pod whose document has a version that this agent does not know, because the operator is newer than the agent. */
  | { kind: 'tooNew'; version: string }
  | { kind: 'invalid'; message: string }
  | { kind: 'task'; task: Task }
  | ({ kind: 'machine'; desired: Desired; desiredHash: string } & MachineDocument);

/**
 * Number of characters in the hash of the annotation `berth.dev/desired`. 16 characters suffice to tell apart all values that the
 * annotation of one Pod ever has.
 */
const HASH_LENGTH = 16;

/** Default of Kubernetes for `terminationGracePeriodSeconds`. */
const GRACE_SECONDS = 30;
/**
 * Longest grace period that the agent allows, in seconds (24.8 days). Kubernetes allows longer periods. But the drivers wait with a single
 * timer, which cannot wait longer than this.
 */
const LONGEST_GRACE_SECONDS = Math.floor(LONGEST_TIMER_MILLISECONDS / 1000);

/**
 * Returns the first 16 hexadecimal characters of the SHA-256 of a value of the annotation `berth.dev/desired`. The agent reports this hash
 * in the Pod's status when the machine is as the annotation demands.
 */
export function hashDesired(text: string): string {
  return createHash('sha256').update(text).digest('hex').slice(0, HASH_LENGTH);
}

export function roleOf(pod: Pod): PodRole {
  const annotations = pod.metadata.annotations ?? {};
  const { [MACHINE_ANNOTATION]: machineText, [TASK_ANNOTATION]: taskText } = annotations;
  if (machineText !== undefined) {
    return machineRole(machineText, annotations[DESIRED_ANNOTATION] ?? '{}');
  }
  return taskText === undefined ? { kind: 'foreign' } : taskRole(taskText);
}

/**
 * Returns the last report in a Pod's status. The agent might have written this report before its restart. The result is empty if there is
 * no readable report.
 */
export function lastReport(pod: Readonly<Pod>): MachineReport {
  const said = pod.status?.conditions?.find(({ type }) => type === MACHINE_CONDITION);
  return machineReportSchema.safeParse(parseDocument(said?.message)).data ?? {};
}

function taskRole(text: string): PodRole {
  const document = parseDocument(text);
  const version = versionOf(document);
  if (version !== TASK_API_VERSION) {
    return { kind: 'tooNew', version };
  }
  const task = taskSchema.safeParse(document);
  return task.success
    ? { kind: 'task', task: task.data }
    : {
        kind: 'invalid',
        message: `The annotation ${TASK_ANNOTATION} is not valid: ${describe(task.error.issues)}`,
      };
}

function machineRole(machineText: string, desiredText: string): PodRole {
  const text = parseDocument(machineText);
  const version = versionOf(text);
  if (version !== MACHINE_API_VERSION && version !== EMULATOR_API_VERSION) {
    return { kind: 'tooNew', version };
  }
  const document = version === MACHINE_API_VERSION ? vmDocument(text) : emulatorDocument(text);
  if ('issues' in document) {
    return {
      kind: 'invalid',
      message: `The annotation ${MACHINE_ANNOTATION} is not valid: ${describe(document.issues)}`,
    };
  }
  const desired = desiredSchema.safeParse(parseDocument(desiredText));
  if (!desired.success) {
    return {
      kind: 'invalid',
      message: `The annotation ${DESIRED_ANNOTATION} is not valid: ${describe(desired.error.issues)}`,
    };
  }
  return {
    kind: 'machine',
    ...document,
    desired: desired.data,
    desiredHash: hashDesired(desiredText),
  };
}

type Issues = readonly { path: PropertyKey[]; message: string }[];

function vmDocument(text: unknown): MachineDocument | { issues: Issues } {
  const { data, error } = machineSchema.safeParse(text);
  return error ?? { machine: data };
}

function emulatorDocument(text: unknown): MachineDocument | { issues: Issues } {
  const { data, error } = emulatorMachineSchema.safeParse(text);
  return error ?? { machine: undefined, emulator: data };
}

/** Returns the document of a Pod's machine. The result is empty if the Pod has no readable document. */
export function documentOf(role: PodRole): MachineDocument {
  const { machine, emulator } = role.kind === 'machine' ? role : { machine: undefined };
  return emulator === undefined ? { machine } : { machine, emulator };
}

/** Returns reason, message and exit code for a Pod whose annotation is invalid or comes from a newer operator. */
export function refusalOf(role: PodRole & { kind: 'tooNew' | 'invalid' }): {
  reason: Reason;
  message: string;
  exitCode: number;
} {
  return role.kind === 'tooNew'
    ? {
        reason: 'AgentTooOld',
        message: `The agent of this host does not know machines or tasks of version "${role.version}"`,
        exitCode: 1,
      }
    : { reason: 'InvalidMachine', message: role.message, exitCode: 1 };
}

function versionOf(document: unknown): string {
  const isObject = typeof document === 'object' && document !== null;
  return isObject && 'apiVersion' in document ? String(document.apiVersion) : '';
}

function describe(issues: Issues): string {
  return issues.map((issue) => `${issue.path.join('.') || 'document'}: ${issue.message}`).join('; ');
}

/**
 * Returns whether the Pod's status shows that its machine has ended. Such a Pod never runs again, because a container never leaves the
 * state `terminated`.
 */
export function isEnded(pod: Readonly<Pod>): boolean {
  const { phase, containerStatuses = [] } = pod.status ?? {};
  const machine = containerStatuses.find(({ name }) => name === MACHINE_CONTAINER) ?? containerStatuses[0];
  const ended = phase === 'Failed' || phase === 'Succeeded';
  return machine?.state?.terminated !== undefined || (ended && machine === undefined);
}

/** Returns the wanted state of a Pod's machine, with the Pod's deadlines. `now` is in milliseconds since the epoch. */
export function wantedOf(pod: Readonly<Pod>, role: PodRole, runtime: Runtime, now: number): WantedMachine {
  const { activeDeadlineSeconds, terminationGracePeriodSeconds = GRACE_SECONDS } = pod.spec;
  const { startTime } = pod.status ?? {};
  const isLimited = activeDeadlineSeconds !== undefined && startTime !== undefined;
  return {
    pod,
    desired: role.kind === 'machine' ? role.desired : undefined,
    desiredHash: role.kind === 'machine' ? role.desiredHash : undefined,
    deletion: deletionOf(pod, runtime, now),
    activeDeadline: isLimited ? Date.parse(startTime) + activeDeadlineSeconds * 1000 : undefined,
    graceMilliseconds: Math.min(terminationGracePeriodSeconds, LONGEST_GRACE_SECONDS) * 1000,
  };
}

/** Returns the wanted state of a machine whose Pod no longer exists or is unknown. */
export function wantedWithoutPod(deletion: WantedMachine['deletion']): WantedMachine {
  return {
    pod: undefined,
    desired: undefined,
    desiredHash: undefined,
    deletion,
    activeDeadline: undefined,
    graceMilliseconds: 0,
  };
}

/**
 * Returns whether a VM's machine stays although its Pod is being deleted. `kubectl delete --force` and the garbage collector of Kubernetes
 * delete Pods with a grace period of 0, and nobody has asked whether the machine runs. The operator then gives the machine another Pod, or
 * orders its end. A machine that the API server never showed as running has no data of users, so it ends.
 */
export function outlives(pod: Readonly<Pod>, { machine, acknowledged }: Readonly<MachineRecord>): boolean {
  const started =
    pod.status?.containerStatuses?.some(({ containerID }) => containerID !== undefined) === true;
  return isForced(pod) && machine !== undefined && (acknowledged || started) && !isEnded(pod);
}

/** Returns the seconds that the operator grants to the guest of a forcibly deleted Pod; undefined if the machine must not end. */
function orderedGrace({ metadata }: Readonly<Pod>): number | undefined {
  const document = parseDocument(metadata.annotations?.[DESIRED_ANNOTATION]);
  return desiredSchema.pick({ deletion: true }).safeParse(document).data?.deletion?.graceSeconds;
}

/**
 * Returns the deadline of a Pod's deletion; undefined while the Pod is not being deleted, or while its machine outlives it. The grace period
 * begins when the agent first sees the deletion, because the clock of the host can differ from that of the API server. If the grace period is
 * shortened later, the new period begins when the agent sees the change. The earlier of the two deadlines applies.
 */
function deletionOf(pod: Readonly<Pod>, runtime: Runtime, now: number): WantedMachine['deletion'] {
  const { deletionTimestamp, deletionGracePeriodSeconds = GRACE_SECONDS } = pod.metadata;
  if (deletionTimestamp === undefined) {
    return undefined;
  }
  const isKept = runtime.leaving === undefined && outlives(pod, runtime.record);
  const grace = isKept ? orderedGrace(pod) : deletionGracePeriodSeconds;
  if (grace === undefined) {
    return undefined;
  }
  const graceSeconds = allowedGrace(grace);
  const before = runtime.leaving;
  if (before === undefined || graceSeconds < before.graceSeconds) {
    const deadline = Math.min(before?.deadline ?? Number.POSITIVE_INFINITY, now + graceSeconds * 1000);
    runtime.leaving = { graceSeconds, deadline };
  }
  return runtime.leaving;
}

function allowedGrace(seconds: number): number {
  return seconds <= SHORTEST_GRACE_SECONDS ? 0 : Math.min(seconds, LONGEST_GRACE_SECONDS);
}

export function claimOf(pod: Pod): MachineClaim {
  const claims = pod.spec.containers.map(claimOfContainer);
  const macosGuests = total(claims, 'macosGuests');
  return {
    slots: total(claims, 'slots'),
    ...(macosGuests > 0 && { macosGuests }),
    cpuMillis: total(claims, 'cpuMillis'),
    memoryBytes: total(claims, 'memoryBytes'),
    diskBytes: total(claims, 'diskBytes'),
    ports: claims.flatMap(({ ports }) => ports),
  };
}

function claimOfContainer({ resources, ports = [] }: Container): MachineClaim {
  const requests: Record<string, string> = { ...resources?.limits, ...resources?.requests };
  const asked = (name: string): string => requests[name] ?? '0';
  return {
    slots: Number(parseQuantity(asked(SLOT_RESOURCE))),
    macosGuests: Number(parseQuantity(asked(MACOS_GUEST_RESOURCE))),
    cpuMillis: millis(asked('cpu')),
    memoryBytes: Number(parseQuantity(asked('memory'))),
    diskBytes: Number(parseQuantity(asked('ephemeral-storage'))),
    ports: ports.flatMap(({ hostPort = 0, protocol = 'TCP' }) =>
      hostPort === 0 ? [] : [{ hostPort, protocol }],
    ),
  };
}

/** Converts a CPU quantity to thousandths of a CPU. */
function millis(quantity: string): number {
  return quantity.endsWith('m')
    ? Number(parseQuantity(quantity.slice(0, -1)))
    : Number(parseQuantity(quantity)) * 1000;
}

/** Names of the {@link MachineClaim} fields that are summed over machines. */
export type Amount = 'slots' | 'macosGuests' | 'cpuMillis' | 'memoryBytes' | 'diskBytes';

export function total(claims: readonly MachineClaim[], amount: Amount): number {
  return claims.reduce((sum, { [amount]: claimed = 0 }) => sum + claimed, 0);
}
