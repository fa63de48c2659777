/** Requests power actions of physical servers. An action only writes the request, and the operator acts later. */
import { SERVERS } from '../api/v1alpha1/resources.ts';
import type { PowerAction, Server } from '../api/v1alpha1/server.ts';
import { timestamp } from '../base/time.ts';
import type { CallOptions, KubeClient } from '../kube/client.ts';

/**
 * Writes the request into the Server, and returns the Server with it. The patch fails if somebody else changed the Server since it was read.
 *
 * @throws ApiError.
 */
export async function requestServerPower(
  client: Pick<KubeClient, 'mergePatch'>,
  { metadata, spec, status }: Server,
  action: PowerAction,
  options: CallOptions = {},
): Promise<Server> {
  const { name, uid, resourceVersion } = metadata;
  const requestedAt = timeAfter([spec.powerAction?.requestedAt, status?.lastRequestedAt]);
  const patch = { metadata: { uid, resourceVersion }, spec: { powerAction: { action, requestedAt } } };
  return await client.mergePatch(SERVERS, { name }, patch, options);
}

/** Returns the present time, or a second after the latest of these times. The operator ignores a request that is not later than all others. */
function timeAfter(times: readonly (string | undefined)[]): string {
  const known = times.map((time) => Date.parse(time ?? '') + 1_000).filter((time) => !Number.isNaN(time));
  return timestamp(Math.max(Date.now(), ...known));
}
