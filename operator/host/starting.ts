/** Reads from a Server whether its host is on, or when it must have started. */
import type { LastAction, PowerRequest, Server } from '../../api/v1alpha1/server.ts';
import type { Node } from '../../kube/core.ts';
import type { Informer } from '../../kube/informer.ts';
import { equal } from '../../kube/mergepatch.ts';
import { isReady } from './observe.ts';

/** Beginning of `by` in the requests of power by demand. */
export const BY_DEMAND = 'power by demand';

/** Returns true if power by demand requested the action, and no person or program did. */
export function isByDemand(action: Pick<PowerRequest, 'by'> | undefined): boolean {
  return action?.by.startsWith(BY_DEMAND) === true;
}

/** Returns the power action that is requested or runs. The result is undefined if the last action has ended. */
export function openAction({ status }: Readonly<Server>): PowerRequest | LastAction | undefined {
  const { request, lastAction } = status ?? {};
  return request ?? (lastAction?.completedAt === undefined ? lastAction : undefined);
}

/** Returns the time when the controller accepted an action, in milliseconds since the epoch. The result is undefined until then. */
export function acceptedAt(action: PowerRequest | LastAction): number | undefined {
  const text = 'acceptedAt' in action ? action.acceptedAt : undefined;
  return text === undefined ? undefined : Date.parse(text);
}

/** Returns true if the host runs, and has reported since Berth last switched it off. */
export function isUp(server: Readonly<Server> | undefined, node: Readonly<Node>): boolean {
  return isReady(node) && server?.status?.host === undefined;
}

/**
 * Returns the time until which the host must have started, in milliseconds since the epoch. The time can be over. The result is undefined
 * if the host is up, or if nobody has switched it on.
 * @param bootSeconds time in seconds that a host needs from the acceptance of its power action until it reports
 */
export function startDeadline(
  server: Readonly<Server>,
  node: Readonly<Node>,
  bootSeconds: number,
): number | undefined {
  const action = startAction(server);
  if (action === undefined || isUpAgain(server, node)) {
    return undefined;
  }
  return (acceptedAt(action) ?? Date.parse(action.requestedAt)) + bootSeconds * 1000;
}

/** Returns the action after which the host starts: one that is requested or runs, or else the last one, if the server still has power. */
function startAction(server: Readonly<Server>): PowerRequest | LastAction | undefined {
  const { lastAction, power } = server.status ?? {};
  const hasPower = lastAction?.result === 'Succeeded' && power !== 'Off';
  const action = openAction(server) ?? (hasPower ? lastAction : undefined);
  return action?.action === 'Off' ? undefined : action;
}

function isUpAgain(server: Readonly<Server>, node: Readonly<Node>): boolean {
  return isUp(server, node) && openAction(server)?.action !== 'Reboot';
}

/** Calls `changed` when a Server's host may have begun or ended to start. */
export function onStartChange({ cache }: Informer<Server>, changed: () => void): void {
  const actionOf = (server: Readonly<Server> | undefined) => [
    server && openAction(server),
    server?.status?.host,
  ];
  cache.onChange(({ object, previous }) => {
    if (!equal(actionOf(previous), actionOf(object))) {
      changed();
    }
  });
}
