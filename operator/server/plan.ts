/**
 * Plans the next step of a Server's power action and of its host. One call gives at most one effect. What the status says is stored before
 * the effect begins, so a crash loses no action, and no command is sent again without need. All functions are pure.
 */
import { timestamp } from '../../base/time.ts';
import type { LastAction, PowerRequest } from '../../api/v1alpha1/server.ts';
import {
  type ActionStatus,
  before,
  CONFIRM_MILLISECONDS,
  end,
  ended,
  future,
  isOpen,
  pendingRequest,
  type Plan,
  REBOOT_MILLISECONDS,
  REPEAT_MILLISECONDS,
} from './action.ts';
import { planHost } from './hostreturn.ts';
import { leave, send, whenOccupied } from './leave.ts';
import type { Observed, Reading } from './observe.ts';

export function planServer(observed: Observed): Plan {
  const { lastAction } = observed.server.status ?? {};
  if (isOpen(lastAction)) {
    return continueAction(observed, lastAction);
  }
  const pending = pendingRequest(observed);
  return pending === undefined ? planHost(observed) : beginAction(observed, pending);
}

function beginAction(observed: Observed, { id, action, requestedAt, by }: PowerRequest): Plan {
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

function continueAction(observed: Observed, action: LastAction): Plan {
  if (observed.problem !== undefined) {
    return end(observed, action, 'Failed', observed.problem.message);
  }
  return action.call === undefined ? firstCommand(observed, action) : confirm(observed, action, action.call);
}

function firstCommand(observed: Observed, action: LastAction): Plan {
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
function confirm(observed: Observed, action: LastAction, call: Call): Plan {
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

function missedEffect(reading: Reading | undefined): string {
  if (reading?.error !== undefined) {
    return `then the power could not be read: ${reading.error.message}`;
  }
  return `the server is still ${reading?.power === 'Off' ? 'off' : 'on'} after ${CONFIRM_MILLISECONDS / 1000} s`;
}

/** Returns true if the reading shows the effect of the command. A reading from before the command shows nothing. */
function hasEffect({ action, begunAt, acceptedAt }: Call, reading: Reading | undefined): boolean {
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

function afterEffect(observed: Observed, action: LastAction, call: Call): Plan {
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
function unanswered(observed: Observed, action: LastAction, call: Call): Plan {
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

function mayRepeat(observed: Observed, action: LastAction, call: Call): boolean {
  const isUnsafe =
    call.action === 'Off' && observed.machines > 0 && whenOccupied(observed, action) !== 'Force';
  return call.action !== 'Reboot' && call.attempts === 1 && !isUnsafe;
}
