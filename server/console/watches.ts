/**
 * Watches of the console. One WebSocket carries all watches of a page, because browsers open only six connections to one server for all pages
 * together. Each watch has the token of the caller, and only the types of `reads.ts` can be watched.
 */
import { addAbortListener } from 'node:events';
import type { FastifyRequest } from 'fastify';
import type { WebSocket } from 'ws';
import * as z from 'zod';
import {
  SOCKET_WATCHES,
  WATCH_ID_BYTES,
  WATCH_PATH,
  WATCH_PROTOCOL,
  type WatchEnd,
  type WatchStart,
} from '../../api/http/consolewatch.ts';
import { isServedNamespace, type ServedNamespaces } from '../../api/v1alpha1/names.ts';
import { undefinedIfSync } from '../../base/errors.ts';
import { JsonError, type JsonLimits, parseJson } from '../../base/json.ts';
import { query } from '../../kube/client.ts';
import { pathOf } from '../../kube/objects.ts';
import { accountNamespaceOf } from '../../kube/serving/connections.ts';
import type { Transport } from '../../kube/transport.ts';
import type { App } from '../http/app.ts';
import { notFound, statusOf, StatusError } from '../http/errors.ts';
import type { Owner, WaitingRequests } from '../http/waiting.ts';
import { acceptBrowser, refuseOtherOrigins, requireWebSocket } from '../http/websockets.ts';
import type { Services } from '../services.ts';
import { findTarget } from './reads.ts';
import { CLOSE, closeSocket, keepAlive, LEAVING, type StreamEnd } from './relay.ts';

/** Largest number of watches of one user: six open pages with four each, and their WebSockets. A page that nobody sees has none. */
export const USER_WATCHES = 30;
/**
 * Time in seconds after which a watch ends, and the page begins the next one. The API server checks a token only when a watch begins, so a
 * token that was withdrawn reads no longer than this.
 */
const WATCH_SECONDS = 300;
/** Largest number of bytes of one watch. After them the page begins the next watch, so that each client is admitted again. */
const WATCH_BYTES = 64 * 1024 * 1024;
/** Longest message of a page in bytes. */
const REQUEST_BYTES = 1024;
const REQUEST_LIMITS: JsonLimits = { bytes: REQUEST_BYTES, items: 16 };
/** Time in milliseconds in which a page reads a piece of a watch. A page that reads nothing keeps its places no longer. */
const READ_MILLISECONDS = 60_000;
/** Time in milliseconds after which a WebSocket without a watch ends. */
const IDLE_MILLISECONDS = 30_000;
/** Largest number of ends of watches that a page has not read. A page that reads none of the refusals that it causes is disconnected. */
const UNREAD_ENDS = 64;

const requestSchema = z.union([
  z.strictObject({
    start: z.strictObject({
      id: z.int().min(0).max(0xff_ff_ff_ff),
      path: z.string().regex(/^(?:namespaces\/[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?\/)?[a-z]{1,63}$/),
      resourceVersion: z.string().regex(/^\d{1,20}$/),
    }),
  }),
  z.strictObject({ stop: z.int().min(0).max(0xff_ff_ff_ff) }),
]);

const MALFORMED: StreamEnd = { code: CLOSE.refused, reason: 'A message is no request of a watch' };
const IDLE: StreamEnd = { code: CLOSE.normal, reason: 'There is no watch' };
const UNREAD: StreamEnd = { code: CLOSE.refused, reason: 'The page does not read what it asks for' };
const LOST: StreamEnd = { code: CLOSE.failed, reason: 'The page does not answer' };

/** Adds the route. `watching` counts the watches, and the WebSockets that carry them. */
export function addConsoleWatches(app: App, { config }: Services, watching: WaitingRequests): void {
  app.get(
    WATCH_PATH,
    {
      exposeHeadRoute: false,
      schema: { hide: true, response: { 200: z.any() } },
      onRequest: refuseOtherOrigins,
    },
    async (request, reply) => {
      const { client, pages } = request.fullCaller();
      const user = await client.username();
      // Members of a namespace can create any number of service accounts, so their watches also have a limit together.
      const accounts = accountNamespaceOf(user);
      const owner: Owner = accounts === undefined ? { user } : { user, namespace: accounts };
      watching.check(owner);
      const upgrade = requireWebSocket(request, reply, WATCH_PROTOCOL);
      await watching.run(reply.raw, owner, async ({ signal }) => {
        const browser = acceptBrowser({ request, reply, upgrade }, WATCH_PROTOCOL, REQUEST_BYTES);
        const { namespaces } = config;
        const hold = () => watching.hold(owner);
        await new PageWatches({ request, browser, pages, namespaces, hold }).serve(signal);
      });
    },
  );
}

interface PageWatchesOptions {
  readonly request: FastifyRequest;
  readonly browser: WebSocket;
  /** Connections for watches with the rights of the caller. */
  readonly pages: Transport;
  readonly namespaces: ServedNamespaces;
  /** Takes a place for a watch. Returns the function that frees it. @throws StatusError 429 */
  readonly hold: () => () => void;
}

/** The watches of one page. */
export class PageWatches {
  readonly #o: PageWatchesOptions;
  readonly #open = new Map<number, AbortController>();
  readonly #end = Promise.withResolvers<StreamEnd>();
  readonly #idle: NodeJS.Timeout;
  #unreadEnds = 0;

  constructor(o: PageWatchesOptions) {
    this.#o = o;
    this.#idle = setTimeout(() => {
      if (this.#open.size === 0) {
        this.#end.resolve(IDLE);
      }
    }, IDLE_MILLISECONDS);
  }

  /** Serves the page until it leaves, or `signal` aborts. */
  async serve(signal: AbortSignal): Promise<void> {
    const { browser } = this.#o;
    const take = (message: Buffer): void => this.#take(message);
    browser.on('message', take);
    browser.once('close', () => this.#end.resolve({ code: CLOSE.normal, reason: '' }));
    const pings = keepAlive(browser, () => this.#end.resolve(LOST));
    using _listener = addAbortListener(signal, () => this.#end.resolve(LEAVING));
    browser.resume();
    const end = await this.#end.promise;
    // Messages still come until the page has closed its side.
    browser.off('message', take);
    clearInterval(pings);
    clearTimeout(this.#idle);
    this.#open.forEach((watch) => watch.abort());
    closeSocket(browser, end);
  }

  #take(message: Buffer): void {
    const request = parseRequest(message);
    if (request === undefined) {
      this.#end.resolve(MALFORMED);
    } else if ('stop' in request) {
      this.#open.get(request.stop)?.abort();
    } else {
      void this.#watch(request.start);
    }
  }

  /** Runs a watch until its end, and tells the page about it. A watch that the page has ended needs no word. */
  async #watch(start: WatchStart): Promise<void> {
    const { id } = start;
    const watch = new AbortController();
    try {
      if (this.#open.has(id) || this.#open.size >= SOCKET_WATCHES) {
        throw new StatusError(429, `A page has at most ${SOCKET_WATCHES} watches, each with its own number`);
      }
      this.#open.set(id, watch);
      await this.#forward(start, watch.signal);
      this.#tell({ id });
    } catch (error) {
      if (!watch.signal.aborted) {
        this.#tell({ id, ...this.#refusalOf(error) });
      }
    } finally {
      if (this.#open.get(id) === watch) {
        this.#open.delete(id);
        this.#idle.refresh();
      }
    }
  }

  async #forward({ id, path, resourceVersion }: WatchStart, signal: AbortSignal): Promise<void> {
    const address = watchAddress(path, resourceVersion, this.#o.namespaces);
    const release = this.#o.hold();
    // Whatever ends the watch, the API server must learn of it.
    const ended = new AbortController();
    try {
      const events = await this.#o.pages.stream(address, AbortSignal.any([signal, ended.signal]));
      await this.#send(id, Buffer.from('\n'));
      let bytes = 0;
      for await (const piece of events) {
        await this.#send(id, piece);
        bytes += piece.length;
        if (bytes >= WATCH_BYTES) {
          return;
        }
      }
    } finally {
      ended.abort();
      release();
    }
  }

  /** Sends a piece of a watch, and waits until it is written. So a page that reads slowly slows its watches, and no one else. */
  async #send(id: number, piece: Buffer): Promise<void> {
    const message = Buffer.alloc(WATCH_ID_BYTES + piece.length);
    message.writeUInt32BE(id);
    piece.copy(message, WATCH_ID_BYTES);
    const { promise, resolve, reject } = Promise.withResolvers<void>();
    const late = setTimeout(() => this.#end.resolve(UNREAD), READ_MILLISECONDS);
    this.#o.browser.send(message, (error) => (error ? reject(error) : resolve()));
    try {
      await promise;
    } finally {
      clearTimeout(late);
    }
  }

  #tell(end: WatchEnd): void {
    this.#unreadEnds += 1;
    if (this.#unreadEnds > UNREAD_ENDS) {
      this.#end.resolve(UNREAD);
      return;
    }
    // An error means that the page has left.
    this.#o.browser.send(JSON.stringify(end), () => (this.#unreadEnds -= 1));
  }

  #refusalOf(error: unknown): Pick<WatchEnd, 'code' | 'message'> {
    const { request } = this.#o;
    const { code = 500, message = '' } = statusOf(error, request);
    if (code === 500) {
      request.log.error({ err: error }, 'a watch of the console has failed');
    }
    return { code, message };
  }
}

function parseRequest(message: Buffer): z.infer<typeof requestSchema> | undefined {
  const parse = () => parseJson(message.toString(), REQUEST_LIMITS);
  const document = undefinedIfSync((error) => error instanceof JsonError, parse);
  return requestSchema.safeParse(document).data;
}

/** Returns the address of the watch at the API server. @throws StatusError 404 when the console does not watch these objects. */
function watchAddress(path: string, resourceVersion: string, namespaces: ServedNamespaces): string {
  const [plural = '', namespace] = path.split('/').toReversed();
  if (namespace !== undefined && !isServedNamespace(namespace, namespaces)) {
    throw notFound('namespaces', namespace);
  }
  const target = findTarget(plural, namespace);
  if (target === undefined) {
    throw new StatusError(404, `The console does not watch ${path}`);
  }
  const parameters = {
    watch: true,
    allowWatchBookmarks: true,
    labelSelector: target.labelSelector,
    resourceVersion,
    timeoutSeconds: WATCH_SECONDS,
  };
  return pathOf(target.type, namespace === undefined ? {} : { namespace }) + query(parameters);
}
