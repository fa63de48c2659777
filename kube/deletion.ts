/** Deletes an object that must exist. KubeClient.delete is not used here, because it succeeds for a missing object. */
import { type KubeClient, query } from './client.ts';
import { apiErrorFrom } from './errors.ts';
import { type KubeObject, pathOf, type Ref, type Resource } from './objects.ts';

/**
 * Deletes the object. If `dryRun` is true, the server only checks whether the deletion is possible.
 *
 * @throws ApiError when the API server refuses. The status is 404 if the object does not exist.
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
