/** Determines how far the deployment of a VM has progressed, for the HTTP API and the `berth` command. */
import { pause } from '../../base/time.ts';
import type { Reason } from '../v1alpha1/reasons.ts';
import type { VM } from '../v1alpha1/vm.ts';
import { conditionOf } from './conditions.ts';
import type { Cause } from './status.ts';
import type { VMDeployQuery } from './vmdeploy.ts';
import { statusOfPhase } from './vmitem.ts';

/** Statuses of a VM that does not run. If the VM gets one of them, the deployment has failed. */
const ENDS: ReadonlySet<string> = new Set(['Failed', 'Stopped', 'Suspended']);
/** Pairs of a condition's type and reason. Each pair means that an object which the VM names does not exist. */
const MISSING = [
  ['Scheduled', 'ConfigNotFound'],
  ['ImageReady', 'ImageNotFound'],
] as const;
/** Reason of the condition Scheduled if no host has room for the VM. */
const NO_ROOM = 'Unschedulable';

/** Status code of a deployment for which no host has room. */
const FULL_STATUS = 503;
/**
 * Reason of the failure that the operator records at the time limit of a deployment. The client waits for the same time, and the operator
 * is often earlier by a fraction of a second. In both cases, the client must get the same status code.
 */
const OUT_OF_TIME: Reason = 'DeployTimeout';
const LATE_STATUS = 504;

/**
 * Time in milliseconds that the operator needs to notice a new object. If an object is missing, the deployment fails only after this time.
 * Otherwise, a deployment could fail if a client creates a VM config or an image and immediately deploys a VM from it.
 */
const LEARNING_MILLISECONDS = 1_000;

/** Options of a request that waits for a VM: the state to wait for, and the behaviour if no host has room. */
interface Wanted extends Pick<VMDeployQuery, 'waitFor' | 'whenFull'> {
  /**
   * HTTP status code of the answer if the deployment ends because no host has room for the VM. The default is {@link FULL_STATUS}. If this
   * field is set and `whenFull` is absent, the deployment does not wait for room.
   */
  readonly fullStatus?: number | undefined;
}

/** Error that ended a deployment. The machine of the VM does not run. */
export interface Ended {
  /** HTTP status code of the answer. */
  readonly code: number;
  readonly message: string;
  readonly causes?: Cause[];
}

export type DeploymentState = 'done' | 'waiting' | Ended;

/**
 * Returns the state of the deployment, and the VM object that shows this state. The operator might not know a new VMConfig or image yet.
 * Therefore, if one of these objects seems to be missing, the function waits a moment and reads the VM again. `readAgain` resolves with
 * undefined if the VM is gone. If somebody has created another VM with the same name in the meantime, the function ignores that VM.
 *
 * @throws the error of `readAgain`; the signal's reason when the signal aborts.
 */
export async function settledState(
  vm: VM,
  wanted: Wanted,
  readAgain: () => Promise<VM | undefined>,
  signal: AbortSignal,
): Promise<{ vm: VM; state: DeploymentState }> {
  const state = stateOf(vm, wanted);
  if (typeof state === 'string' || state.code !== 404) {
    return { vm, state };
  }
  await pause(LEARNING_MILLISECONDS, signal);
  const later = await readAgain();
  return later === undefined || later.metadata.uid !== vm.metadata.uid
    ? { vm, state }
    : { vm: later, state: stateOf(later, wanted) };
}

/** Returns `done` if the deployment succeeded, `waiting` if it continues, or the error with which it ended. */
export function stateOf(vm: VM, wanted: Wanted): DeploymentState {
  const { metadata, status = {} } = vm;
  const failed = failureOf(vm);
  if (failed !== undefined) {
    return failed;
  }
  if (metadata.deletionTimestamp !== undefined) {
    return 'waiting';
  }
  const blocked = missingFor(vm) ?? noRoomFor(vm, wanted);
  return (
    blocked ?? (statusOfPhase(status.phase) === 'Running' ? stateOfRunning(vm, wanted.waitFor) : 'waiting')
  );
}

function stateOfRunning(vm: VM, waitFor: VMDeployQuery['waitFor']): 'done' | 'waiting' {
  return waitFor === 'running' || conditionOf(vm, 'Ready')?.status === 'True' ? 'done' : 'waiting';
}

function failureOf(vm: VM): Ended | undefined {
  const { metadata, status = {} } = vm;
  if (status.failure !== undefined) {
    const { reason, message } = status.failure;
    const code = reason === OUT_OF_TIME ? LATE_STATUS : 500;
    return { code, message: message || reason, causes: [{ reason, message }] };
  }
  const ready = conditionOf(vm, 'Ready');
  if (ENDS.has(statusOfPhase(status.phase))) {
    return { code: 500, message: `VM ${metadata.name} is ${status.phase}: ${ready?.message ?? ''}` };
  }
  const stalled = conditionOf(vm, 'Stalled');
  if (stalled?.status === 'True') {
    const { reason, message } = stalled;
    return {
      code: 422,
      message: `VM ${metadata.name} cannot run: ${message}`,
      causes: [{ reason, message }],
    };
  }
  return undefined;
}

/**
 * Returns an error with code 404 if the VMConfig or image of the VM does not exist. Without this error, the deployment would wait until
 * somebody creates that object.
 */
function missingFor(vm: VM): Ended | undefined {
  if ((vm.status?.phase ?? 'Pending') !== 'Pending') {
    return undefined;
  }
  const missing = MISSING.map(([type, reason]) => ({ condition: conditionOf(vm, type), reason })).find(
    ({ condition, reason }) => condition?.status !== 'True' && condition?.reason === reason,
  )?.condition;
  return missing && { code: 404, message: `VM ${vm.metadata.name} cannot run: ${missing.message}` };
}

/** Returns an error if no host has room for the VM and the deployment does not wait for room. */
function noRoomFor(vm: VM, { whenFull, fullStatus }: Wanted): Ended | undefined {
  const isPatient = whenFull === undefined ? fullStatus === undefined : whenFull === 'wait';
  const scheduled = conditionOf(vm, 'Scheduled');
  return isPatient || scheduled?.reason !== NO_ROOM
    ? undefined
    : {
        code: fullStatus ?? FULL_STATUS,
        message: `No host has room for VM ${vm.metadata.name}: ${scheduled.message}`,
      };
}

/** Returns a text for people: the reason why the VM does not run yet. */
export function progressOf(vm: VM): string {
  const { progress, phase = 'Pending' } = vm.status ?? {};
  const waiting = ['Scheduled', 'ImageReady', 'Ready']
    .map((type) => conditionOf(vm, type))
    .find((condition) => condition !== undefined && condition.status !== 'True' && condition.message !== '');
  return waiting?.message ?? progress ?? `the phase after ${phase}`;
}
