/** Plans the return of a host that Berth has switched off or cordoned. All functions are pure. */
import { timestamp } from '../../base/time.ts';
import type { ServerHost } from '../../api/v1alpha1/server.ts';
import { isReady } from '../host/observe.ts';
import { conditionIn } from '../objects/conditions.ts';
import { before, future, type Plan, STALE_READY_MILLISECONDS } from './action.ts';
import type { Observed } from './observe.ts';

/** Plans the return of a host that Berth switched off or cordoned. */
export function planHost(observed: Observed): Plan {
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
function hasReturned({ node, now }: Observed, { bootID }: ServerHost, onAt: number): boolean {
  if (node === undefined || !isReady(node)) {
    return false;
  }
  const hasBooted = bootID !== undefined && node.status?.nodeInfo?.bootID !== bootID;
  const readySince = Date.parse(conditionIn(node.status, 'Ready')?.lastTransitionTime ?? '');
  return hasBooted || readySince >= onAt || now >= onAt + STALE_READY_MILLISECONDS;
}
