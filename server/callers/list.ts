/**
 * Lists objects with the rights of the caller. Callers choose the number and size of objects. So only a few lists are read at once, each
 * object becomes its item at once, and the items have a limit.
 */
import PQueue from 'p-queue';
import type { ListQuery } from '../../api/http/list.ts';
import { undefinedIf } from '../../base/errors.ts';
import { type KubeClient, query } from '../../kube/client.ts';
import { isForbidden } from '../../kube/errors.ts';
import { readList } from '../../kube/liststream.ts';
import { type KubeObject, pathOf, type Resource } from '../../kube/objects.ts';
import { StatusError } from '../http/errors.ts';

/** Largest list of items, in characters of JSON: some 60,000 VMs. Labels of an object alone may have a million. */
const LIST_LENGTH = 32 * 1024 * 1024;
/** Limit of lists that are read at once. One processor reads no more of them in parallel. */
const LISTS = 8;
/** Limit of lists that wait. Lists of 1,000 VMs wait for some seconds then. */
const LISTS_WAITING = 256;

const lists = new PQueue({ concurrency: LISTS });

interface Selection extends ListQuery {
  readonly namespace?: string;
}

export interface ListOf<I> {
  readonly items: I[];
  /** Position of the next object if there are more. */
  readonly continue?: string | undefined;
}

/**
 * Returns one page of the list, or the whole list without `limit`. `itemOf` returns undefined for objects that the list leaves out.
 *
 * @throws ApiError when the API server refuses. @throws StatusError 429 when too many lists wait, 422 when the list is too large.
 */
export async function listAs<T extends KubeObject, I>(
  client: KubeClient,
  type: Resource<T>,
  { namespace, labelSelector, limit, continue: position }: Selection,
  itemOf: (object: T) => I | undefined,
): Promise<ListOf<I>> {
  if (lists.size >= LISTS_WAITING) {
    throw new StatusError(429, 'Too many lists are read at once: try again later');
  }
  const path = pathOf(type, namespace === undefined ? {} : { namespace });
  const items = new Items(itemOf);
  const { continue: next } = await lists.add(
    async () =>
      await readList(client, path + query({ labelSelector, limit, continue: position }), (object) =>
        items.add(object as T),
      ),
  );
  return { items: items.all, continue: next || undefined };
}

/**
 * Returns the items of the namespace, and those of the default namespace whose names the namespace does not have. A caller without rights in
 * the default namespace gets only the items of the namespace.
 *
 * @throws ApiError when the API server refuses. @throws StatusError as {@link listAs}.
 */
export async function listWithShared<T extends KubeObject, I extends { name: string }>(
  client: KubeClient,
  type: Resource<T>,
  selection: { namespace: string; labelSelector?: string | undefined },
  defaultNamespace: string,
  itemOf: (object: T) => I | undefined,
): Promise<I[]> {
  const { items } = await listAs(client, type, selection, itemOf);
  if (selection.namespace === defaultNamespace) {
    return items;
  }
  const shared = listAs(client, type, { ...selection, namespace: defaultNamespace }, itemOf);
  const { items: others = [] } = (await undefinedIf(isForbidden, shared)) ?? {};
  const own = new Set(items.map(({ name }) => name));
  return [...items, ...others.filter(({ name }) => !own.has(name))];
}

/** Items of one list. */
class Items<T, I> {
  readonly all: I[] = [];
  readonly #itemOf: (object: T) => I | undefined;
  #length = 0;

  constructor(itemOf: (object: T) => I | undefined) {
    this.#itemOf = itemOf;
  }

  /** @throws StatusError 422 when the list is too large. */
  add(object: T): void {
    const item = this.#itemOf(object);
    if (item === undefined) {
      return;
    }
    this.#length += JSON.stringify(item).length;
    if (this.#length > LIST_LENGTH) {
      throw new StatusError(422, 'The list is too large: choose fewer objects by limit or labelSelector');
    }
    this.all.push(item);
  }
}
