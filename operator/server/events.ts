/** Records Events of Servers: begin and end of power actions, ignored actions, and changes of the power by others. */
import type { LastAction, Server, ServerStatus } from '../../api/v1alpha1/server.ts';
import { normal, type OperatorEvent, type Recorder, warning } from '../objects/events.ts';
import { isOpen, whyNotDone } from './action.ts';

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
  const words = after.message === '' ? '' : `: ${after.message}`;
  return make(
    reason,
    after.action,
    `${after.action}, requested by ${after.by} at ${after.requestedAt}${words}`,
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
