/**
 * Plans the next step of a Server's power action and of its host. One call gives at most one effect. What the status says is stored before
 * the effect begins, so a crash loses no action, and no command is sent again without need. All functions are pure.
 */
import { timestamp } from '../../base/time.ts';
import {
  type LastAction,
  type PowerAction,
  type PowerRequest,
  type Server,
  type ServerHost,
  type ServerStatus,
  WAIT_SECONDS,
} from '../../api/v1alpha1/server.ts';
import type { ObservedServer, PowerReading } from './observe.ts';
import { isByDemand, isOpen } from '../host/power.ts';
import { isReady } from '../host/observe.ts';
import { conditionIn } from '../objects/conditions.ts';

/**
 * Interval of readings of the power in milliseconds, and the interval during an action. People wait for the end of an action. At other times,
 * controllers with little power of their own are seldom asked.
 */
export const POLL_MILLISECONDS = 30_000;
export const ACTION_POLL_MILLISECONDS = 5_000;
/**
 * Time in milliseconds between the cordon of a host and the check for machines. A scheduler that has not seen the cordon yet can bind a Pod
 * in this time. A scheduler normally sees a change within 100 ms.
 */
const CORDON_MILLISECONDS = 3_000;
/**
 * Time in milliseconds after which a command without an answer is sent a second time, if the power shows no effect. Real controllers show
 * the effect of a command within 15 s.
 */
export const REPEAT_MILLISECONDS = 30_000;
/** Longest time in milliseconds from an accepted command to its effect. A shutdown by the power button takes the longest. */
export const CONFIRM_MILLISECONDS = 120_000;
/** Time in milliseconds after an accepted reboot in which the power can still show the state before the reboot. */
export const REBOOT_MILLISECONDS = 15_000;
/**
 * Time in milliseconds after the server is on again, after which the Node's condition Ready is current. Kubernetes marks a Node as not Ready
 * 40 s after its last report.
 */
const STALE_READY_MILLISECONDS = 60_000;
/** Longest time in milliseconds by which the clock of a user may be ahead. A later time of an action is in the future. */
const CLOCK_SKEW_MILLISECONDS = 60_000;
/**
 * Time in milliseconds by which an action can be older than its Server. An older one comes with a copy of an earlier object, for example from
 * a backup, and was done long ago.
 */
const COPIED_MILLISECONDS = 600_000;
/** `by` of actions from `spec.powerAction`. */
export const BY_SPEC = 'spec.powerAction';

type Effect = { readonly kind: 'send'; readonly command: PowerAction } | { readonly kind: 'cordon' };

/** Part of the status that decides what is done. */
type ActionStatus = Pick<ServerStatus, 'request' | 'lastAction' | 'lastRequestedAt' | 'host'>;

/** The next step. While `host` is undefined, a cordon that Berth set for the Server is to be removed. */
export interface ServerPlan extends ActionStatus {
  /** What to do after the status is stored. */
  readonly effect?: Effect | undefined;
  /** Time of the next reconcile in milliseconds since the epoch, besides the readings of the power. */
  readonly wakeAt?: number | undefined;
}

/** Returns the request that Berth has not begun. A request by the HTTP API or the operator comes before `spec.powerAction`. */
export function pendingRequest({
  server,
  now,
}: Pick<ObservedServer, 'server' | 'now'>): PowerRequest | undefined {
  const { request } = server.status ?? {};
  if (request !== undefined) {
    return request;
  }
  const { powerAction } = server.spec;
  return powerAction !== undefined && whyNotDone(server, now) === undefined
    ? { id: powerAction.requestedAt, by: BY_SPEC, ...powerAction }
    : undefined;
}

/** Returns why Berth does not do `spec.powerAction`, as the end of a sentence. The result is undefined if Berth does it. */
export function whyNotDone({ spec, status, metadata }: Readonly<Server>, now: number): string | undefined {
  const last = status?.lastRequestedAt;
  const requestedAt = Date.parse(spec.powerAction?.requestedAt ?? '');
  if (last !== undefined && requestedAt <= Date.parse(last)) {
    return `is ignored, because it is not later than the action of ${last}`;
  }
  if (requestedAt < Date.parse(metadata.creationTimestamp ?? '') - COPIED_MILLISECONDS) {
    return 'is ignored, because it is older than the Server';
  }
  return requestedAt > now + CLOCK_SKEW_MILLISECONDS ? 'waits, because its time is in the future' : undefined;
}

/** Returns the part of the status that decides what is done, as it is stored. */
function before({ server: { status = {} } }: ObservedServer): ActionStatus {
  const { request, lastAction, lastRequestedAt, host } = status;
  return { request, lastAction, lastRequestedAt, host };
}

/** Returns the action with its end. */
function ended(action: LastAction, result: LastAction['result'], message: string, now: number): LastAction {
  return { ...action, result, message, completedAt: timestamp(now) };
}

/** Ends the action. A host that was not switched off takes machines again. */
function end(
  observed: ObservedServer,
  action: LastAction,
  result: LastAction['result'],
  message: string,
): ServerPlan {
  const { now } = observed;
  const { host } = before(observed);
  const isReleased = host !== undefined && host.offAt === undefined;
  return {
    ...before(observed),
    lastAction: ended(action, result, message, now),
    host: isReleased ? undefined : host,
    wakeAt: now,
  };
}

/** Returns the time if it is in the future. A time in the past must not wake a reconcile, which would then run without a pause. */
function future(at: number, now: number): number | undefined {
  return at > now ? at : undefined;
}

/** Plans the way to a command that ends everything on the host: cordon, check for machines, send. */
export function leave(observed: ObservedServer, action: LastAction, command: PowerAction): ServerPlan {
  if (observed.server.spec.nodeName === undefined) {
    return send(observed, action, command);
  }
  const waiting = occupants(observed, action) > 0 ? occupiedPlan(observed, action) : undefined;
  const isOver = waiting?.lastAction?.completedAt !== undefined;
  return isOver ? waiting : (cordonedPlan(observed, waiting) ?? send(observed, action, command));
}

/** Returns the plan for a host with machines. The result is undefined if their end is forced. */
function occupiedPlan(observed: ObservedServer, action: LastAction): ServerPlan | undefined {
  switch (whenOccupied(observed, action)) {
    case 'Force':
      return undefined;
    case 'Wait':
      return waitForMachines(observed, action);
    case 'Refuse':
    default:
      return end(observed, action, 'Refused', occupiedText(observed));
  }
}

/**
 * Returns the number of machines that forbid the action. For power by demand, these are machines in any state and tasks, because a host with
 * the disk of a stopped VM stays reachable. Such a VM can have come since the policy looked at the host.
 */
function occupants({ machines, carried }: ObservedServer, action: LastAction): number {
  return isByDemand(action) ? carried : machines;
}

/** Power by demand never ends a machine, and does not wait for its end: another machine can have begun since it looked at the host. */
function whenOccupied({ server }: Pick<ObservedServer, 'server'>, action: LastAction) {
  return isByDemand(action) ? 'Refuse' : server.spec.policy?.whenOccupied;
}

/** Returns the plan while the host is not cordoned for long enough, or waits for its machines. */
function cordonedPlan(observed: ObservedServer, waiting: ServerPlan | undefined): ServerPlan | undefined {
  const { node, now } = observed;
  const plan = waiting ?? before(observed);
  const { host } = plan;
  // The cordon is repeated if the operator crashed before it, or if somebody removed it.
  if (node !== undefined && node.spec?.unschedulable !== true) {
    return {
      ...plan,
      host: { ...host, cordonedAt: timestamp(now) },
      effect: { kind: 'cordon' },
      wakeAt: now,
    };
  }
  // A host without a Node gets no machines.
  const settled = host?.cordonedAt === undefined ? now : Date.parse(host.cordonedAt) + CORDON_MILLISECONDS;
  return waiting ?? (now < settled ? { ...plan, wakeAt: settled } : undefined);
}

function waitForMachines(observed: ObservedServer, action: LastAction): ServerPlan {
  const { server, now } = observed;
  const seconds = server.spec.policy?.waitSeconds ?? WAIT_SECONDS;
  const until = Date.parse(action.startedAt) + seconds * 1000;
  if (now >= until) {
    const message = `${occupiedText(observed)} after a wait of ${seconds} s`;
    return end(observed, action, 'Refused', message);
  }
  const message = `${occupiedText(observed)}. Berth waits until ${timestamp(until)}`;
  return { ...before(observed), lastAction: { ...action, result: 'Waiting', message }, wakeAt: until };
}

/** Says how many machines run on the host. It names none, because everybody who may read Servers reads this text. */
function occupiedText({ server, machines, carried }: ObservedServer): string {
  const { nodeName } = server.spec;
  if (machines === 0) {
    return carried === 1
      ? `1 VM or task needs host ${nodeName}`
      : `${carried} VMs and tasks need host ${nodeName}`;
  }
  return machines === 1
    ? `1 machine runs on host ${nodeName}`
    : `${machines} machines run on host ${nodeName}`;
}

/** Plans a command. Before it is sent, the status says that it is about to be sent, and that the host goes off. */
function send(observed: ObservedServer, action: LastAction, command: PowerAction, attempts = 1): ServerPlan {
  const begunAt = timestamp(observed.now);
  const { host } = before(observed);
  const isLeaving = observed.server.spec.nodeName !== undefined && command !== 'On';
  return {
    ...before(observed),
    lastAction: { ...action, result: 'Running', message: '', call: { action: command, begunAt, attempts } },
    host: isLeaving ? leftHost(observed, host, begunAt) : host,
    effect: { kind: 'send', command },
  };
}

function leftHost({ node }: ObservedServer, host: ServerHost = {}, now: string): ServerHost {
  const bootID = host.bootID ?? node?.status?.nodeInfo?.bootID;
  return { ...host, offAt: host.offAt ?? now, onAt: undefined, bootID };
}

/** Plans the return of a host that Berth switched off or cordoned. */
function planHost(observed: ObservedServer): ServerPlan {
  const { reading, now } = observed;
  const { host } = before(observed);
  if (host === undefined) {
    return before(observed);
  }
  if (host.offAt === undefined) {
    return { ...before(observed), host: undefined };
  }
  if (host.onAt === undefined) {
    return reading?.power === 'On'
      ? { ...before(observed), host: { ...host, onAt: timestamp(now) }, wakeAt: now }
      : before(observed);
  }
  if (hasReturned(observed, host, Date.parse(host.onAt))) {
    return { ...before(observed), host: undefined };
  }
  return { ...before(observed), wakeAt: future(Date.parse(host.onAt) + STALE_READY_MILLISECONDS, now) };
}

/** Returns true if the Node is Ready by a report from after the time when the server was on again. */
function hasReturned({ node, now }: ObservedServer, { bootID }: ServerHost, onAt: number): boolean {
  if (node === undefined || !isReady(node)) {
    return false;
  }
  const hasBooted = bootID !== undefined && node.status?.nodeInfo?.bootID !== bootID;
  const readySince = Date.parse(conditionIn(node.status, 'Ready')?.lastTransitionTime ?? '');
  return hasBooted || readySince >= onAt || now >= onAt + STALE_READY_MILLISECONDS;
}

export function planServer(observed: ObservedServer): ServerPlan {
  const { lastAction } = observed.server.status ?? {};
  if (isOpen(lastAction)) {
    return continueAction(observed, lastAction);
  }
  const pending = pendingRequest(observed);
  return pending === undefined ? planHost(observed) : beginAction(observed, pending);
}

function beginAction(observed: ObservedServer, { id, action, requestedAt, by }: PowerRequest): ServerPlan {
  const { now, problem } = observed;
  const { request, lastRequestedAt } = before(observed);
  const isLatest = lastRequestedAt === undefined || Date.parse(requestedAt) > Date.parse(lastRequestedAt);
  const startedAt = timestamp(now);
  const begun: LastAction = { id, action, requestedAt, by, result: 'Running', message: '', startedAt };
  return {
    ...before(observed),
    request: request?.id === id ? undefined : request,
    lastRequestedAt: isLatest ? requestedAt : lastRequestedAt,
    lastAction: problem === undefined ? begun : ended(begun, 'Failed', problem.message, now),
    wakeAt: now,
  };
}

function continueAction(observed: ObservedServer, action: LastAction): ServerPlan {
  if (observed.problem !== undefined) {
    return end(observed, action, 'Failed', observed.problem.message);
  }
  return action.call === undefined ? firstCommand(observed, action) : confirm(observed, action, action.call);
}

function firstCommand(observed: ObservedServer, action: LastAction): ServerPlan {
  const { reading, canReboot } = observed;
  if (reading === undefined) {
    return { ...before(observed), wakeAt: observed.now };
  }
  if (reading.error !== undefined) {
    return end(observed, action, 'Failed', reading.error.message);
  }
  const { name } = observed.server.metadata;
  if (action.action !== 'Reboot' && action.action === reading.power) {
    const state = reading.power === 'On' ? 'on' : 'off';
    return end(observed, action, 'Succeeded', `Server ${name} is already ${state}`);
  }
  // Like in other systems, a reboot of a server that is off switches it on.
  if (action.action === 'On' || reading.power === 'Off') {
    return send(observed, action, 'On');
  }
  return leave(observed, action, action.action === 'Reboot' && canReboot ? 'Reboot' : 'Off');
}

/**
 * Returns the status after a command: the controller accepted it, refused it, or its answer is not known. Later readings of the power decide
 * in the last case.
 */
export function afterSend(
  { lastAction, host, ...status }: ActionStatus,
  failure: { readonly message: string; readonly isRefusal: boolean } | undefined,
  now: number,
): ActionStatus {
  if (lastAction?.call === undefined) {
    return { ...status, lastAction, host };
  }
  if (failure === undefined) {
    return { ...status, lastAction: withAcceptance(lastAction, lastAction.call, now), host };
  }
  if (!failure.isRefusal) {
    return { ...status, lastAction: { ...lastAction, message: failure.message }, host };
  }
  const { cordonedAt } = host ?? {};
  // After the first command of an action, the host is as before. After the second one of a reboot, it is off.
  const isOff = lastAction.call.action === 'On';
  return {
    ...status,
    lastAction: ended(lastAction, 'Failed', failure.message, now),
    host: isOff || cordonedAt === undefined ? host : { cordonedAt },
  };
}

type Call = NonNullable<LastAction['call']>;

/** Compares the power with the command that was sent. */
function confirm(observed: ObservedServer, action: LastAction, call: Call): ServerPlan {
  const { reading, now, server } = observed;
  if (hasEffect(call, reading)) {
    return afterEffect(observed, withAcceptance(action, call, now), call);
  }
  if (call.acceptedAt === undefined) {
    return unanswered(observed, action, call);
  }
  if (now < Date.parse(call.acceptedAt) + CONFIRM_MILLISECONDS) {
    return { ...before(observed), lastAction: action };
  }
  const { name } = server.metadata;
  const message = `The controller of Server ${name} accepted ${call.action}, but ${missedEffect(reading)}`;
  return end(observed, action, 'Failed', message);
}

function missedEffect(reading: PowerReading | undefined): string {
  if (reading?.error !== undefined) {
    return `then the power could not be read: ${reading.error.message}`;
  }
  return `the server is still ${reading?.power === 'Off' ? 'off' : 'on'} after ${CONFIRM_MILLISECONDS / 1000} s`;
}

/** Returns true if the reading shows the effect of the command. A reading from before the command shows nothing. */
function hasEffect({ action, begunAt, acceptedAt }: Call, reading: PowerReading | undefined): boolean {
  const { power, at = 0 } = reading ?? {};
  if (power === undefined || at < Date.parse(begunAt)) {
    return false;
  }
  if (action !== 'Reboot') {
    return power === action;
  }
  return power === 'On' && acceptedAt !== undefined && at >= Date.parse(acceptedAt) + REBOOT_MILLISECONDS;
}

function withAcceptance(action: LastAction, call: Call, now: number): LastAction {
  const acceptedAt = timestamp(now);
  return {
    ...action,
    acceptedAt: action.acceptedAt ?? acceptedAt,
    call: { ...call, acceptedAt: call.acceptedAt ?? acceptedAt },
  };
}

function afterEffect(observed: ObservedServer, action: LastAction, call: Call): ServerPlan {
  const { name } = observed.server.metadata;
  if (action.action === 'Reboot' && call.action === 'Off') {
    return send(observed, action, 'On');
  }
  return end(observed, action, 'Succeeded', `The controller of Server ${name} confirmed ${action.action}`);
}

/**
 * Plans the next step after a command whose answer is not known, because the operator or the connection ended. The power shows whether the
 * command had its effect. Only On and Off are sent a second time, and only after a reading that shows no effect.
 */
function unanswered(observed: ObservedServer, action: LastAction, call: Call): ServerPlan {
  const { now, reading } = observed;
  const begunAt = Date.parse(call.begunAt);
  const due = begunAt + REPEAT_MILLISECONDS;
  const isSeen = reading?.power !== undefined && reading.at >= due;
  if (isSeen && mayRepeat(observed, action, call)) {
    return send(observed, action, call.action, call.attempts + 1);
  }
  if (!isSeen && now < begunAt + CONFIRM_MILLISECONDS) {
    return { ...before(observed), lastAction: action, wakeAt: future(due, now) };
  }
  const { name } = observed.server.metadata;
  const message = `Whether the controller of Server ${name} got the command ${call.action} is not known, and its effect was not seen`;
  return end(observed, action, 'Failed', action.message === '' ? message : `${message}: ${action.message}`);
}

function mayRepeat(observed: ObservedServer, action: LastAction, call: Call): boolean {
  const isUnsafe =
    call.action === 'Off' && occupants(observed, action) > 0 && whenOccupied(observed, action) !== 'Force';
  return call.action !== 'Reboot' && call.attempts === 1 && !isUnsafe;
}
