/** Records Events of Servers: begin and end of power actions, ignored actions, and changes of the power by others. */
import type { LastAction, Server, ServerStatus } from '../../api/v1alpha1/server.ts';
import { normal, type OperatorEvent, type Recorder, warning } from '../objects/events.ts';
import { isOpen } from './action.ts';

const RESULTS = {
  Waiting: { reason: 'PowerActionWaiting', make: normal },
  Running: { reason: 'PowerActionRunning', make: normal },
  Succeeded: { reason: 'PowerActionSucceeded', make: normal },
  Refused: { reason: 'PowerActionRefused', make: warning },
  Failed: { reason: 'PowerActionFailed', make: warning },
} as const;

/** Records Events about the difference between the status of the Server and its next status. */
export function recordServerEvents(recorder: Recorder, server: Readonly<Server>, next: ServerStatus): void {
  const found = [
    actionEvent(server.status?.lastAction, next.lastAction),
    ignoredEvent(server, next),
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
function ignoredEvent(
  { spec, status, metadata }: Readonly<Server>,
  next: ServerStatus,
): OperatorEvent | undefined {
  const { powerAction } = spec;
  const last = status?.lastRequestedAt;
  if (powerAction === undefined || last === undefined || status?.observedGeneration === metadata.generation) {
    return undefined;
  }
  const { action, requestedAt } = powerAction;
  const isOld = Date.parse(requestedAt) <= Date.parse(last) && next.lastAction?.id !== requestedAt;
  const message = `spec.powerAction ${action} of ${requestedAt} is ignored, because it is not later than the action of ${last}`;
  return isOld ? warning('PowerActionIgnored', action, message) : undefined;
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
