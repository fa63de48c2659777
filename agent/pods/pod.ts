/** Reads from the operator's two annotations, and from a Pod's times, what the Pod asks of this host. Pure. */
import { createHash } from 'node:crypto';
import {
  type Desired,
  desiredSchema,
  MACHINE_API_VERSION,
  type Machine,
  machineSchema,
  parseDocument,
} from '../../api/v1alpha1/machine.ts';
import {
  DESIRED_ANNOTATION,
  MACHINE_ANNOTATION,
  MACHINE_CONTAINER,
  TASK_ANNOTATION,
} from '../../api/v1alpha1/names.ts';
import { TASK_API_VERSION, type Task, taskSchema } from '../../api/v1alpha1/task.ts';
import type { Reason } from '../../api/v1alpha1/reasons.ts';
import type { Pod } from '../../kube/core.ts';
import type { Runtime, Wanted } from './machine.ts';

export type PodRole =
  /** Not Berth's: it tolerates everything, or names this Node itself. */
  | { kind: 'foreign' }
  /** Made by an operator newer than this agent. */
  | { kind: 'tooNew'; version: string }
  | { kind: 'invalid'; message: string }
  | { kind: 'task'; task: Task }
  | { kind: 'machine'; machine: Machine; desired: Desired; desiredHash: string };

/** Characters of the hash that acknowledges a `berth.dev/desired` text: enough to tell any two of one Pod apart. */
const HASH_LENGTH = 16;

/** Kubernetes' own default. */
const GRACE_SECONDS = 30;

/** The text by which the agent acknowledges `berth.dev/desired`: SHA-256, hex, first 16 characters. */
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

function taskRole(text: string): PodRole {
  const document = parseDocument(text);
  const version = versionOf(document);
  if (version !== TASK_API_VERSION) {
    return { kind: 'tooNew', version };
  }
  const task = taskSchema.safeParse(document);
  return task.success
    ? { kind: 'task', task: task.data }
    : { kind: 'invalid', message: `${TASK_ANNOTATION}: ${describe(task.error.issues)}` };
}

function machineRole(machineText: string, desiredText: string): PodRole {
  const document = parseDocument(machineText);
  const version = versionOf(document);
  if (version !== MACHINE_API_VERSION) {
    return { kind: 'tooNew', version };
  }
  const machine = machineSchema.safeParse(document);
  if (!machine.success) {
    return { kind: 'invalid', message: `${MACHINE_ANNOTATION}: ${describe(machine.error.issues)}` };
  }
  const desired = desiredSchema.safeParse(parseDocument(desiredText));
  if (!desired.success) {
    return { kind: 'invalid', message: `${DESIRED_ANNOTATION}: ${describe(desired.error.issues)}` };
  }
  return {
    kind: 'machine',
    machine: machine.data,
    desired: desired.data,
    desiredHash: hashDesired(desiredText),
  };
}

/** The end of a Pod that cannot be read. */
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

function describe(issues: readonly { path: PropertyKey[]; message: string }[]): string {
  return issues.map((issue) => `${issue.path.join('.')}: ${issue.message}`).join('; ');
}

/** Whether the Pod says that its machine is gone: a container that was terminated can never leave that state. */
export function isEnded(pod: Readonly<Pod>): boolean {
  const { phase, containerStatuses = [] } = pod.status ?? {};
  const machine = containerStatuses.find(({ name }) => name === MACHINE_CONTAINER) ?? containerStatuses[0];
  const ended = phase === 'Failed' || phase === 'Succeeded';
  return machine?.state?.terminated !== undefined || (ended && machine === undefined);
}

/** The demands of a Pod on its machine, with their deadlines. */
export function wantedOf(pod: Readonly<Pod>, role: PodRole, runtime: Runtime, now: number): Wanted {
  const { activeDeadlineSeconds, terminationGracePeriodSeconds = GRACE_SECONDS } = pod.spec;
  const { startTime } = pod.status ?? {};
  const isLimited = activeDeadlineSeconds !== undefined && startTime !== undefined;
  return {
    pod,
    desired: role.kind === 'machine' ? role.desired : undefined,
    desiredHash: role.kind === 'machine' ? role.desiredHash : undefined,
    deletion: deletionOf(pod, runtime, now),
    activeDeadline: isLimited ? Date.parse(startTime) + activeDeadlineSeconds * 1000 : undefined,
    graceMilliseconds: terminationGracePeriodSeconds * 1000,
  };
}

/** The demands on a machine whose Pod is gone or not known. */
export function wantedWithoutPod(deletion: Wanted['deletion']): Wanted {
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
 * The deadline of a Pod's deletion: its grace, counted from when this agent first saw it, since two clocks differ. A shorter
 * grace that comes later counts from then, if that is sooner. Undefined while the Pod is not being deleted.
 */
function deletionOf(pod: Readonly<Pod>, runtime: Runtime, now: number): Wanted['deletion'] {
  const { deletionTimestamp, deletionGracePeriodSeconds: graceSeconds = GRACE_SECONDS } = pod.metadata;
  if (deletionTimestamp === undefined) {
    return undefined;
  }
  const before = runtime.leaving;
  if (before === undefined || graceSeconds < before.graceSeconds) {
    const deadline = Math.min(before?.deadline ?? Number.POSITIVE_INFINITY, now + graceSeconds * 1000);
    runtime.leaving = { graceSeconds, deadline };
  }
  return runtime.leaving;
}
