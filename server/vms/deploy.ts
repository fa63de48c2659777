/**
 * Deploys a VM and waits until it runs. A VM whose deployment has no good answer is deleted, because the caller may not know its name. If
 * this process ends before, the operator deletes the VM: it has the annotation `berth.dev/answer-by` until the caller gets the answer.
 */
import type { ServerResponse } from 'node:http';
import type { Logger } from 'pino';
import type { VMDeployBody, VMDeployQuery } from '../../api/http/vmdeploy.ts';
import type { VM } from '../../api/v1alpha1/vm.ts';
import { follow } from '../../kube/follow.ts';
import type { Caller } from '../callers/caller.ts';
import { createAs } from '../callers/objects.ts';
import { StatusError } from '../http/errors.ts';
import { VMS } from '../resources.ts';
import { answerOf, deleted, keep, settle } from './ending.ts';
import { settledState } from './settled.ts';
import { isNamed, timeoutMinutes, vmOf } from './spec.ts';
import { trimmed } from './trimmed.ts';
import { WaitEnd, type WaitingRequests } from '../http/waiting.ts';

/** Time after the deployment in which the answer is taken. The clocks of this process and of the operator differ by less. */
const ANSWER_MILLISECONDS = 60_000;

export interface DeployRequest {
  readonly caller: Caller;
  readonly namespace: string;
  readonly body: VMDeployBody;
  readonly query: VMDeployQuery;
}

export interface DeploysOptions {
  readonly waiting: WaitingRequests;
  readonly logger: Logger;
  /** Status code when no host has room, from the setting `http.aliases`. With it, deployments do not wait unless the request says so. */
  readonly fullStatus: number | undefined;
}

export class Deploys {
  readonly #options: DeploysOptions;

  constructor(options: DeploysOptions) {
    this.#options = options;
  }

  /** Creates the VM and resolves without waiting. @throws ApiError when the API server refuses. */
  async create({ caller, namespace, body }: DeployRequest): Promise<VM> {
    return await createAs(caller.client, VMS, vmOf(body, { namespace }));
  }

  /**
   * Creates the VM and resolves when it runs. The VM stays if the promise resolves, or if the client chose its name and is gone. The client
   * is gone when `response` closes.
   *
   * @throws StatusError or ApiError with the answer for the caller.
   */
  async deploy(request: DeployRequest, response: ServerResponse): Promise<VM> {
    const { caller, namespace, body } = request;
    const user = await caller.client.username();
    return await this.#options.waiting.run(response, { user, namespace }, async (end) => {
      const milliseconds = timeoutMinutes(body) * 60_000;
      const answerBy = Date.now() + milliseconds + ANSWER_MILLISECONDS;
      const timer = setTimeout(() => end.abort(new WaitEnd('late')), milliseconds);
      try {
        const vm = trimmed(await createAs(caller.client, VMS, vmOf(body, { namespace, answerBy })));
        return await this.#answer(request, vm, end.signal);
      } finally {
        clearTimeout(timer);
      }
    });
  }

  /** Waits for the VM that was created, and keeps it or deletes it. */
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

/** Follows the VM until it runs. `latest` has its last known version. @throws StatusError when it will not run; the signal's reason. */
async function untilRunning(
  { caller, query }: DeployRequest,
  latest: { vm: VM },
  { signal, fullStatus }: { signal: AbortSignal; fullStatus: number | undefined },
): Promise<void> {
  const { client, watches } = caller;
  const from = latest.vm.metadata;
  const wanted = { ...query, fullStatus };
  for await (const version of follow<VM>({ client, watches, type: VMS, from, trim: trimmed, signal })) {
    const { vm, state } = await settledState(client, version, wanted, signal);
    latest.vm = trimmed(vm);
    if (state instanceof StatusError) {
      throw state;
    }
    if (state === 'done') {
      return;
    }
  }
  throw deleted(latest.vm);
}
