/** Creates objects in the name of the user. */
import { createBy } from '../../actions/objects.ts';
import { SELF_SUBJECT_REVIEWS } from '../../kube/core.ts';
import { UNINTERRUPTED } from '../../kube/client.ts';
import type { KubeObject, Resource, Unsaved } from '../../kube/objects.ts';
import type { Cluster } from '../cluster.ts';

/**
 * Creates the object, and returns the version that the API server stored. When `signal` aborts, the request that creates the object is not sent. If this request is already sent, the function waits
 * for its answer. Otherwise the caller could not know whether the object exists, for example to delete it.
 *
 * @throws ApiError when the API server refuses the object; the signal's reason when the signal aborts before the request is sent.
 */
export async function createNamed<T extends KubeObject>(
  { client }: Pick<Cluster, 'client'>,
  type: Resource<T>,
  object: Unsaved<T>,
  { signal }: { readonly signal: AbortSignal },
): Promise<T> {
  const { status } = await client.create(SELF_SUBJECT_REVIEWS, { metadata: {} }, { signal });
  signal.throwIfAborted();
  const username = status?.userInfo?.username ?? '';
  return await createBy(client, username, type, object, { signal: UNINTERRUPTED });
}
