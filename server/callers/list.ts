/**
 * Lists objects with the rights of the caller. As soon as an object has been read, it is replaced with its item for the answer. An object
 * can be much larger than its item.
 */
import type { ListQuery } from '../../api/http/request.ts';
import { undefinedIf } from '../../base/errors.ts';
import { type KubeClient, query } from '../../kube/client.ts';
import { isForbidden } from '../../kube/errors.ts';
import { readList } from '../../kube/liststream.ts';
import { type KubeObject, pathOf, type Resource } from '../../kube/objects.ts';
import type { CallerClient } from './caller.ts';
import { type Hold, ListPlaces } from './listplaces.ts';

const places = new ListPlaces();

interface Selection extends ListQuery {
  readonly namespace?: string;
}

export interface ListOf<I> {
  readonly items: I[];
  /** Position at which the next page begins. It is absent on the last page. */
  readonly continue?: string | undefined;
}

/**
 * Returns one page of the list if `limit` is set, and otherwise the whole list. If `itemOf` returns undefined for an object, the list
 * leaves the object out. `reader` is the client that sends the requests; by default, it is the client of the caller.
 *
 * @throws ApiError when the API server refuses. @throws StatusError from {@link ListPlaces.run} and {@link Hold}.
 */
export async function listAs<T extends KubeObject, I>(
  caller: CallerClient,
  type: Resource<T>,
  selection: Selection,
  itemOf: (object: T) => I | undefined,
  reader: KubeClient = caller,
): Promise<ListOf<I>> {
  return await places.run(
    caller,
    async (hold) => await readItems(reader, pathFor(type, selection), { itemOf, hold, signal: caller.ended }),
  );
}

/**
 * Returns the items of the namespace and of the default namespace. If both have an item of the same name, only the item of the namespace is
 * returned. A caller without rights in the default namespace gets only the items of the namespace.
 *
 * @throws ApiError when the API server refuses. @throws StatusError from {@link listAs}.
 */
export async function listWithShared<T extends KubeObject, I extends { name: string }>(
  caller: CallerClient,
  type: Resource<T>,
  selection: { namespace: string; labelSelector?: string | undefined },
  defaultNamespace: string,
  itemOf: (object: T) => I | undefined,
): Promise<I[]> {
  // Both lists together take one place (see {@link ListPlaces}). With two places, the items of the first list would stay in memory while
  // the second list waits.
  return await places.run(caller, async (hold) => {
    const reading = { itemOf, hold, signal: caller.ended };
    const { items } = await readItems(caller, pathFor(type, selection), reading);
    if (selection.namespace === defaultNamespace) {
      return items;
    }
    const path = pathFor(type, { ...selection, namespace: defaultNamespace });
    const shared = readItems(caller, path, reading);
    const { items: others = [] } = (await undefinedIf(isForbidden, shared)) ?? {};
    const own = new Set(items.map(({ name }) => name));
    return [...items, ...others.filter(({ name }) => !own.has(name))];
  });
}

interface Reading<T, I> {
  readonly itemOf: (object: T) => I | undefined;
  readonly hold: Hold;
  readonly signal: AbortSignal;
}

function pathFor<T extends KubeObject>(
  type: Resource<T>,
  { namespace, labelSelector, limit, continue: position }: Selection,
): string {
  const path = pathOf(type, namespace === undefined ? {} : { namespace });
  return path + query({ labelSelector, limit, continue: position });
}

async function readItems<T, I>(
  client: KubeClient,
  path: string,
  { itemOf, hold, signal }: Reading<T, I>,
): Promise<ListOf<I>> {
  const items: I[] = [];
  const visit = (object: unknown) => {
    const item = itemOf(object as T);
    if (item !== undefined) {
      hold(Buffer.byteLength(JSON.stringify(item)));
      items.push(item);
    }
  };
  const { continue: next } = await readList(client, path, visit, signal);
  return { items, continue: next || undefined };
}
