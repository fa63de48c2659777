/** Yields the new versions of one object, or of all objects of a type in a namespace, and reads the events of a watch. */
import { addAbortListener } from 'node:events';
import { Backoff } from '../base/backoff.ts';
import { LineSplitter } from '../base/lines.ts';
import { pause } from '../base/time.ts';
import { type KubeClient, query } from './client.ts';
import { ApiError, apiErrorFrom, DeadlineError, isGone, isUnreachable, unlessMissing } from './errors.ts';
import { parseWithoutManagedFields } from './json.ts';
import { type KubeObject, type ObjectMeta, pathOf, type Ref, type Resource } from './objects.ts';
import { Patience } from './patience.ts';
import type { Transport } from './transport.ts';

/** Limit of one line of a watch in bytes. An object has at most 1.5 MB in etcd, so a longer line cannot be an object. */
export const LINE_LIMIT_BYTES = 16 * 1024 * 1024;
/** Time in milliseconds without data after which a watch is resumed. On a live connection, the API server sends a bookmark each minute. */
export const SILENCE_MILLISECONDS = 90_000;

const INITIAL_EVENTS_END = 'k8s.io/initial-events-end';

export interface WatchEvent<T> {
  type: 'ADDED' | 'MODIFIED' | 'DELETED' | 'BOOKMARK' | 'ERROR';
  object: T;
}

/**
 * Returns the reason why all objects must be read again. The result is undefined after a lost connection, status 429 or status 503, because
 * the watch can be resumed in these cases.
 */
export function relistReasonOf(error: unknown): string | undefined {
  if (error instanceof ApiError) {
    return error.status === 429 || error.status === 503 ? undefined : String(error.status);
  }
  return error instanceof SyntaxError ? 'malformed' : undefined;
}

/** Returns whether the event tells that a watch has sent all objects that existed at its start. */
export function endsInitialEvents(event: WatchEvent<KubeObject>): boolean {
  return event.type === 'BOOKMARK' && event.object.metadata.annotations?.[INITIAL_EVENTS_END] === 'true';
}

/**
 * The first wait and the longest wait before a watch is resumed, in milliseconds. Both are short, because a client waits for the object.
 */
const BACKOFF = { firstMilliseconds: 200, capMilliseconds: 5_000, jitter: 1 } as const;

/** Placeholder for the name if all objects are followed. No object has this name. */
const ALL = '';

export interface Following<T extends KubeObject> {
  readonly client: KubeClient;
  /** Connections for the watch. Requests over them have the same rights as requests of `client`. */
  readonly watches: Transport;
  readonly type: Resource<T>;
  /** Metadata of a version of the object. Only later versions are yielded. */
  readonly from: ObjectMeta;
  /** Labels that the objects must have. An object that no longer has them is yielded once more, as a deleted one is. */
  readonly labelSelector?: string | undefined;
  /**
   * Function that keeps only the fields of an object that the caller needs. It saves memory, because the last version of each object stays
   * in memory. If the function is absent, all fields are kept.
   */
  readonly trim?: (object: T) => T;
  readonly signal: AbortSignal;
}

/**
 * Yields each new version of the object, and ends when the object is deleted. If a watch ends, for example because the API server is
 * unavailable for a time, the function resumes the watch.
 *
 * @throws ApiError when the API server refuses, for example because the token is no longer valid; CredentialError when the credential
 * plug-in gives no token for 20 s; the signal's reason when the signal aborts.
 */
export async function* follow<T extends KubeObject>(following: Following<T>): AsyncGenerator<T> {
  for await (const { type, object } of resumed(following, (position) => eventsAfter(following, position))) {
    if (type === 'DELETED') {
      return;
    }
    yield object;
  }
}

/**
 * Yields each new version of all objects of a namespace, or of all namespaces, after `resourceVersion`. `resourceVersion` comes from a list of these objects that
 * the caller has read. A deleted object is yielded once more. If the API server was unavailable for a long time, all objects are yielded
 * again.
 *
 * @throws the same errors as {@link follow}.
 */
export async function* followAll<T extends KubeObject>(
  following: Omit<Following<T>, 'from'>,
  { namespace, resourceVersion }: { namespace: string | undefined; resourceVersion: string },
): AsyncGenerator<T> {
  const from = { name: ALL, resourceVersion, ...(namespace === undefined ? {} : { namespace }) };
  const all = { ...following, from };
  for await (const { object } of resumed(all, (position) => changesAfter(all, position))) {
    yield object;
  }
}

/** Runs one watch after another and yields their events, except bookmarks. */
async function* resumed<T extends KubeObject>(
  { from, signal }: Following<T>,
  events: (position: string | undefined) => AsyncGenerator<WatchEvent<T>>,
): AsyncGenerator<WatchEvent<T>> {
  const backoff = new Backoff(BACKOFF);
  const patience = new Patience();
  let position = from.resourceVersion;
  for (;;) {
    try {
      for await (const event of events(position)) {
        backoff.reset();
        patience.reset();
        position = event.object.metadata.resourceVersion;
        if (event.type !== 'BOOKMARK') {
          yield event;
        }
      }
    } catch (error) {
      signal.throwIfAborted();
      if (patience.endsWith(error)) {
        throw error;
      }
      // `position` is the resourceVersion at which the next watch begins. If the API server has compacted this version, the objects are
      // read again. A single object is also read again if its watch could not be opened in time. The cause can be other watches, which can
      // use all available connections for a long time.
      const isStarved = from.name !== ALL && isUnreachable(error);
      position = isGone(error) || isStarved ? undefined : position;
    }
    await pause(backoff.next(), signal);
  }
}

/** Yields the events of one watch of all objects. If `position` is undefined, this function lists the objects first. */
async function* changesAfter<T extends KubeObject>(
  following: Following<T>,
  position: string | undefined,
): AsyncGenerator<WatchEvent<T>> {
  const { client, type, from, labelSelector, signal } = following;
  if (position !== undefined) {
    yield* watch(following, position);
    return;
  }
  const { namespace } = from;
  const { items, resourceVersion } = await client.list(type, { namespace, labelSelector, signal });
  for (const object of items) {
    yield { type: 'MODIFIED', object };
  }
  // This event moves the position to the version of the list, because the versions of the listed objects are lower and in no order.
  yield { type: 'BOOKMARK', object: { metadata: { resourceVersion } } as T };
  yield* watch(following, resourceVersion);
}

/** Yields the events of one watch of a single object. If `position` is undefined, this function reads the object first. */
async function* eventsAfter<T extends KubeObject>(
  following: Following<T>,
  position: string | undefined,
): AsyncGenerator<WatchEvent<T>> {
  const { from } = following;
  if (position !== undefined) {
    yield* watch(following, position);
    return;
  }
  const object = await read(following);
  if (object === undefined || object.metadata.uid !== from.uid) {
    yield { type: 'DELETED', object: { metadata: from } as T };
    return;
  }
  yield { type: 'MODIFIED', object };
  yield* watch(following, object.metadata.resourceVersion);
}

async function read<T extends KubeObject>({ client, type, from, signal, trim }: Following<T>) {
  const object = await unlessMissing(client.get(type, refOf(from), { signal }));
  return object === undefined || trim === undefined ? object : trim(object);
}

async function* watch<T extends KubeObject>(
  following: Following<T>,
  resourceVersion: string | undefined,
): AsyncGenerator<WatchEvent<T>> {
  const { watches, type, from, labelSelector, signal } = following;
  const end = new AbortController();
  using _listener = addAbortListener(signal, () => end.abort(signal.reason));
  const silence = setTimeout(() => end.abort(new DeadlineError('the watch is silent')), SILENCE_MILLISECONDS);
  const { name, ...namespace } = refOf(from);
  const fieldSelector = name === ALL ? undefined : `metadata.name=${name}`;
  const selectors = { fieldSelector, labelSelector };
  const parameters = { watch: true, allowWatchBookmarks: true, ...selectors, resourceVersion };
  try {
    signal.throwIfAborted();
    const stream = await watches.stream(pathOf(type, namespace) + query(parameters), end.signal);
    const lines = new LineSplitter(LINE_LIMIT_BYTES);
    for await (const chunk of stream) {
      silence.refresh();
      for (const event of eventsIn(lines, chunk, following)) {
        if (event.type === 'ERROR') {
          throw apiErrorFrom(event.object);
        }
        yield event;
      }
    }
  } finally {
    clearTimeout(silence);
  }
}

/**
 * Parses the lines in a chunk and returns their events. {@link watch} does not do this work itself, because it is a generator, which keeps
 * its variables in memory while it waits. These variables would contain whole lines and objects.
 */
function eventsIn<T extends KubeObject>(
  lines: LineSplitter,
  chunk: Buffer,
  { trim = (object) => object }: Pick<Following<T>, 'trim'>,
): WatchEvent<T>[] {
  return lines.push(chunk).map((line) => {
    const { type, object } = parseWithoutManagedFields(line) as WatchEvent<T>;
    return { type, object: type === 'ERROR' ? object : trim(object) };
  });
}

function refOf({ name, namespace }: ObjectMeta): Ref {
  return namespace === undefined ? { name } : { name, namespace };
}
