/** What a Pod bound to this host asks of it, read from the operator's two annotations. */
import { createHash } from 'node:crypto';
import {
  type Desired,
  desiredSchema,
  MACHINE_API_VERSION,
  type Machine,
  machineSchema,
  parseDocument,
} from '../../api/v1alpha1/machine.ts';
import { DESIRED_ANNOTATION, MACHINE_ANNOTATION, TASK_ANNOTATION } from '../../api/v1alpha1/names.ts';
import { TASK_API_VERSION, type Task, taskSchema } from '../../api/v1alpha1/task.ts';
import type { Pod } from '../../kube/core.ts';

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

/** What a Pod that cannot be read is ended with. */
export function refusalOf(role: PodRole & { kind: 'tooNew' | 'invalid' }): {
  reason: string;
  message: string;
  exitCode: number;
} {
  return role.kind === 'tooNew'
    ? {
        reason: 'AgentTooOld',
        message: `the agent of this host does not know machines or tasks of version "${role.version}"`,
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
