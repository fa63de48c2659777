/**
 * Deploys a VM: follows it until it runs, then keeps it, or deletes it after a failure. Until the end, the VM has a time in
 * `spec.aliveUntil`. If the process that deploys it ends before that, the operator deletes the VM at this time, because nobody might know
 * the name of the VM.
 */
import { conditionOf } from '../api/http/conditions.ts';
import type { VMDeployQuery } from '../api/http/vm.ts';
import { statusOfPhase } from '../api/http/vmitem.ts';
import type { Reason } from '../api/v1alpha1/reasons.ts';
import { VMS } from '../api/v1alpha1/resources.ts';
import type { VM, VMSpec } from '../api/v1alpha1/vm.ts';
import { undefinedIf } from '../base/errors.ts';
import { pause } from '../base/time.ts';
import type { KubeClient } from '../kube/client.ts';
import { isConflict, isNotFound, unlessMissing } from '../kube/errors.ts';
import { follow } from '../kube/follow.ts';
import type { Ref } from '../kube/objects.ts';
import { repeated } from '../kube/patience.ts';
import type { Transport } from '../kube/transport.ts';
import { ActionError } from './error.ts';

/** Statuses of a VM that does not run. If the VM gets one of them, the deployment has failed. */
const ENDS: ReadonlySet<string> = new Set(['Failed', 'Stopped', 'Suspended']);
/** Pairs of a condition's type and reason. Each pair means that an object which the VM names does not exist. */
const MISSING = [
  ['Scheduled', 'ConfigNotFound'],
  ['ImageReady', 'ImageNotFound'],
] as const;
/** Reason of the condition Scheduled if no host has room for the VM. */
const NO_ROOM = 'Unschedulable';

/**
 * Reason of the failure that the operator records at the time limit of a deployment. The client waits for the same time, and the operator
 * is often earlier by a fraction of a second. In both cases, the client must get the same kind of error.
 */
const OUT_OF_TIME: Reason = 'DeployTimeout';

/**
 * Time in milliseconds that the operator needs to notice a new object. If an object is missing, the deployment fails only after this time.
 * Otherwise, a deployment could fail if a client creates a VM config or an image and immediately deploys a VM from it.
 */
const LEARNING_MILLISECONDS = 1_000;

/**
 * Time in milliseconds between the time limit of a deployment and the end of the VM's life. It is longer than the usual difference between
 * the clocks of the operator and of the process that deploys. Otherwise the operator could delete the VM too early.
 */
const ANSWER_MILLISECONDS = 60_000;

/** What to wait for, and whether the deployment fails if no host has room. By default it waits for room. */
export type DeployGoal = Pick<VMDeployQuery, 'waitFor' | 'whenFull'>;

/** `done` if the deployment succeeded, `waiting` if it continues, or the error that ended it: the machine of the VM does not run. */
export type DeploymentState = 'done' | 'waiting' | ActionError;

interface Deployment {
  readonly client: KubeClient;
  /** Connections for the watch of the VM. */
  readonly watches: Transport;
  readonly wanted: DeployGoal;
  /** Value of `spec.aliveUntil` that the VM has after its deployment. If it is undefined, the VM has no such time. */
  readonly aliveUntil: string | undefined;
  readonly signal: AbortSignal;
  /** Function that keeps only the fields that the caller needs. */
  readonly trim?: (vm: VM) => VM;
  /** Called with each version of the VM that does not run yet. */
  readonly onVersion?: (vm: VM) => void;
}

/**
 * Returns the new VM with a life that ends soon after its deployment, which takes at most so many minutes. If the VM has an earlier time, it
 * keeps this time.
 */
export function withDeployLife<T extends { readonly spec: VMSpec }>(vm: T, minutes: number): T {
  const end = new Date(Date.now() + minutes * 60_000 + ANSWER_MILLISECONDS);
  const { aliveUntil } = vm.spec;
  const isEarlier = aliveUntil !== undefined && Date.parse(aliveUntil) <= end.getTime();
  return isEarlier ? vm : { ...vm, spec: { ...vm.spec, aliveUntil: end.toISOString() } };
}

/**
 * Follows the VM until it runs, and then keeps it. `latest` receives the last known version of the VM.
 *
 * @throws ActionError when the VM will not run, or is deleted; ApiError when the API server refuses; the signal's reason when it aborts.
 */
export async function untilDeployed(latest: { vm: VM }, deployment: Deployment): Promise<VM> {
  await untilRunning(latest, deployment);
  return await keep(deployment.client, latest.vm, deployment);
}

/**
 * Follows the VM until it runs. `latest` receives the last known version of the VM.
 *
 * @throws ActionError when the VM will not run, or is deleted; ApiError when the API server refuses; the signal's reason when it aborts.
 */
export async function untilRunning(
  latest: { vm: VM },
  { client, watches, wanted, signal, trim = (vm) => vm, onVersion }: Omit<Deployment, 'aliveUntil'>,
): Promise<void> {
  const from = latest.vm.metadata;
  for await (const version of follow<VM>({ client, watches, type: VMS, from, trim, signal })) {
    const readAgain = async () => await unlessMissing(client.get(VMS, refOf(version), { signal }));
    const { vm, state } = await settledState(version, wanted, readAgain, signal);
    latest.vm = trim(vm);
    if (state === 'done') {
      return;
    }
    onVersion?.(latest.vm);
    if (state !== 'waiting') {
      throw state;
    }
  }
  throw deleted(latest.vm);
}

/**
 * Replaces the end of the VM's life during its deployment by `aliveUntil`, so that the operator does not delete the VM. Returns the new
 * version of the VM. Repeats the request while the API server does not answer, because the VM already runs and must not be deleted for this.
 *
 * @throws ActionError when somebody has deleted the VM; ApiError; CredentialError; the signal's reason when the signal aborts.
 */
export async function keep(
  client: KubeClient,
  vm: VM,
  { aliveUntil = null, signal }: { aliveUntil?: string | null | undefined; signal: AbortSignal },
): Promise<VM> {
  const patch = { metadata: { uid: vm.metadata.uid }, spec: { aliveUntil } };
  const write = async () => await client.mergePatch<VM>(VMS, refOf(vm), patch, { signal });
  const kept = await undefinedIf((error) => isNotFound(error) || isConflict(error), repeated(write, signal));
  if (kept === undefined || kept.metadata.deletionTimestamp !== undefined) {
    throw deleted(vm);
  }
  return kept;
}

/** Deletes the VM, but not a later VM of the same name. @throws ApiError; the signal's reason when the signal aborts. */
export async function discard(client: KubeClient, vm: VM, signal: AbortSignal): Promise<void> {
  await undefinedIf(isConflict, client.delete(VMS, refOf(vm), { uid: vm.metadata.uid, signal }));
}

/** Returns the message for a deployment whose time was over. `left` is a sentence about the VM that is left. */
export function lateMessage(vm: VM, minutes: number, left: string): string {
  const limit = minutes === 1 ? '1 minute' : `${minutes} minutes`;
  const state = statusOfPhase(vm.status?.phase) === 'Running' ? 'was not Ready' : 'did not run';
  return `VM ${vm.metadata.name} ${state} within ${limit}. ${left}. The VM waited for: ${progressOf(vm)}`;
}

function deleted({ metadata }: VM): ActionError {
  return new ActionError('gone', `VM ${metadata.name} was deleted before it ran`);
}

function refOf({ metadata: { name, namespace = '' } }: VM): Required<Ref> {
  return { namespace, name };
}

/**
 * Returns the state of the deployment, and the VM object that shows this state. The operator might not know a new VMConfig or image yet.
 * Therefore, if one of these objects seems to be missing, the function waits a moment and reads the VM again. `readAgain` resolves with
 * undefined if the VM is gone. If somebody has created another VM with the same name in the meantime, the function ignores that VM.
 *
 * @throws the error of `readAgain`; the signal's reason when the signal aborts.
 */
export async function settledState(
  vm: VM,
  wanted: DeployGoal,
  readAgain: () => Promise<VM | undefined>,
  signal: AbortSignal,
): Promise<{ vm: VM; state: DeploymentState }> {
  const state = stateOf(vm, wanted);
  if (typeof state === 'string' || state.kind !== 'missing') {
    return { vm, state };
  }
  await pause(LEARNING_MILLISECONDS, signal);
  const later = await readAgain();
  return later === undefined || later.metadata.uid !== vm.metadata.uid
    ? { vm, state }
    : { vm: later, state: stateOf(later, wanted) };
}

/** Returns `done` if the deployment succeeded, `waiting` if it continues, or the error with which it ended. */
export function stateOf(vm: VM, wanted: DeployGoal): DeploymentState {
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

function failureOf(vm: VM): ActionError | undefined {
  const { metadata, status = {} } = vm;
  if (status.failure !== undefined) {
    const { reason, message } = status.failure;
    const kind = reason === OUT_OF_TIME ? 'late' : 'failed';
    return new ActionError(kind, message || reason, { causes: [{ reason, message }] });
  }
  const ready = conditionOf(vm, 'Ready');
  if (ENDS.has(statusOfPhase(status.phase))) {
    return new ActionError('failed', `VM ${metadata.name} is ${status.phase}: ${ready?.message ?? ''}`);
  }
  const stalled = conditionOf(vm, 'Stalled');
  if (stalled?.status === 'True') {
    const { reason, message } = stalled;
    return new ActionError('invalid', `VM ${metadata.name} cannot run: ${message}`, {
      causes: [{ reason, message }],
    });
  }
  return undefined;
}

/**
 * Returns an error if the VMConfig or image of the VM does not exist. Without this error, the deployment would wait until
 * somebody creates that object.
 */
function missingFor(vm: VM): ActionError | undefined {
  if ((vm.status?.phase ?? 'Pending') !== 'Pending') {
    return undefined;
  }
  const missing = MISSING.map(([type, reason]) => ({ condition: conditionOf(vm, type), reason })).find(
    ({ condition, reason }) => condition?.status !== 'True' && condition?.reason === reason,
  )?.condition;
  return missing && new ActionError('missing', `VM ${vm.metadata.name} cannot run: ${missing.message}`);
}

/** Returns an error if no host has room for the VM and the deployment does not wait for room. */
function noRoomFor(vm: VM, { whenFull }: DeployGoal): ActionError | undefined {
  const scheduled = conditionOf(vm, 'Scheduled');
  return whenFull !== 'fail' || scheduled?.reason !== NO_ROOM
    ? undefined
    : new ActionError('room', `No host has room for VM ${vm.metadata.name}: ${scheduled.message}`);
}

/** Returns a text for people: the reason why the VM does not run yet. */
export function progressOf(vm: VM): string {
  const { progress, phase = 'Pending' } = vm.status ?? {};
  const waiting = ['Scheduled', 'ImageReady', 'Ready']
    .map((type) => conditionOf(vm, type))
    .find((condition) => condition !== undefined && condition.status !== 'True' && condition.message !== '');
  return waiting?.message ?? progress ?? `the phase after ${phase}`;
}
