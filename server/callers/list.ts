/**
 * Lists objects with the rights of the caller. As soon as an object has been read, it is replaced with its item for the answer. An object
 * can be much larger than its item.
 *
 * The memory for lists is limited, because callers choose the number and size of the objects. Only a few lists are read at the same time, and
 * the other requests for lists wait. Each request takes a place until its list has been read, and the number of places is limited. The total
 * size of the items of all lists is limited, too. A single user cannot take all places or all bytes.
 */
import PQueue from 'p-queue';
import type { ListQuery } from '../../api/http/request.ts';
import { undefinedIf } from '../../base/errors.ts';
import { type KubeClient, query } from '../../kube/client.ts';
import { isForbidden } from '../../kube/errors.ts';
import { readList } from '../../kube/liststream.ts';
import { type KubeObject, pathOf, type Resource } from '../../kube/objects.ts';
import type { CallerClient } from './caller.ts';
import { UserShares } from '../http/shares.ts';
import { StatusError } from '../http/errors.ts';

const MEBIBYTE = 1024 * 1024;
/**
 * Largest number of lists that are read at the same time. A higher number would not be faster, because this process uses one processor for
 * all lists.
 */
const LISTS = 8;
/**
 * Largest number of requests for lists that wait or are being answered. If each of these lists contains 1,000 VMs, the last request waits
 * for a few seconds.
 */
const PLACES = LISTS + 256;
/**
 * Largest number of lists that one user can request at the same time. Requests that wait count, too. A CI system reads a few dozen lists at
 * the same time. The limit leaves places for other users.
 */
const USER_PLACES = PLACES / 4;
/** Largest list of items, in bytes of JSON: about 20,000 VMs. In memory, the items can need several times this number of bytes. */
const LIST_BYTES = 8 * MEBIBYTE;
/** Limit in bytes for the items of all lists of one user. It is half of the total, so that the other users have the other half. */
const USER_BYTES = LIST_BYTES;
/** Limit in bytes for the items of all lists. It is a small part of the 512 MiB of memory that the server's container has. */
const TOTAL_BYTES = 16 * MEBIBYTE;

/**
 * Counts the bytes of items that stay in memory. @throws StatusError 422 when the list is too large; 429 when the user's lists are too
 * large together; 503 when the lists of all users are too large together
 */
type Hold = (bytes: number) => void;

const queue = new PQueue({ concurrency: LISTS });
const places = new UserShares({
  user: USER_PLACES,
  total: PLACES,
  refuseUser: (user) =>
    new StatusError(
      429,
      `User ${user} has reached the limit of ${USER_PLACES} requests for lists at the same time. Try again later`,
    ),
  refuseAll: () =>
    new StatusError(
      429,
      `The limit of ${PLACES} requests for lists at the same time is reached. Try again later`,
    ),
});
const bytesOfItems = new UserShares({
  user: USER_BYTES,
  total: TOTAL_BYTES,
  refuseUser: (user) =>
    new StatusError(
      429,
      `The lists that user ${user} reads at the same time have more than ${USER_BYTES} bytes. Try again later`,
    ),
  refuseAll: () =>
    new StatusError(503, 'Too many large lists are being read at the same time. Try again later'),
});

/**
 * Takes a place for a list, waits until the list may be read, and then reads the list. The place becomes free after the read, or when the
 * client closes the connection. The limits in bytes include the items of the list until the signal `ended` of the caller aborts.
 *
 * @throws ApiError 401 when the API server does not know the caller. @throws StatusError 429 when too many lists wait, 408 when the client
 * has closed the connection.
 */
async function readInPlace<T>(
  caller: Pick<CallerClient, 'username' | 'ended'>,
  read: (hold: Hold) => Promise<T>,
): Promise<T> {
  const user = await caller.username();
  const { ended } = caller;
  ended.throwIfAborted();
  places.take(user, 1);
  try {
    return await queue.add(async () => await read(holdFor(user, ended)), { signal: ended });
  } finally {
    places.release(user, 1);
  }
}

function holdFor(user: string, ended: AbortSignal): Hold {
  let held = 0;
  ended.addEventListener('abort', () => bytesOfItems.release(user, held), { once: true });
  return (bytes) => {
    ended.throwIfAborted();
    if (held + bytes > LIST_BYTES) {
      throw new StatusError(422, 'The list is too large. Use limit or labelSelector to select fewer objects');
    }
    bytesOfItems.take(user, bytes);
    held += bytes;
  };
}

interface Selection extends ListQuery {
  readonly namespace?: string;
  readonly fieldSelector?: string;
}

export interface ListOf<I> {
  readonly items: I[];
  /** Position at which the next page begins. It is absent on the last page. */
  readonly continue?: string | undefined;
}

/** A list with the version of the cluster that it shows. */
export interface Page<I> extends ListOf<I> {
  readonly resourceVersion: string;
}

/**
 * Returns one page of the list if `limit` is set, and otherwise the whole list. If `itemOf` returns undefined for an object, the list
 * leaves the object out. `reader` is the client that sends the requests; by default, it is the client of the caller.
 *
 * @throws ApiError when the API server refuses. @throws StatusError from {@link readInPlace} and {@link Hold}.
 */
export async function listAs<T extends KubeObject, I>(
  caller: CallerClient,
  type: Resource<T>,
  selection: Selection,
  itemOf: (object: T) => I | undefined,
  reader: KubeClient = caller,
): Promise<ListOf<I>> {
  const { items, continue: next } = await readInPlace(
    caller,
    async (hold) => await readItems(reader, pathFor(type, selection), { itemOf, hold, signal: caller.ended }),
  );
  return { items, continue: next };
}

/**
 * Returns one page of whole objects, with the resourceVersion at which a watch of them can begin. `trim` makes an object smaller.
 *
 * @throws ApiError when the API server refuses. @throws StatusError from {@link listAs}.
 */
export async function listObjectsAs<T extends KubeObject>(
  caller: CallerClient,
  type: Resource<T>,
  selection: Selection,
  trim = (object: T) => object,
): Promise<Page<T>> {
  return await readInPlace(
    caller,
    async (hold) =>
      await readItems(caller, pathFor(type, selection), { itemOf: trim, hold, signal: caller.ended }),
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
  // Both lists together take one place (see {@link readInPlace}). With two places, the items of the first list would stay in memory while
  // the second list waits.
  return await readInPlace(caller, async (hold) => {
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
  { namespace, labelSelector, fieldSelector, limit, continue: position }: Selection,
): string {
  const path = pathOf(type, namespace === undefined ? {} : { namespace });
  return path + query({ labelSelector, fieldSelector, limit, continue: position });
}

async function readItems<T, I>(
  client: KubeClient,
  path: string,
  { itemOf, hold, signal }: Reading<T, I>,
): Promise<Page<I>> {
  const items: I[] = [];
  const visit = (object: unknown) => {
    const item = itemOf(object as T);
    if (item !== undefined) {
      hold(Buffer.byteLength(JSON.stringify(item)));
      items.push(item);
    }
  };
  const { continue: next, resourceVersion } = await readList(client, path, visit, signal);
  return { items, continue: next || undefined, resourceVersion };
}
