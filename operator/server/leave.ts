/** Plans the commands for controllers, and the way to a command that ends everything on a host. All functions are pure. */
import { timestamp } from '../../base/time.ts';
import {
  type LastAction,
  type PowerAction,
  type ServerHost,
  WAIT_SECONDS,
} from '../../api/v1alpha1/server.ts';
import { isByDemand } from '../host/starting.ts';
import { before, end, type Plan, SETTLE_MILLISECONDS } from './action.ts';
import type { Observed } from './observe.ts';

/** Plans the way to a command that ends everything on the host: cordon, check for machines, send. */
export function leave(observed: Observed, action: LastAction, command: PowerAction): Plan {
  if (observed.server.spec.nodeName === undefined) {
    return send(observed, action, command);
  }
  const waiting = observed.machines > 0 ? occupiedPlan(observed, action) : undefined;
  const isOver = waiting?.lastAction?.completedAt !== undefined;
  return isOver ? waiting : (cordonedPlan(observed, waiting) ?? send(observed, action, command));
}

/** Returns the plan for a host with machines. The result is undefined if their end is forced. */
function occupiedPlan(observed: Observed, action: LastAction): Plan | undefined {
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

/** Power by demand never ends a machine, and does not wait for its end: another machine can have begun since it looked at the host. */
export function whenOccupied({ server }: Pick<Observed, 'server'>, action: LastAction) {
  return isByDemand(action) ? 'Refuse' : server.spec.policy?.whenOccupied;
}

/** Returns the plan while the host is not cordoned for long enough, or waits for its machines. */
function cordonedPlan(observed: Observed, waiting: Plan | undefined): Plan | undefined {
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
  const settled = host?.cordonedAt === undefined ? now : Date.parse(host.cordonedAt) + SETTLE_MILLISECONDS;
  return waiting ?? (now < settled ? { ...plan, wakeAt: settled } : undefined);
}

function waitForMachines(observed: Observed, action: LastAction): Plan {
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
function occupiedText({ server, machines }: Pick<Observed, 'server' | 'machines'>): string {
  const { nodeName } = server.spec;
  return machines === 1
    ? `1 machine runs on host ${nodeName}`
    : `${machines} machines run on host ${nodeName}`;
}

/** Plans a command. Before it is sent, the status says that it is about to be sent, and that the host goes off. */
export function send(observed: Observed, action: LastAction, command: PowerAction, attempts = 1): Plan {
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

function leftHost({ node }: Observed, host: ServerHost = {}, now: string): ServerHost {
  const bootID = host.bootID ?? node?.status?.nodeInfo?.bootID;
  return { ...host, offAt: host.offAt ?? now, onAt: undefined, bootID };
}
