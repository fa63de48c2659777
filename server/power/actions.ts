/**
 * Requests power actions. The HTTP API writes the request into the status of the Server. The operator calls the controller of the server, and
 * writes into the status how far it is.
 */
import { randomUUID } from 'node:crypto';
import { SERVERS, VMS } from '../../api/v1alpha1/resources.ts';
import type { LastAction, PowerAction, PowerRequest, Server } from '../../api/v1alpha1/server.ts';
import { timestamp } from '../../base/time.ts';
import type { KubeClient } from '../../kube/client.ts';
import { retryChange } from '../../kube/conflicts.ts';
import { isConflict, isNotFound, unlessMissing } from '../../kube/errors.ts';
import { HttpError } from '../../kube/serving/httperror.ts';
import type { PowerCaller } from './callers.ts';
import type { Inventory } from './inventory.ts';
import { hasEnded } from '../../api/http/host.ts';
import { EMULATOR_UID_LABEL, GROUP, VM_UID_LABEL } from '../../api/v1alpha1/names.ts';
import { type ContainerStatus, type Pod, PODS } from '../../kube/core.ts';
import type { Authorizer, User } from '../../kube/serving/authorization.ts';

/** Time in milliseconds in which the controller must accept an action. Clients of the power API wait 15 to 30 s for an answer. */
const ACCEPT_MILLISECONDS = 15_000;
/** Time in milliseconds for which the same request of the same caller does not begin another action. Clients repeat lost requests. */
const SAME_MILLISECONDS = 30_000;
/** Longest name of a caller in the status of a Server. */
const BY_LENGTH = 512;

/** What a Server says about its actions. */
type Activity = Pick<NonNullable<Server['status']>, 'power' | 'request' | 'lastAction'>;

/** Decision about an action: the id of the action to wait for, or nothing to do, or a new action. */
export type PowerDecision = { readonly join: string } | 'done' | 'begin';

/** Action that a caller asks for. `by` is the name of the caller. */
type Asked = Pick<PowerRequest, 'action' | 'by'>;

/**
 * Decides about an action. An action of the same kind that has not ended is joined.
 *
 * @throws HttpError 409 while another action has not ended.
 */
export function decide(activity: Activity, asked: Asked, now: number): PowerDecision {
  const active = activeOf(activity);
  if (active === undefined) {
    return isRepeated(activity, asked, now) ? 'done' : 'begin';
  }
  if (active.action !== asked.action) {
    throw new HttpError(409, `The server is busy: ${active.action} has not ended yet. Try again later`);
  }
  return { join: active.id };
}

/** Returns the action that has not ended: the one that is requested, or else the one that runs. */
function activeOf({ request, lastAction }: Activity): PowerRequest | undefined {
  if (request !== undefined && request.id !== lastAction?.id) {
    return request;
  }
  return lastAction?.completedAt === undefined ? lastAction : undefined;
}

/** Reports whether the caller asks again for an action that has just succeeded, and whose result is still there. */
function isRepeated({ lastAction, power }: Activity, { action, by }: Asked, now: number): boolean {
  if (lastAction?.result !== 'Succeeded' || lastAction.action !== action || lastAction.by !== by) {
    return false;
  }
  return now - Date.parse(lastAction.completedAt ?? '') < SAME_MILLISECONDS && !isUndone(action, power);
}

/** Reports whether the power has changed since an action, for example because a person pressed the button of the server. */
function isUndone(action: PowerAction, power: Activity['power']): boolean {
  return (action === 'On' && power === 'Off') || (action === 'Off' && power === 'On');
}

/** State of an action: accepted, or not yet (undefined). */
type Outcome = { readonly accepted: true } | { readonly refused: string } | undefined;

/** Returns how far the action is. @throws HttpError 502 when it failed, 404 or 502 when nobody knows of it any more. */
export function outcomeOf(server: Readonly<Server> | undefined, id: string): Outcome {
  if (server === undefined) {
    throw new HttpError(404, 'The server was deleted');
  }
  const { request, lastAction } = server.status ?? {};
  if (lastAction?.id === id) {
    return outcomeOfAction(lastAction);
  }
  return request?.id === id ? undefined : lost(server);
}

function outcomeOfAction({ action, result, message, acceptedAt }: LastAction): Outcome {
  const why = message === '' ? 'no reason is known' : message;
  if (result === 'Failed') {
    throw new HttpError(502, `${action} failed: ${why}`);
  }
  if (result === 'Refused') {
    return { refused: `${action} was refused: ${why}` };
  }
  // A waiting action runs as soon as the machines on the server have ended.
  return result === 'Running' && acceptedAt === undefined ? undefined : { accepted: true };
}

function lost({ metadata: { name } }: Readonly<Server>): never {
  throw new HttpError(502, `The action of server ${name} was replaced by another one`);
}

export interface PowerActionsOptions {
  readonly client: KubeClient;
  readonly inventory: Pick<Inventory, 'wait'>;
  readonly occupants: Pick<Occupants, 'describe'>;
}

export class PowerActions {
  readonly #o: PowerActionsOptions;

  constructor(o: PowerActionsOptions) {
    this.#o = o;
  }

  /**
   * Requests an action and waits until the controller has accepted it. If the signal aborts, the action goes on.
   *
   * @throws HttpError 404, 409 or 502 with the reason on one line; the reason of the signal; ApiError when the API server refuses.
   */
  async perform(
    server: Readonly<Server>,
    action: PowerAction,
    caller: PowerCaller,
    signal: AbortSignal,
  ): Promise<void> {
    const { name } = server.metadata;
    const id = await this.#request(server, { action, by: caller.name.slice(0, BY_LENGTH) });
    if (id === undefined) {
      return;
    }
    const late = AbortSignal.timeout(ACCEPT_MILLISECONDS);
    const outcome = await this.#outcome(name, id, AbortSignal.any([signal, late])).catch((error: unknown) => {
      throw late.aborted && error === late.reason ? tooLate(name, action) : error;
    });
    if (outcome !== undefined && 'refused' in outcome) {
      const { nodeName } = server.spec;
      const vms = nodeName === undefined ? '' : await this.#o.occupants.describe(caller, nodeName);
      throw new HttpError(409, `${outcome.refused}${vms}`);
    }
  }

  async #outcome(name: string, id: string, signal: AbortSignal): Promise<Outcome> {
    let isSeen = false;
    const read = (server: Readonly<Server> | undefined): Outcome => {
      const { request, lastAction } = server?.status ?? {};
      // The watch might not show the request yet.
      isSeen ||= request?.id === id || lastAction?.id === id;
      return isSeen || server === undefined ? outcomeOf(server, id) : undefined;
    };
    return await this.#o.inventory.wait(name, read, signal);
  }

  /** Writes the request, unless it is not needed. Returns the id of the action to wait for, or undefined if there is none. */
  async #request(server: Readonly<Server>, asked: Asked): Promise<string | undefined> {
    const { name, uid } = server.metadata;
    const begun = await retryChange(async (number) => {
      const current = number === 1 ? server : await this.#read(name, uid);
      const decision = decide(current.status ?? {}, asked, Date.now());
      if (decision !== 'begin') {
        return { id: decision === 'done' ? undefined : decision.join };
      }
      const request = { ...asked, id: randomUUID(), requestedAt: timestamp(Date.now()) };
      return (await this.#write(current, request)) ? { id: request.id } : undefined;
    });
    if (begun === undefined) {
      throw new HttpError(503, `Server ${name} changes too often. Try again later`);
    }
    return begun.id;
  }

  /** Returns the Server. @throws HttpError 404 when it was deleted. */
  async #read(name: string, uid: string | undefined): Promise<Readonly<Server>> {
    const found = await unlessMissing(this.#o.client.get(SERVERS, { name }));
    if (found === undefined || found.metadata.uid !== uid) {
      throw new HttpError(404, `Server ${name} was deleted`);
    }
    return found;
  }

  /** Writes the request. Returns false if somebody else has changed or deleted the Server. */
  async #write({ metadata }: Readonly<Server>, request: PowerRequest): Promise<boolean> {
    const { name, uid, resourceVersion } = metadata;
    const patch = { metadata: { uid, resourceVersion }, status: { request } };
    try {
      await this.#o.client.mergePatch(SERVERS, { name }, patch, { subresource: 'status' });
      return true;
    } catch (error) {
      if (isConflict(error) || isNotFound(error)) {
        return false;
      }
      throw error;
    }
  }
}

function tooLate(name: string, action: PowerAction): HttpError {
  const seconds = ACCEPT_MILLISECONDS / 1000;
  return new HttpError(
    502,
    `The controller of server ${name} has not accepted ${action} within ${seconds} s. Berth goes on with the action`,
  );
}

/** Largest number of VMs that an answer names. */
const NAMES = 10;
/** Reasons of a container whose machine keeps its place on the host, but does not run. */
const NOT_RUNNING: ReadonlySet<string> = new Set(['Stopped', 'Suspended']);

export class Occupants {
  readonly #client: KubeClient;
  readonly #authorizer: Authorizer;

  /** `client` has the identity of the HTTP API, which may list all Pods. */
  constructor(client: KubeClient, authorizer: Authorizer) {
    this.#client = client;
    this.#authorizer = authorizer;
  }

  /**
   * Returns the names of the VMs on the host that the caller may list, and the number of the other machines, as the end of a sentence. The
   * result is empty if the caller may list none. A user with a password has no rights to VMs.
   */
  async describe({ user }: PowerCaller, nodeName: string): Promise<string> {
    if (user === undefined) {
      return '';
    }
    const { items } = await this.#client.list(PODS, { fieldSelector: `spec.nodeName=${nodeName}` });
    const machines = items.filter(isRunningMachine);
    const vms = machines.filter(({ metadata }) => metadata.labels?.[VM_UID_LABEL] !== undefined);
    const visible = await this.#visibleNamespaces(user, vms);
    const names = vms
      .filter(({ metadata: { namespace = '' } }) => visible.has(namespace))
      .map(({ metadata: { namespace, name } }) => `${namespace}/${name}`)
      .toSorted()
      .slice(0, NAMES);
    const others = machines.length - names.length;
    return names.length === 0 ? '' : `: ${names.join(', ')}${others === 0 ? '' : ` and ${others} more`}`;
  }

  /** Returns the namespaces of the Pods in which the user may list VMs. */
  async #visibleNamespaces(user: User, pods: readonly Pod[]): Promise<ReadonlySet<string>> {
    const namespaces = [...new Set(pods.map(({ metadata: { namespace = '' } }) => namespace))];
    const right = { verb: 'list', group: GROUP, resource: VMS.plural };
    const answers = await Promise.all(
      namespaces.map(
        async (namespace) =>
          await this.#authorizer.authorize(user, { resourceAttributes: { ...right, namespace } }),
      ),
    );
    return new Set(namespaces.filter((_namespace, index) => answers[index]));
  }
}

function isRunningMachine(pod: Pod): boolean {
  const { labels = {} } = pod.metadata;
  const isMachine = VM_UID_LABEL in labels || EMULATOR_UID_LABEL in labels;
  const { containerStatuses = [] } = pod.status ?? {};
  return isMachine && !hasEnded(pod) && !containerStatuses.some(isOff);
}

function isOff({ state }: ContainerStatus): boolean {
  return NOT_RUNNING.has(state?.waiting?.reason ?? '');
}
