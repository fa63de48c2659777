/** Connects to the Pods of tasks that send or receive a file. */
import type { Socket } from 'node:net';
import { TASK_CONTAINER } from '../../api/v1alpha1/names.ts';
import { TRANSFER_PROTOCOL } from '../../api/v1alpha1/transfer.ts';
import { query } from '../../kube/client.ts';
import { PODS, type Pod } from '../../kube/core.ts';
import { pathOf } from '../../kube/objects.ts';
import type { Caller } from '../callers/caller.ts';

/**
 * Status codes of refusals that concern the caller. A refusal with any other code counts as a refusal by the host, because a host can
 * refuse with any code, for example 200.
 */
export const OF_THE_CALLER: ReadonlySet<number> = new Set([401, 403, 429]);

/**
 * Reports whether the Pod runs a task. The owner of such a Pod is a Job. The labels of a Pod prove nothing, because a host can create
 * mirror Pods with any label, but not with a Job as their owner.
 */
export function isTask({ metadata, status }: Pod): boolean {
  const isOfJob = metadata.ownerReferences?.some(
    ({ kind, controller }) => kind === 'Job' && controller === true,
  );
  return isOfJob === true && status?.phase === 'Running' && metadata.deletionTimestamp === undefined;
}

/**
 * Connects to the task of the Pod with the rights of `caller`. The code that calls this function must handle the errors of the connection.
 *
 * @throws ApiError when the API server or the host refuses, the signal's reason when the signal aborts, or another error when the
 * connection fails.
 */
export async function attach({ client }: Caller, { metadata }: Pod, signal: AbortSignal): Promise<Socket> {
  const { name, namespace = '' } = metadata;
  const options = query({ container: TASK_CONTAINER, stdin: true, stdout: true });
  const path = `${pathOf(PODS, { namespace, name })}/attach${options}`;
  return await client.transport.upgrade(path, TRANSFER_PROTOCOL, signal);
}
