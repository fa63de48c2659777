/**
 * Holds a VM: moves its `spec.aliveUntil` later while somebody needs the VM. If the process that holds the VM ends, for example because it is
 * killed, the operator deletes the VM at this time.
 */
import { VMS } from '../api/v1alpha1/resources.ts';
import type { VM } from '../api/v1alpha1/vm.ts';
import { LONGEST_TIMER_MILLISECONDS, rest } from '../base/time.ts';
import type { KubeClient } from '../kube/client.ts';
import { isConflict, isNotFound, isRefusal, unlessMissing } from '../kube/errors.ts';
import { repeated } from '../kube/patience.ts';
import { ActionError } from './error.ts';

/**
 * Default life in milliseconds of a VM that nobody prolongs. It outlives a restart of the API server. With this life, a thousand VMs that are
 * prolonged at half need 3.3 requests per second.
 */
export const LIFE_MILLISECONDS = 600_000;

interface Hold {
  readonly client: KubeClient;
  readonly vm: VM;
  readonly lifeMilliseconds: number;
  /** Returns the current time in milliseconds since 1970. */
  readonly clock: () => number;
  readonly signal: AbortSignal;
}

/** Returns the value of `spec.aliveUntil` for a life that begins now. */
export function endOfLife({ clock, lifeMilliseconds }: Pick<Hold, 'clock' | 'lifeMilliseconds'>): string {
  return new Date(clock() + lifeMilliseconds).toISOString();
}

/**
 * Prolongs the life of the VM whenever half of it is over. Resolves when the signal aborts, or when another user has removed the end of the
 * life.
 *
 * @throws ActionError `gone` when the VM is deleted, `unanswered` when the API server did not answer before the life was over; ApiError.
 */
export async function holdVM(hold: Hold): Promise<void> {
  const { vm, lifeMilliseconds, clock, signal } = hold;
  let until = vm.spec.aliveUntil;
  while (until !== undefined) {
    const end = Date.parse(until);
    const left = end - lifeMilliseconds / 2 - clock();
    await rest(Math.min(Math.max(0, left), LONGEST_TIMER_MILLISECONDS), signal);
    if (signal.aborted) {
      return;
    }
    if (left <= LONGEST_TIMER_MILLISECONDS) {
      until = await prolong(hold, end - clock());
    }
  }
}

/** A VM in a namespace. With a uid, no later VM of the same name is meant. */
interface Named {
  readonly namespace: string;
  readonly name: string;
  readonly uid?: string | undefined;
}

/**
 * Moves the end of the VM's life to the time, in RFC 3339, and returns the VM.
 *
 * @throws ApiError, also when the VM has a later end or none, or when another VM has the name; the signal's reason when it aborts.
 */
export async function moveEnd(
  client: KubeClient,
  { namespace, name, uid }: Named,
  aliveUntil: string,
  signal?: AbortSignal,
): Promise<VM> {
  const patch = { metadata: { uid }, spec: { aliveUntil } };
  return await client.mergePatch<VM>(VMS, { namespace, name }, patch, { signal });
}

/** Prolongs the life of the VM once, and returns the end of the life. `leftMilliseconds` limits the attempts. @throws as {@link holdVM}. */
export async function prolong(hold: Hold, leftMilliseconds: number): Promise<string | undefined> {
  const { client, vm, signal } = hold;
  const { name, namespace = '', uid } = vm.metadata;
  const over = new AbortController();
  const timer = setTimeout(() => over.abort(), Math.max(1, leftMilliseconds));
  const inTime = AbortSignal.any([signal, over.signal]);
  const write = async () => await moveEnd(client, { namespace, name, uid }, endOfLife(hold), inTime);
  try {
    return (await repeated(write, inTime)).spec.aliveUntil;
  } catch (error) {
    if (signal.aborted) {
      return vm.spec.aliveUntil;
    }
    if (over.signal.aborted) {
      throw new ActionError('unanswered', `The API server did not prolong the life of VM ${name} in time`);
    }
    return await lifeAfter(error, hold);
  } finally {
    clearTimeout(timer);
  }
}

/**
 * Returns the end of the VM's life after a refusal. Another user can have moved it later than this process would, or removed it.
 *
 * @throws ActionError when the VM is gone; the refusal otherwise.
 */
async function lifeAfter(error: unknown, { client, vm, ...life }: Hold): Promise<string | undefined> {
  const { name, namespace = '', uid } = vm.metadata;
  if (!isRefusal(error)) {
    throw error;
  }
  const isGone = isNotFound(error) || isConflict(error);
  const found = isGone ? undefined : await unlessMissing(client.get(VMS, { namespace, name }));
  if (found === undefined || found.metadata.uid !== uid) {
    throw new ActionError('gone', `VM ${name} was deleted`);
  }
  const { aliveUntil } = found.spec;
  if (aliveUntil !== undefined && Date.parse(aliveUntil) <= Date.parse(endOfLife(life))) {
    throw error;
  }
  return aliveUntil;
}
