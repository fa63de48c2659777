/** Deletes an object that must exist. KubeClient.delete counts a missing object as deleted. */
import { type KubeClient, query } from './client.ts';
import { apiErrorFrom } from './errors.ts';
import { type KubeObject, pathOf, type Ref, type Resource } from './objects.ts';

/**
 * Deletes the object. If `dryRun` is true, the server only checks whether it would delete the object.
 *
 * @throws ApiError, with 404 for a missing object.
 */
export async function deleteExisting<T extends KubeObject>(
  client: KubeClient,
  type: Resource<T>,
  ref: Ref,
  { dryRun = false } = {},
): Promise<void> {
  const path = pathOf(type, ref) + query({ dryRun: dryRun ? 'All' : undefined });
  const { status, body, retryAfterMilliseconds } = await client.raw('DELETE', path);
  if (status >= 400) {
    throw apiErrorFrom(body, status, retryAfterMilliseconds);
  }
}
