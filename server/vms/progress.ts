/** Judges how far the deployment of a VM is. */
import type { VMDeployQuery } from '../../api/http/vmdeploy.ts';
import type { VM } from '../../api/v1alpha1/vm.ts';
import { conditionOf } from '../conditions.ts';
import { StatusError } from '../http/errors.ts';
import { statusOfPhase } from './item.ts';

/** Statuses in which a deployment has ended without a machine that runs. */
const ENDS: ReadonlySet<string> = new Set(['Failed', 'Stopped', 'Suspended']);
/** Types and reasons of the conditions which show that an object that the VM names does not exist. */
const MISSING = [
  ['Scheduled', 'ConfigNotFound'],
  ['ImageReady', 'ImageNotFound'],
] as const;
/** Reason of the condition Scheduled when no host has room. */
const NO_ROOM = 'Unschedulable';

/** Status code of a deployment for which no host has room. */
const FULL_STATUS = 503;

/** State of the VM for which a deployment waits. */
interface Wanted extends Pick<VMDeployQuery, 'waitFor' | 'whenFull'> {
  /** Another status code when no host has room. With it, the deployment does not wait for room by default. */
  readonly fullStatus?: number | undefined;
}

/** Returns `done` when the deployment has its good answer, `waiting` before, or the error with which it ended. */
export function stateOf(vm: VM, wanted: Wanted): 'done' | 'waiting' | StatusError {
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

function failureOf(vm: VM): StatusError | undefined {
  const { metadata, status = {} } = vm;
  if (status.failure !== undefined) {
    const { reason, message } = status.failure;
    return new StatusError(500, message || reason, { causes: [{ reason, message }] });
  }
  const ready = conditionOf(vm, 'Ready');
  if (ENDS.has(statusOfPhase(status.phase))) {
    return new StatusError(500, `VM ${metadata.name} is ${status.phase}: ${ready?.message ?? ''}`);
  }
  const stalled = conditionOf(vm, 'Stalled');
  if (stalled?.status === 'True') {
    const { reason, message } = stalled;
    return new StatusError(422, `VM ${metadata.name} cannot run: ${message}`, {
      causes: [{ reason, message }],
    });
  }
  return undefined;
}

/** Returns 404 for a VMConfig or an image that does not exist. The VM would wait until somebody makes it. */
function missingFor(vm: VM): StatusError | undefined {
  if ((vm.status?.phase ?? 'Pending') !== 'Pending') {
    return undefined;
  }
  const missing = MISSING.map(([type, reason]) => ({ condition: conditionOf(vm, type), reason })).find(
    ({ condition, reason }) => condition?.status !== 'True' && condition?.reason === reason,
  )?.condition;
  return missing && new StatusError(404, `VM ${vm.metadata.name} was deleted: ${missing.message}`);
}

/** Returns the error of a deployment that does not wait for room. */
function noRoomFor(vm: VM, { whenFull, fullStatus }: Wanted): StatusError | undefined {
  const isPatient = whenFull === undefined ? fullStatus === undefined : whenFull === 'wait';
  const scheduled = conditionOf(vm, 'Scheduled');
  return isPatient || scheduled?.reason !== NO_ROOM
    ? undefined
    : new StatusError(
        fullStatus ?? FULL_STATUS,
        `VM ${vm.metadata.name} was deleted, because no host has room: ${scheduled.message}`,
      );
}

/** Returns the reason why the VM does not run yet, for people. */
export function progressOf(vm: VM): string {
  const { progress, phase = 'Pending' } = vm.status ?? {};
  const waiting = ['Scheduled', 'ImageReady', 'Ready']
    .map((type) => conditionOf(vm, type))
    .find((condition) => condition !== undefined && condition.status !== 'True' && condition.message !== '');
  return waiting?.message ?? progress ?? `the phase after ${phase}`;
}
