/** Waits until VMs have a state or a condition. */
import { InvalidArgumentError } from 'commander';
import type { VM } from '../../api/v1alpha1/vm.ts';
import { VMS } from '../../api/v1alpha1/resources.ts';
import { type UserCluster, withCluster } from '../cluster.ts';
import { timeText } from '../duration.ts';
import { CommandError, EXIT } from '../errors.ts';
import type { Globals } from '../globals.ts';
import { report } from '../objects/kind.ts';
import { forEachName, getNamed } from '../objects/named.ts';
import { type ConditionGoal, parseConditionGoal, hasCondition, versionsFrom } from '../objects/versions.ts';
import { progressLine } from '../progress.ts';
import type { Terminal } from '../terminal.ts';
import { VM_KIND } from './kind.ts';
import { progressOf } from '../../actions/deploy.ts';
import { conditionOf } from '../../api/http/conditions.ts';
import type { Reason } from '../../api/v1alpha1/reasons.ts';

interface Wait {
  readonly names: readonly string[];
  readonly goal: Goal;
  /** Time limit in milliseconds. */
  readonly timeout: number;
}

/**
 * Waits for all VMs at the same time.
 *
 * @throws CommandError when a VM cannot reach the goal, or does not reach it within the time limit; ApiError.
 */
export async function wait(
  terminal: Terminal,
  globals: Globals,
  { names, goal, timeout }: Wait,
): Promise<void> {
  const late = AbortSignal.timeout(timeout);
  const signal = AbortSignal.any([terminal.signal, late]);
  const progress = progressLine(terminal);
  await withCluster(terminal, globals, async (cluster) => {
    const { done, rethrow } = await forEachName(names, async (name) => {
      // The time limit does not end the first read of the VM, because the error after the time limit must name the state of the VM.
      const first = await firstVersion(cluster, goal, { name, signal: terminal.signal });
      if (first === undefined) {
        return undefined;
      }
      const latest = { vm: first };
      try {
        return await until(cluster, goal, { latest, signal, show: progress.show });
      } catch (error) {
        throw error === late.reason ? outOfTime(latest.vm, { goal, timeout, command: terminal.name }) : error;
      }
    });
    progress.end();
    const objects = done.filter((vm) => vm !== undefined);
    const sentence = (name: string) => `vm ${name} is ${formatGoal(goal)}`;
    // If all VMs were gone before the command, there is no object. Even so, programs get a list.
    const isDone = done.length > 0;
    await report(terminal, globals, { kind: VM_KIND, objects, sentence, isDone });
    rethrow();
  });
}

interface Following {
  /** Holds the last known version of the VM. The caller sets the first version. */
  readonly latest: { vm: VM };
  readonly signal: AbortSignal;
  readonly show: (line: string) => void;
}

/**
 * Returns the VM when it has reached the goal.
 *
 * @throws CommandError when it cannot reach the goal; ApiError; the signal's reason when the signal aborts.
 */
async function until(cluster: UserCluster, goal: Goal, { latest, signal, show }: Following): Promise<VM> {
  const { metadata: from } = latest.vm;
  for await (const vm of versionsFrom(cluster, VMS, latest.vm, signal)) {
    latest.vm = vm;
    const state = reached(vm, goal);
    if (state === 'yes') {
      return vm;
    }
    if (state !== 'not yet') {
      throw new CommandError(state.failure);
    }
    show(`${from.name}: ${obstacleOf(vm)}`);
  }
  if (goal.state === 'deleted') {
    return latest.vm;
  }
  throw new CommandError(`VM ${from.name} was deleted`, EXIT.notFound);
}

/** Returns the VM. If the goal is `deleted` and the VM does not exist, the result is undefined. @throws CommandError; ApiError. */
async function firstVersion(
  cluster: UserCluster,
  { state }: Goal,
  { name, signal }: { name: string; signal: AbortSignal },
): Promise<VM | undefined> {
  try {
    return await getNamed(cluster, VM_KIND, name, signal);
  } catch (error) {
    if (state === 'deleted' && error instanceof CommandError && error.exitCode === EXIT.notFound) {
      return undefined;
    }
    throw error;
  }
}

function outOfTime(
  vm: VM,
  { goal, timeout, command }: Pick<Wait, 'goal' | 'timeout'> & { command: string },
): CommandError {
  const { name } = vm.metadata;
  const limit = timeText(timeout);
  return new CommandError(
    `VM ${name} is not ${formatGoal(goal)} after ${limit}. It is waiting for: ${obstacleOf(vm)}. For details, run: ${command} vm why ${name}`,
    EXIT.noAnswer,
  );
}

const STATES = ['running', 'ready', 'stopped', 'suspended', 'deleted'] as const;
type State = (typeof STATES)[number];
export type Goal = { readonly state: State } | ConditionGoal;

/**
 * For each state, `fit` lists the values of `spec.powerState` with which a VM can reach the state. `advice` is the next step for the user
 * if the VM with this name has another value. With the value `Running`, a VM can also reach `stopped`, because its guest can shut down.
 */
const POWER = {
  running: { fit: ['Running'], advice: adviseStart },
  ready: { fit: ['Running'], advice: adviseStart },
  stopped: {
    fit: ['Running', 'Stopped'],
    advice: (name: string) => `Stop the VM with \`berth vm stop ${name}\``,
  },
  suspended: {
    fit: ['Suspended'],
    advice: (name: string) => `Suspend the VM with \`berth vm suspend ${name}\``,
  },
} as const;

function adviseStart(name: string): string {
  return `Start the VM with \`berth vm start ${name}\``;
}

/** Reason of a VM whose guest has powered itself off. */
const OWN_END: Reason = 'GuestShutdown';

/** Whether the VM has reached the goal. `failure` is the reason why the VM cannot reach the goal. */
type Reached = 'yes' | 'not yet' | { readonly failure: string };

export function parseGoal(text: string): Goal {
  const state = STATES.find((word) => word === text.toLowerCase());
  if (state !== undefined) {
    return { state };
  }
  const goal = parseConditionGoal(text);
  if (goal === undefined) {
    throw new InvalidArgumentError(
      `It must be ${STATES.join(', ')} or condition=TYPE, such as condition=Ready or condition=Scheduled=False.`,
    );
  }
  return goal;
}

/** Returns the goal in words that can follow `is` in a sentence. */
export function formatGoal(goal: Goal): string {
  return goal.state === 'condition' ? `at condition ${goal.type}=${goal.status}` : goal.state;
}

/** Reports whether the VM has reached the goal. A VM that still exists has not reached the goal `deleted`. */
export function reached(vm: VM, goal: Goal): Reached {
  if (goal.state === 'deleted') {
    return 'not yet';
  }
  if (goal.state === 'condition') {
    return hasCondition(vm, goal) ? 'yes' : 'not yet';
  }
  const failure = failureOf(vm, goal.state);
  return failure === undefined ? isIn(vm, goal.state) : { failure };
}

function isIn(vm: VM, state: keyof typeof POWER): Reached {
  if (state === 'running' || state === 'ready') {
    return runs(vm, state);
  }
  return vm.status?.phase?.toLowerCase() === state && (state === 'suspended' || isToBeOff(vm))
    ? 'yes'
    : 'not yet';
}

/**
 * Reports whether a VM in the phase Stopped stays off. If it is to run, its host has not yet acted on the last start or restart, and the
 * phase belongs to an earlier stop.
 */
function isToBeOff(vm: VM): boolean {
  return vm.spec.powerState === 'Stopped' || staysOff(vm);
}

/**
 * Reports whether the VM runs. If a requested restart or revert has not happened yet, the result is `not yet`, because the phase belongs
 * to the earlier run.
 */
function runs(vm: VM, state: 'running' | 'ready'): Reached {
  const isReady = state === 'running' || conditionOf(vm, 'Ready')?.status === 'True';
  return vm.status?.phase === 'Running' && areHandled(vm) && isReady ? 'yes' : 'not yet';
}

/** Reports whether the host has handled the last request for a restart and the last request for a revert. */
function areHandled({ spec, status = {} }: VM): boolean {
  return (
    isHandled(spec.restartRequestedAt, status.restartedAt) &&
    isHandled(spec.revertRequestedAt, status.revertedAt)
  );
}

/** Reports whether the host has handled the request. `handledAt` is the time of the last request that the host has handled. */
function isHandled(requestedAt: string | undefined, handledAt: string | undefined): boolean {
  return requestedAt === undefined || requestedAt === handledAt;
}

/**
 * Returns the reason why the VM cannot reach the state without the help of a user. The result is undefined if the VM can reach the state.
 */
function failureOf(vm: VM, state: keyof typeof POWER): string | undefined {
  const { metadata, status = {} } = vm;
  const { name } = metadata;
  if (metadata.deletionTimestamp !== undefined) {
    return `VM ${name} is being deleted`;
  }
  const stalled = conditionOf(vm, 'Stalled');
  const isFinal = stalled?.status === 'True' && stalled.reason !== OWN_END;
  const final = status.failure ?? (isFinal ? stalled : undefined);
  if (final !== undefined) {
    return `VM ${name} cannot run: ${final.message || final.reason}`;
  }
  return reasonToStay(vm, state);
}

/** Returns the reason why the VM stays as it is until a user starts, stops or suspends it. The result is undefined if there is none. */
function reasonToStay(vm: VM, state: keyof typeof POWER): string | undefined {
  const { name } = vm.metadata;
  const { powerState: wanted = 'Running' } = vm.spec;
  const { fit, advice } = POWER[state];
  if (!fit.some((one) => one === wanted)) {
    return `VM ${name} has the powerState ${wanted}. ${advice(name)}`;
  }
  if (state === 'suspended' && vm.status?.phase === 'Stopped') {
    return `VM ${name} is Stopped, so it has no memory to save. ${adviseStart(name)}, and suspend it again`;
  }
  const mustRun = state === 'running' || state === 'ready';
  return mustRun && staysOff(vm) ? `VM ${name} has powered itself off. ${advice(name)}` : undefined;
}

/** Reports whether the guest has powered itself off, and nothing will start the VM again. */
function staysOff(vm: VM): boolean {
  const { phase } = vm.status ?? {};
  const isOwnEnd = phase === 'Stopped' && conditionOf(vm, 'Ready')?.reason === OWN_END;
  return isOwnEnd && vm.spec.restartPolicy !== 'Always' && areHandled(vm);
}

/** Returns a text that tells people for which event the VM waits. */
function obstacleOf(vm: VM): string {
  return vm.metadata.deletionTimestamp === undefined ? progressOf(vm) : 'the end of the machine on its host';
}
