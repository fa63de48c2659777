/**
 * Deploys a VM and waits until it runs. If the deployment fails, the VM is deleted, because the caller might not know its name. Until the
 * caller gets the answer, the VM has the annotation `berth.dev/answer-by`. If this process ends before that, the operator deletes the VM
 * because of this annotation.
 */
import type { ServerResponse } from 'node:http';
import type { Logger } from 'pino';
import { settledState } from '../../api/http/deployment.ts';
import type { VMDeployBody, VMDeployQuery } from '../../api/http/vmdeploy.ts';
import type { VM } from '../../api/v1alpha1/vm.ts';
import { unlessMissing } from '../../kube/errors.ts';
import { follow } from '../../kube/follow.ts';
import type { Ref } from '../../kube/objects.ts';
import type { Caller } from '../callers/caller.ts';
import { createAs } from '../callers/objects.ts';
import { VMS } from '../../api/v1alpha1/resources.ts';
import { answerOf, deleted, EndedError, keep, settle } from './ending.ts';
import { isNamed, timeoutMinutes, vmOf } from '../../api/http/vmspec.ts';
import { trimmed } from './trimmed.ts';
import { WaitEnd, type WaitingRequests } from '../http/waiting.ts';

/**
 * Time in milliseconds between the deployment's time limit and the time in the annotation `berth.dev/answer-by`. It is longer than
 * the usual difference between the operator's clock and the clock of this process. Otherwise the operator could delete the VM too early.
 */
const ANSWER_MILLISECONDS = 60_000;

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
export function waitingBody({ name, shouldGenerateName, timeout }: VMDeployBody): VMDeployBody {
  return { name, shouldGenerateName, timeout };
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
    return await createAs(caller.client, VMS, vmOf(body, { namespace }));
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
      const answerBy = Date.now() + milliseconds + ANSWER_MILLISECONDS;
      const timer = setTimeout(() => end.abort(new WaitEnd('late')), milliseconds);
      try {
        const vm = await createTrimmed(request, answerBy);
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
    const { caller, body } = request;
    const { logger, fullStatus } = this.#options;
    const latest = { vm: created };
    try {
      await untilRunning(request, latest, { signal, fullStatus });
      return await keep(caller.client, latest.vm, signal);
    } catch (error) {
      const stays = error instanceof WaitEnd && error.why === 'gone' && isNamed(body);
      const isDeleted = await settle(caller.client, latest.vm, { error, stays, logger });
      throw answerOf(error, latest.vm, { isDeleted, minutes: timeoutMinutes(body) });
    }
  }
}

/** Creates the VM for a request that waits. A separate function does this, because {@link Deploys.deploy} would keep its variables in memory. */
async function createTrimmed({ caller, namespace, body }: DeployRequest, answerBy: number): Promise<VM> {
  return trimmed(await createAs(caller.client, VMS, vmOf(body, { namespace, answerBy })));
}

/**
 * Follows the VM until it runs. Sets `latest.vm` to each new version. @throws EndedError when the VM cannot run, or the signal's reason
 * when the signal aborts.
 */
async function untilRunning(
  { caller, query }: DeployRequest,
  latest: { vm: VM },
  { signal, fullStatus }: { signal: AbortSignal; fullStatus: number | undefined },
): Promise<void> {
  const { client, watches } = caller;
  const from = latest.vm.metadata;
  const wanted = { ...query, fullStatus };
  for await (const version of follow<VM>({ client, watches, type: VMS, from, trim: trimmed, signal })) {
    const readAgain = async () => await unlessMissing(client.get(VMS, refOf(version), { signal }));
    const { vm, state } = await settledState(version, wanted, readAgain, signal);
    latest.vm = trimmed(vm);
    if (state === 'done') {
      return;
    }
    if (state !== 'waiting') {
      throw new EndedError(state);
    }
  }
  throw deleted(latest.vm);
}

function refOf({ metadata: { name, namespace = '' } }: VM): Ref {
  return { namespace, name };
}
