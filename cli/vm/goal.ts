/** States of VMs for which the command can wait. */
import { InvalidArgumentError } from 'commander';
import { progressOf } from '../../actions/deploy.ts';
import { conditionOf } from '../../api/http/conditions.ts';
import type { Reason } from '../../api/v1alpha1/reasons.ts';
import type { VM } from '../../api/v1alpha1/vm.ts';
import { type ConditionGoal, conditionGoalIn, hasCondition } from '../objects/conditiongoal.ts';

const STATES = ['running', 'ready', 'stopped', 'suspended', 'deleted'] as const;
type State = (typeof STATES)[number];
export type Goal = { readonly state: State } | ConditionGoal;

/**
 * For each state, `fit` lists the values of `spec.powerState` with which a VM can reach the state. `advice` is the next step for the user
 * if the VM has another value. With the value `Running`, a VM can also reach `stopped`, because its guest can shut down.
 */
const POWER = {
  running: { fit: ['Running'], advice: 'Start the VM with `vm start`' },
  ready: { fit: ['Running'], advice: 'Start the VM with `vm start`' },
  stopped: { fit: ['Running', 'Stopped'], advice: 'Stop the VM with `vm stop`' },
  suspended: { fit: ['Suspended'], advice: 'Suspend the VM with `vm suspend`' },
} as const;

/** Reason of a VM whose guest has powered itself off. */
const OWN_END: Reason = 'GuestShutdown';

/** Whether the VM has reached the goal. `failure` is the reason why the VM cannot reach the goal. */
type Reached = 'yes' | 'not yet' | { readonly failure: string };

export function goalIn(text: string): Goal {
  const state = STATES.find((word) => word === text.toLowerCase());
  if (state !== undefined) {
    return { state };
  }
  const goal = conditionGoalIn(text);
  if (goal === undefined) {
    throw new InvalidArgumentError(
      `It must be ${STATES.join(', ')} or condition=TYPE, such as condition=Ready or condition=Scheduled=False.`,
    );
  }
  return goal;
}

/** Returns the goal in words that can follow `is` in a sentence. */
export function wordsOf(goal: Goal): string {
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
    return `VM ${name} has the powerState ${wanted}. ${advice}`;
  }
  if (state === 'suspended' && vm.status?.phase === 'Stopped') {
    return `VM ${name} is Stopped, so it has no memory to save. ${POWER.running.advice}, and suspend it again`;
  }
  const mustRun = state === 'running' || state === 'ready';
  return mustRun && staysOff(vm) ? `VM ${name} has powered itself off. ${advice}` : undefined;
}

/** Reports whether the guest has powered itself off, and nothing will start the VM again. */
function staysOff(vm: VM): boolean {
  const { phase } = vm.status ?? {};
  const isOwnEnd = phase === 'Stopped' && conditionOf(vm, 'Ready')?.reason === OWN_END;
  return isOwnEnd && vm.spec.restartPolicy !== 'Always' && areHandled(vm);
}

/** Returns a text that tells people for which event the VM waits. */
export function obstacleOf(vm: VM): string {
  return vm.metadata.deletionTimestamp === undefined ? progressOf(vm) : 'the end of the machine on its host';
}
