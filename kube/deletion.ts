/** Deletes an object that must exist. KubeClient.delete is not used here, because it succeeds for a missing object. */
import { type KubeClient, query } from './client.ts';
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
  await client.call('DELETE', pathOf(type, ref) + query({ dryRun: dryRun ? 'All' : undefined }));
}
