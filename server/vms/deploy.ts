/**
 * Deploys a VM and waits until it runs. If the deployment fails, the VM is deleted, because the caller might not know its name. While the
 * API server of Kubernetes does not answer, the request that keeps or deletes the VM is repeated. If it never succeeds, or if this process
 * ends before the answer, the operator deletes the VM at the time in `spec.aliveUntil`.
 */
import type { ServerResponse } from 'node:http';
import type { Logger } from 'pino';
import { discard, keep, lateMessage, untilDeployed, withDeployLife } from '../../actions/deploy.ts';
import { ActionError } from '../../actions/error.ts';
import type { VMDeployBody, VMDeployQuery } from '../../api/http/vm.ts';
import { isNamed, timeoutMinutes, vmOf } from '../../api/http/vmspec.ts';
import { VMS } from '../../api/v1alpha1/resources.ts';
import type { VM } from '../../api/v1alpha1/vm.ts';
import { keepFields } from '../../kube/objects.ts';
import { rest } from '../../base/time.ts';
import type { KubeClient } from '../../kube/client.ts';
import { ApiError, isRefusal } from '../../kube/errors.ts';
import { repeated } from '../../kube/patience.ts';
import type { Caller } from '../callers/caller.ts';
import { createAs } from '../callers/objects.ts';
import { answerToAction, StatusError } from '../http/errors.ts';
import { WaitEnd, type WaitingRequests } from '../http/waiting.ts';

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

export interface DeployRequest {
  readonly caller: Caller;
  readonly namespace: string;
  /** Body of the request. While the request waits for the VM, it has only the fields of {@link waitingBody}. */
  body: VMDeployBody;
  readonly query: VMDeployQuery;
}

/**
 * Returns the body with only the fields that a waiting request needs. A body can have a mebibyte, and the bodies of a thousand waiting
 * requests would not fit into the server's memory.
 */
export function waitingBody({ name, shouldGenerateName, timeout, aliveUntil }: VMDeployBody): VMDeployBody {
  return { name, shouldGenerateName, timeout, aliveUntil };
}

export interface DeploysOptions {
  readonly waiting: WaitingRequests;
  readonly logger: Logger;
  /**
   * Status code of the answer to a deployment that fails because no host has room, from the setting `http.aliases`. This value also decides
   * about requests without the parameter `whenFull`. If the value is undefined, such a request waits until a host has room. If the value is
   * set, such a request fails immediately when no host has room.
   */
  readonly fullStatus: number | undefined;
}

export class Deploys {
  readonly #options: DeploysOptions;

  constructor(options: DeploysOptions) {
    this.#options = options;
  }

  /** Creates the VM, but does not wait until it runs. @throws ApiError when the API server refuses. */
  async create({ caller, namespace, body }: DeployRequest): Promise<VM> {
    return await createAs(caller.client, VMS, vmOf(body, namespace));
  }

  /**
   * Creates the VM and resolves when it runs. If the promise rejects, the VM is deleted. There is one exception: if the client chose the
   * name of the VM and then closed the connection, the VM stays. `response` closes when the client closes the connection.
   *
   * @throws StatusError or ApiError with the answer for the caller.
   */
  async deploy(request: DeployRequest, response: ServerResponse): Promise<VM> {
    const { caller, namespace } = request;
    const user = await caller.client.username();
    return await this.#options.waiting.run(response, { user, namespace }, async (end) => {
      const milliseconds = timeoutMinutes(request.body) * 60_000;
      const timer = setTimeout(() => end.abort(new WaitEnd('late')), milliseconds);
      try {
        const vm = await createTrimmed(request);
        request.body = waitingBody(request.body);
        return await this.#answer(request, vm, end.signal);
      } finally {
        clearTimeout(timer);
      }
    });
  }

  /**
   * Waits until the created VM runs. If the wait ends before the VM runs, the VM is deleted, except in the case that {@link Deploys.deploy}
   * describes.
   *
   * @throws the error for the caller
   */
  async #answer(request: DeployRequest, created: VM, signal: AbortSignal): Promise<VM> {
    const { caller, body, query } = request;
    const { logger, fullStatus } = this.#options;
    const latest = { vm: created };
    const whenFull = query.whenFull ?? (fullStatus === undefined ? 'wait' : 'fail');
    const wanted = { waitFor: query.waitFor, whenFull };
    const { aliveUntil } = body;
    try {
      return await untilDeployed(latest, { ...caller, wanted, aliveUntil, signal, trim: trimmed });
    } catch (error) {
      const stays = error instanceof WaitEnd && error.why === 'gone' && isNamed(body);
      const isDeleted = await keepOrDiscard(caller.client, latest.vm, { error, stays, aliveUntil, logger });
      throw answerOf(error, latest.vm, { isDeleted, minutes: timeoutMinutes(body), fullStatus });
    }
  }
}

/** Creates the VM for a request that waits. A separate function does this, because {@link Deploys.deploy} would keep its variables in memory. */
async function createTrimmed({ caller, namespace, body }: DeployRequest): Promise<VM> {
  const vm = withDeployLife(vmOf(body, namespace), timeoutMinutes(body));
  return trimmed(await createAs(caller.client, VMS, vm));
}

interface Failure {
  readonly error: unknown;
  readonly stays: boolean;
  /** Time until which the VM lives if it stays. If it is undefined, nothing ends its life. */
  readonly aliveUntil?: string | undefined;
  readonly logger: Logger;
}

/**
 * Ends a deployment that has failed: keeps the VM if `stays` is true, and deletes it otherwise. A VM that is kept gets `aliveUntil`. Resolves with true when the VM has been
 * kept or deleted, or no longer exists. Resolves with false when the request to the API server fails or takes too long. A request that
 * takes too long continues in the background.
 */
export async function keepOrDiscard(
  client: KubeClient,
  vm: VM,
  { error, stays, aliveUntil, logger }: Failure,
): Promise<boolean> {
  if (error instanceof ApiError && error.status === 401) {
    // No request is sent, because the API server no longer accepts the token.
    return false;
  }
  const signal = AbortSignal.timeout(LIMIT_MILLISECONDS);
  const write: Promise<unknown> = stays
    ? keep(client, vm, { aliveUntil, signal })
    : repeated(async () => await discard(client, vm, signal), signal);
  const isWritten = write.then(
    () => true,
    (failure: unknown) => {
      const isGone = failure instanceof ActionError;
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

/**
 * Returns the error for the caller of a deployment that ended with `error`. The message says whether the VM was deleted. `fullStatus` is the
 * status code if no host has room.
 */
export function answerOf(
  error: unknown,
  vm: VM,
  {
    isDeleted,
    minutes,
    fullStatus,
  }: { isDeleted: boolean; minutes: number; fullStatus?: number | undefined },
): unknown {
  const left = isDeleted ? `VM ${vm.metadata.name} was deleted` : leftToOperator(vm);
  if (error instanceof WaitEnd) {
    return error.why === 'late'
      ? new StatusError(504, lateMessage(vm, minutes, left))
      : new StatusError(503, `The HTTP API is stopping. ${left}. Try again`);
  }
  if (isRefusal(error)) {
    const { status, reason, message } = error;
    const text = status === 401 ? 'Unauthorized: the token is no longer valid' : message;
    return new StatusError(status, `${text}. ${left}`, { reason });
  }
  return error instanceof ActionError && error.kind !== 'gone'
    ? answerToAction(error, { end: `. ${left}`, roomStatus: fullStatus })
    : error;
}

function leftToOperator({ metadata, spec: { aliveUntil: time } }: VM): string {
  return time === undefined
    ? `VM ${metadata.name} was not deleted`
    : `The operator deletes VM ${metadata.name} at ${time}`;
}

/**
 * Returns the VM with only the fields that a waiting request needs. A thousand VMs with all their labels would not fit into the server's
 * memory.
 */
export function trimmed({ apiVersion, kind, metadata, spec, status }: VM): VM {
  return {
    apiVersion,
    kind,
    metadata: keepFields(metadata, ['name', 'namespace', 'uid', 'resourceVersion', 'deletionTimestamp']),
    spec: keepFields(spec, ['aliveUntil', 'terminationGracePeriodSeconds']),
    ...(status === undefined ? {} : { status }),
  };
}
