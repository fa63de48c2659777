/** Keeps a collection up to date: lists its objects, and then applies the events of watches. */
import { Backoff } from '../../base/backoff.ts';
import type { KubeObject } from '../../kube/objects.ts';
import type { Collection, ObjectEvent } from '../model/collection.ts';
import type { Api } from './api.ts';
import { RefusedRequestError } from './refusal.ts';
import { onHidden, pauseFor, whenShown } from './waits.ts';

/**
 * State of the objects of one type. `stale` means that they were read, and that the connection is lost at the moment. `refused` is final:
 * the user may not read them, or they do not exist.
 */
export type Freshness =
  | { readonly state: 'loading' }
  | { readonly state: 'live' }
  | (Failure & { readonly state: 'stale' })
  | (Failure & { readonly state: 'refused' });

interface Failure {
  /** HTTP status of the refusal. It is undefined if no answer came. */
  readonly status: number | undefined;
  readonly message: string;
}

export interface Followed<T extends KubeObject> {
  readonly api: Api;
  /** Path of the objects below `/console/objects/`. */
  readonly path: string;
  readonly collection: Collection<T>;
  /** Called after each change of the collection, or of its freshness. */
  readonly onChange: (freshness: Freshness) => void;
  readonly signal: AbortSignal;
}

/** Waits between attempts. The server may be down for long, and many pages may look at it. */
const BACKOFF = { firstMilliseconds: 1_000, capMilliseconds: 30_000, jitter: 0.5 } as const;
/** Wait before the next watch after one that ended without an error. A server that ends watches at once is not asked without a pause. */
const BETWEEN_MILLISECONDS = 1_000;
/** Statuses that no later attempt changes. */
const FINAL: ReadonlySet<number> = new Set([400, 401, 403, 404]);
const GONE = 410;
const TOO_LARGE = 422;
/** Largest number of objects on one page of a list. */
const PAGE_OBJECTS = 500;

interface Page<T> {
  readonly items: readonly T[];
  readonly continue?: string;
  readonly resourceVersion: string;
}

/** Follows the objects until the signal aborts or the server refuses for good. While the page is hidden, no watch is open. */
export async function followObjects<T extends KubeObject>(followed: Followed<T>): Promise<void> {
  const { onChange, signal } = followed;
  const backoff = new Backoff(BACKOFF);
  const position = new Position();
  onChange({ state: 'loading' });
  while (!signal.aborted) {
    try {
      await whenShown(signal);
      await followOnce(followed, position, () => backoff.reset());
      await pauseFor(BETWEEN_MILLISECONDS, signal);
    } catch (error) {
      if (signal.aborted) {
        return;
      }
      const freshness = freshnessAfter(error);
      onChange(freshness);
      if (freshness.state === 'refused') {
        return;
      }
      position.lostBy(error);
      await pauseFor(backoff.next(), signal);
    }
  }
}

/** The resourceVersion at which the next watch begins. It is undefined before the objects are listed. */
class Position {
  value: string | undefined;

  /** Forgets the position if the API server no longer has its events. */
  lostBy(error: unknown): void {
    if (error instanceof RefusedRequestError && error.status === GONE) {
      this.value = undefined;
    }
  }
}

async function followOnce<T extends KubeObject>(
  followed: Followed<T>,
  position: Position,
  onLive: () => void,
): Promise<void> {
  const { api, path, collection, onChange, signal } = followed;
  const hidden = new AbortController();
  const end = AbortSignal.any([signal, hidden.signal]);
  const stop = onHidden(() => hidden.abort());
  try {
    if (position.value === undefined) {
      position.value = await listAll(followed, end);
    }
    const onOpen = () => onChange({ state: 'live' });
    for await (const event of api.watch<T>(path, position.value, { signal: end, onOpen })) {
      refuseErrors(event);
      onLive();
      collection.apply(event);
      position.value = event.object.metadata.resourceVersion ?? position.value;
      if (event.type !== 'BOOKMARK') {
        onChange({ state: 'live' });
      }
    }
  } catch (error) {
    if (!hidden.signal.aborted) {
      throw error;
    }
  } finally {
    stop();
  }
}

/** Reads all pages of the list into the collection. Returns its resourceVersion. @throws RefusedRequestError when the server refuses. */
async function listAll<T extends KubeObject>(followed: Followed<T>, signal: AbortSignal): Promise<string> {
  const items: T[] = [];
  const part = { limit: PAGE_OBJECTS, position: '' };
  let page: Page<T>;
  do {
    page = await readPage(followed, part, signal);
    items.push(...page.items);
    part.position = page.continue ?? '';
  } while (part.position !== '');
  followed.collection.replace(items);
  return page.resourceVersion;
}

/** Part of a list that the next request reads. */
interface ListPart {
  /** Largest number of objects. */
  limit: number;
  /** Position at which the part begins. It is empty at the beginning of the list. */
  position: string;
}

/** Reads one page. While its objects are together too large for one answer, it halves the limit, also for the later pages. */
async function readPage<T extends KubeObject>(
  { api, path }: Followed<T>,
  part: ListPart,
  signal: AbortSignal,
): Promise<Page<T>> {
  const position = part.position === '' ? '' : `&continue=${encodeURIComponent(part.position)}`;
  for (;;) {
    try {
      return await api.get<Page<T>>(`/console/objects/${path}?limit=${part.limit}${position}`, signal);
    } catch (error) {
      if (part.limit === 1 || !isTooLarge(error)) {
        throw error;
      }
      part.limit = Math.floor(part.limit / 2);
    }
  }
}

function isTooLarge(error: unknown): boolean {
  return error instanceof RefusedRequestError && error.status === TOO_LARGE;
}

/** @throws RefusedRequestError when the event is the error with which the API server ends a watch. */
function refuseErrors({ type, object }: ObjectEvent<unknown>): void {
  if (type === 'ERROR') {
    const { code = 500, message = 'The watch has failed' } = object as { code?: number; message?: string };
    throw new RefusedRequestError(code, message);
  }
}

/** Returns the freshness of objects after a failed read. */
export function freshnessAfter(error: unknown): Freshness {
  if (error instanceof RefusedRequestError) {
    const { status, message } = error;
    return { state: FINAL.has(status) ? 'refused' : 'stale', status, message };
  }
  return { state: 'stale', status: undefined, message: 'The server does not answer' };
}
