/** Lists objects with the rights of the caller. */
import type { ListQuery } from '../../api/http/list.ts';
import type { KubeClient } from '../../kube/client.ts';
import { readList } from '../../kube/liststream.ts';
import { type KubeObject, pathOf, type Resource } from '../../kube/objects.ts';

/**
 * Returns one page of the list, or the whole list without `limit`. `continue` is set when there are more objects.
 *
 * @throws ApiError when the API server refuses.
 */
export async function listAs<T extends KubeObject, I>(
  client: KubeClient,
  type: Resource<T>,
  { namespace, labelSelector, limit, continue: position }: ListQuery & { namespace?: string },
  itemOf: (object: T) => I,
): Promise<{ items: I[]; continue?: string | undefined }> {
  const query = new URLSearchParams();
  for (const [key, value] of Object.entries({ labelSelector, limit, continue: position })) {
    if (value !== undefined) {
      query.set(key, String(value));
    }
  }
  const path = pathOf(type, namespace === undefined ? {} : { namespace });
  const items: I[] = [];
  const { continue: next } = await readList(client, `${path}?${query.toString()}`, (object) => {
    items.push(itemOf(object as T));
  });
  return { items, continue: next || undefined };
}
