/** Computes the status of a Server from what one reconcile observed and planned, and records Events about the changes of the status. */
import { timestamp } from '../../base/time.ts';
import type { LastAction, PowerState, Server, ServerStatus } from '../../api/v1alpha1/server.ts';
import { type ConditionDraft, stampConditions } from '../objects/conditions.ts';
import type { ObservedServer, PowerReading } from './observe.ts';
import { BY_SPEC, pendingRequest, type ServerPlan, whyNotDone } from './plan.ts';
import { isOpen } from '../host/power.ts';
import { normal, type OperatorEvent, type Recorder, warning } from '../objects/events.ts';

export function serverStatus(observed: ObservedServer, plan: ServerPlan): ServerStatus {
  const { server, now } = observed;
  const { lastAction, lastRequestedAt, host, request } = plan;
  const generation = server.metadata.generation ?? 0;
  const drafts = [
    ready(observed, plan),
    reconciling(observed, plan),
    stalled(observed, plan),
    reachable(observed),
  ];
  const conditions = [...drafts, occupied(observed)].filter((draft) => draft !== undefined);
  return {
    observedGeneration: generation,
    power: powerOf(observed, plan),
    request,
    lastAction,
    lastRequestedAt,
    host,
    conditions: stampConditions(conditions, server.status?.conditions, { now: timestamp(now), generation }),
  };
}

/** Returns the power for people. A reboot lasts from its acceptance to the next confirmed On, and is an error if it ended off. */
function powerOf({ reading, problem }: ObservedServer, { lastAction }: ServerPlan): PowerState | undefined {
  if (isAcceptedReboot(lastAction) && isOpen(lastAction)) {
    return 'Rebooting';
  }
  if (problem !== undefined || reading?.error !== undefined) {
    return 'Error';
  }
  return isStranded(reading, lastAction) ? 'Error' : reading?.power;
}

function isAcceptedReboot(action: LastAction | undefined): boolean {
  return action?.action === 'Reboot' && action.acceptedAt !== undefined;
}

/** Returns true if the last action was a reboot that left the server off. */
function isStranded(reading: PowerReading | undefined, action: LastAction | undefined): boolean {
  return isAcceptedReboot(action) && action?.result === 'Failed' && reading?.power === 'Off';
}

function ready(observed: ObservedServer, plan: ServerPlan): ConditionDraft {
  const type = 'Ready';
  const obstacle = obstacleOf(observed, plan) ?? progressOf(observed, plan);
  if (obstacle !== undefined) {
    return { type, status: 'False', ...obstacle };
  }
  return { ...reachable(observed), type };
}

type ConditionText = Pick<ConditionDraft, 'reason' | 'message'>;

/** Returns why the Server cannot become as declared without a change by somebody. */
function obstacleOf(
  { problem, server, reading }: ObservedServer,
  { lastAction }: ServerPlan,
): ConditionText | undefined {
  if (problem !== undefined || lastAction === undefined) {
    return problem;
  }
  const { result, message, by, id } = lastAction;
  const isDeclared = by === BY_SPEC && id === server.spec.powerAction?.requestedAt;
  if (result === 'Refused' && isDeclared) {
    return { reason: 'PowerActionRefused', message };
  }
  return result === 'Failed' && (isDeclared || isStranded(reading, lastAction))
    ? { reason: 'PowerActionFailed', message }
    : undefined;
}

/** Returns what Berth is doing for the Server. */
function progressOf(observed: ObservedServer, { lastAction }: ServerPlan): ConditionText | undefined {
  if (isOpen(lastAction)) {
    const message = `${lastAction.action} of Server ${observed.server.metadata.name} runs`;
    return lastAction.result === 'Waiting'
      ? { reason: 'PowerActionWaiting', message: lastAction.message }
      : { reason: 'PowerActionRunning', message: lastAction.message || message };
  }
  const pending = pendingRequest(observed);
  return pending && { reason: 'PowerActionRunning', message: `${pending.action} is about to begin` };
}

function reconciling(observed: ObservedServer, plan: ServerPlan): ConditionDraft | undefined {
  const type = 'Reconciling';
  if (obstacleOf(observed, plan) !== undefined) {
    return undefined;
  }
  const progress = progressOf(observed, plan);
  if (progress !== undefined) {
    return { type, status: 'True', ...progress };
  }
  return observed.reading === undefined
    ? { type, status: 'True', reason: 'NotReadYet', message: '' }
    : undefined;
}

function stalled(observed: ObservedServer, plan: ServerPlan): ConditionDraft | undefined {
  const obstacle = obstacleOf(observed, plan);
  return obstacle && { type: 'Stalled', status: 'True', ...obstacle };
}

function reachable({ reading, problem }: ObservedServer): ConditionDraft {
  const type = 'Reachable';
  if (reading === undefined || problem !== undefined) {
    return { type, status: 'Unknown', reason: 'NotReadYet', message: '' };
  }
  return reading.error !== undefined
    ? { type, status: 'False', reason: reading.error.reason, message: reading.error.message }
    : { type, status: 'True', reason: 'ControllerAnswers', message: '' };
}

function occupied(observed: ObservedServer): ConditionDraft {
  const type = 'Occupied';
  if (observed.server.spec.nodeName === undefined) {
    return { type, status: 'False', reason: 'NoHost', message: '' };
  }
  return observed.machines > 0
    ? { type, status: 'True', reason: 'MachinesRun', message: '' }
    : { type, status: 'False', reason: 'NoMachines', message: '' };
}

const RESULTS = {
  Waiting: { reason: 'PowerActionWaiting', make: normal },
  Running: { reason: 'PowerActionRunning', make: normal },
  Succeeded: { reason: 'PowerActionSucceeded', make: normal },
  Refused: { reason: 'PowerActionRefused', make: warning },
  Failed: { reason: 'PowerActionFailed', make: warning },
} as const;

/** Records Events about the difference between the status of the Server and its next status. `now` is in milliseconds since the epoch. */
export function recordServerEvents(
  recorder: Recorder,
  server: Readonly<Server>,
  next: ServerStatus,
  now: number,
): void {
  const found = [
    actionEvent(server.status?.lastAction, next.lastAction),
    ignoredEvent(server, next, now),
    powerEvent(server, next),
  ];
  found.filter((event) => event !== undefined).forEach((event) => recorder.event(server, event));
}

function actionEvent(
  before: LastAction | undefined,
  after: LastAction | undefined,
): OperatorEvent | undefined {
  if (after === undefined || (before?.id === after.id && before.result === after.result)) {
    return undefined;
  }
  const { reason, make } = RESULTS[after.result];
  const text = after.message === '' ? '' : `: ${after.message}`;
  return make(
    reason,
    after.action,
    `${after.action}, requested by ${after.by} at ${after.requestedAt}${text}`,
  );
}

/** Tells once for each generation that its `spec.powerAction` is not done. */
function ignoredEvent(server: Readonly<Server>, next: ServerStatus, now: number): OperatorEvent | undefined {
  const { spec, status, metadata } = server;
  const why = whyNotDone(server, now);
  const isKnown = status?.observedGeneration === metadata.generation;
  if (spec.powerAction === undefined || why === undefined || isKnown) {
    return undefined;
  }
  const { action, requestedAt } = spec.powerAction;
  return next.lastAction?.id === requestedAt
    ? undefined
    : warning('PowerActionIgnored', action, `spec.powerAction ${action} of ${requestedAt} ${why}`);
}

function powerEvent({ metadata, status }: Readonly<Server>, next: ServerStatus): OperatorEvent | undefined {
  const [before, after] = [status?.power, next.power];
  const isChanged = (before === 'On' && after === 'Off') || (before === 'Off' && after === 'On');
  const isOurs = isOpen(status?.lastAction) || isOpen(next.lastAction);
  if (!isChanged || isOurs) {
    return undefined;
  }
  const make = after === 'Off' ? warning : normal;
  return make(
    'PowerChanged',
    after,
    `Server ${metadata.name} is ${after.toLowerCase()} now, without an action of Berth`,
  );
}
