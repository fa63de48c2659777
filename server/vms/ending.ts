/**
 * Ends a deployment: the VM is kept or deleted, and the caller gets the result. While the API server of Kubernetes does not answer, Berth
 * repeats the request that keeps or deletes the VM. If this request never succeeds, the operator deletes the VM at the time in the
 * annotation `berth.dev/answer-by`.
 */
import type { Logger } from 'pino';
import { ANSWER_BY_ANNOTATION } from '../../api/v1alpha1/names.ts';
import type { VM } from '../../api/v1alpha1/vm.ts';
import { rest } from '../../base/time.ts';
import type { KubeClient } from '../../kube/client.ts';
import { ApiError, isConflict, isNotFound, isRefusal } from '../../kube/errors.ts';
import { repeated } from '../../kube/repeated.ts';
import { StatusError } from '../http/errors.ts';
import { WaitEnd } from '../http/waiting.ts';
import { VMS } from '../../api/v1alpha1/resources.ts';
import { type Ended, progressOf } from '../../api/http/deployment.ts';

/**
 * Longest time in milliseconds that the answer to a failed deployment is delayed, while the server keeps or deletes the VM. The request
 * that keeps or deletes one VM takes milliseconds. The requests for a thousand VMs take a few seconds. The limit is less than the 15 s that
 * a stopping process has for all requests and answers.
 */
const ANSWER_MILLISECONDS = 10_000;
/**
 * Time in milliseconds for which the server repeats the request that keeps or deletes the VM of a failed deployment. If the API server does
 * not answer for longer, the server gives up. The operator then deletes the VM when the API server answers again.
 */
const LIMIT_MILLISECONDS = 300_000;

/**
 * Removes the annotation `berth.dev/answer-by`, so that the operator does not delete the VM.
 *
 * @throws StatusError when the VM no longer exists, ApiError when the API server refuses, or the signal's reason when the signal aborts.
 */
export async function keep(client: KubeClient, vm: VM, signal: AbortSignal): Promise<VM> {
  const { name, namespace = '', uid } = vm.metadata;
  const patch = { metadata: { uid, annotations: { [ANSWER_BY_ANNOTATION]: null } } };
  const write = async () => await client.mergePatch<VM>(VMS, { name, namespace }, patch, { signal });
  const kept = await repeated(write, signal).catch((error: unknown) => {
    throw isNotFound(error) || isConflict(error) ? deleted(vm) : error;
  });
  if (kept.metadata.deletionTimestamp !== undefined) {
    throw deleted(vm);
  }
  return kept;
}

/**
 * Ends a deployment that has failed: keeps the VM if `stays` is true, and deletes it otherwise. Resolves with true when the VM has been
 * kept or deleted, or no longer exists. Resolves with false when the request to the API server fails or takes too long. A request that
 * takes too long continues in the background.
 */
export async function settle(
  client: KubeClient,
  vm: VM,
  { error, stays, logger }: { error: unknown; stays: boolean; logger: Logger },
): Promise<boolean> {
  if (error instanceof ApiError && error.status === 401) {
    // No request is sent, because the API server no longer accepts the token.
    return false;
  }
  const signal = AbortSignal.timeout(LIMIT_MILLISECONDS);
  const write: Promise<unknown> = stays ? keep(client, vm, signal) : remove(client, vm, signal);
  const isWritten = write.then(
    () => true,
    (failure: unknown) => {
      const isGone = failure instanceof StatusError;
      if (!isGone) {
        const { name, namespace } = vm.metadata;
        logger.warn({ err: failure, vm: `${namespace}/${name}` }, 'the operator will delete the VM');
      }
      return isGone;
    },
  );
  const limit = new AbortController();
  const isLate = rest(ANSWER_MILLISECONDS, limit.signal).then(() => false);
  const isSettled = await Promise.race([isWritten, isLate]);
  limit.abort();
  return isSettled;
}

/** Returns the error for the caller of a deployment that ended with `error`. The message says whether the VM was deleted. */
export function answerOf(
  error: unknown,
  vm: VM,
  { isDeleted, minutes }: { isDeleted: boolean; minutes: number },
): unknown {
  const left = isDeleted ? `VM ${vm.metadata.name} was deleted` : leftToOperator(vm);
  if (error instanceof WaitEnd) {
    return error.why === 'late'
      ? new StatusError(
          504,
          `VM ${vm.metadata.name} did not run within ${minutes === 1 ? '1 minute' : `${minutes} minutes`}. ${left}. The VM waited for: ${progressOf(vm)}`,
        )
      : new StatusError(503, `The HTTP API is stopping. ${left}. Try again`);
  }
  if (isRefusal(error)) {
    const { status, reason, message } = error;
    const words = status === 401 ? 'Unauthorized: the token is no longer valid' : message;
    return new StatusError(status, `${words}. ${left}`, { reason });
  }
  if (error instanceof EndedError) {
    const { code, message, causes } = error.state;
    return new StatusError(code, `${message}. ${left}`, causes && { causes });
  }
  return error;
}

/** Error of a deployment whose VM will not run. */
export class EndedError extends Error {
  override readonly name = 'EndedError';
  readonly state: Ended;

  constructor(state: Ended) {
    super(state.message);
    this.state = state;
  }
}

export function deleted({ metadata }: VM): StatusError {
  return new StatusError(409, `VM ${metadata.name} was deleted before it ran`);
}

function leftToOperator({ metadata }: VM): string {
  const time = metadata.annotations?.[ANSWER_BY_ANNOTATION];
  return time === undefined
    ? `VM ${metadata.name} was not deleted`
    : `The operator deletes VM ${metadata.name} at ${time}`;
}

/**
 * Deletes the VM, but not a later VM of the same name.
 *
 * @throws ApiError when the API server refuses, or the signal's reason when the signal aborts.
 */
async function remove(client: KubeClient, { metadata }: VM, signal: AbortSignal): Promise<void> {
  const { name, namespace = '', uid } = metadata;
  const write = async () => await client.delete(VMS, { name, namespace }, { uid, signal });
  await repeated(write, signal).catch((error: unknown) => {
    if (!isConflict(error)) {
      throw error;
    }
  });
}
