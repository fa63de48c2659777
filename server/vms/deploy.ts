/**
 * Deploys a VM and waits until it runs. A VM whose deployment has no good answer is deleted, because the caller may not know its name. If
 * this process ends before, the operator deletes the VM: it has the annotation `berth.dev/answer-by` until the caller gets the answer.
 */
import type { ServerResponse } from 'node:http';
import type { Logger } from 'pino';
import type { VMDeployBody, VMDeployQuery } from '../../api/http/vmdeploy.ts';
import { ANSWER_BY_ANNOTATION } from '../../api/v1alpha1/names.ts';
import type { VM } from '../../api/v1alpha1/vm.ts';
import { Backoff } from '../../base/backoff.ts';
import { pause } from '../../base/time.ts';
import { isConflict, isNotFound } from '../../kube/errors.ts';
import { follow } from '../../kube/follow.ts';
import { Patience } from '../../kube/patience.ts';
import type { Caller } from '../callers/caller.ts';
import { createAs } from '../callers/objects.ts';
import { StatusError } from '../http/errors.ts';
import { VMS } from '../resources.ts';
import { progressOf } from './progress.ts';
import { settledState } from './settled.ts';
import { isNamed, timeoutMinutes, vmOf } from './spec.ts';
import { WaitEnd, type WaitingRequests } from '../http/waiting.ts';

/** Time after the deployment in which the answer is taken. The clocks of this process and of the operator differ by less. */
const ANSWER_MILLISECONDS = 60_000;
/** Time limit of the last write for a VM without a good answer. A stopping process has less than 15 s for it. */
const LAST_WRITE_MILLISECONDS = 10_000;
/** Waits between two attempts to keep a VM, while the API server is away. */
const BACKOFF = { firstMilliseconds: 200, capMilliseconds: 5_000, jitter: 1 } as const;

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
    return await this.#options.waiting.run(response, user, async (end) => {
      const milliseconds = timeoutMinutes(body) * 60_000;
      const answerBy = Date.now() + milliseconds + ANSWER_MILLISECONDS;
      const timer = setTimeout(() => end.abort(new WaitEnd('late')), milliseconds);
      try {
        const vm = await createAs(caller.client, VMS, vmOf(body, { namespace, answerBy }));
        return await this.#answer(request, vm, end.signal);
      } finally {
        clearTimeout(timer);
      }
    });
  }

  /** Waits for the VM that was created, and keeps it or deletes it. */
  async #answer(request: DeployRequest, created: VM, signal: AbortSignal): Promise<VM> {
    const latest = { vm: created };
    try {
      await untilRunning(request, latest, { signal, fullStatus: this.#options.fullStatus });
      return await keep(request, latest.vm, signal);
    } catch (error) {
      await this.#giveUp(request, latest.vm, error);
      throw error instanceof WaitEnd ? statusOf(error, request.body, latest.vm) : error;
    }
  }

  /** Deletes the VM. If the client chose the name and is gone, the VM stays, because the client may use or delete it by its name. */
  async #giveUp(request: DeployRequest, vm: VM, error: unknown): Promise<void> {
    const { name, namespace = '', uid } = vm.metadata;
    try {
      if (error instanceof WaitEnd && error.why === 'gone' && isNamed(request.body)) {
        await keep(request, vm, AbortSignal.timeout(LAST_WRITE_MILLISECONDS));
      } else {
        const options = { uid, deadlineMilliseconds: LAST_WRITE_MILLISECONDS };
        await request.caller.client.delete(VMS, { name, namespace }, options);
      }
    } catch (failure) {
      if (!isConflict(failure) && !(failure instanceof StatusError)) {
        this.#options.logger.warn(
          { err: failure, vm: `${namespace}/${name}` },
          'the operator will delete the VM',
        );
      }
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
  for await (const version of follow<VM>({ client, watches, type: VMS, from, signal })) {
    const { vm, state } = await settledState(client, version, wanted, signal);
    latest.vm = vm;
    if (state instanceof StatusError) {
      throw state;
    }
    if (state === 'done') {
      return;
    }
  }
  throw deleted(latest.vm);
}

/** Takes the annotation from the VM, so that it stays. @throws StatusError when the VM is gone; ApiError; the signal's reason. */
async function keep({ caller }: DeployRequest, vm: VM, signal: AbortSignal): Promise<VM> {
  const { name, namespace = '', uid } = vm.metadata;
  const patch = { metadata: { uid, annotations: { [ANSWER_BY_ANNOTATION]: null } } };
  const backoff = new Backoff(BACKOFF);
  const patience = new Patience();
  for (;;) {
    try {
      const kept = await caller.client.mergePatch<VM>(VMS, { name, namespace }, patch, { signal });
      signal.throwIfAborted();
      if (kept.metadata.deletionTimestamp === undefined) {
        return kept;
      }
      throw deleted(vm);
    } catch (error) {
      signal.throwIfAborted();
      if (isNotFound(error) || isConflict(error)) {
        throw deleted(vm);
      }
      if (patience.endsWith(error) || error instanceof StatusError) {
        throw error;
      }
    }
    await pause(backoff.next(), signal);
  }
}

function deleted({ metadata }: VM): StatusError {
  return new StatusError(409, `VM ${metadata.name} was deleted before it ran`);
}

function statusOf({ why }: WaitEnd, body: VMDeployBody, vm: VM): StatusError {
  const { name } = vm.metadata;
  if (why !== 'late') {
    return new StatusError(503, `The HTTP API is stopping, and VM ${name} was deleted. Try again`);
  }
  const minutes = timeoutMinutes(body);
  const limit = minutes === 1 ? '1 minute' : `${minutes} minutes`;
  return new StatusError(
    504,
    `VM ${name} did not run within ${limit}, and was deleted. It waited for: ${progressOf(vm)}`,
  );
}
