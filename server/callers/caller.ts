/**
 * Callers of the HTTP API. When a caller's request needs the API server, the HTTP API sends the caller's bearer token with it. The API
 * server decides whether the caller has the necessary right. The connections to the API server have no client certificate, because the API
 * server prefers a certificate to a token.
 */
import type { IncomingHttpHeaders } from 'node:http';
import { createHash } from 'node:crypto';
import type { Registry } from 'prom-client';
import { LRUCache } from 'lru-cache';
import type { FastifyRequest } from 'fastify';
import { KubeClient } from '../../kube/client.ts';
import type { Connection } from '../../kube/credentials.ts';
import { Transport } from '../../kube/transport.ts';
import { StatusError } from '../http/errors.ts';
import { SELF_SUBJECT_REVIEWS } from '../../kube/core.ts';
import { keepConnection } from '../../kube/serving/connections.ts';
import type { App } from '../http/app.ts';
import { causeOfRefusal, type SignInProvider } from '../../api/http/refusedtoken.ts';

/** Longest accepted token in characters. It leaves room for other headers, because all headers of a request together can have 16 KiB. */
const TOKEN_LENGTH = 12_288;
/**
 * Largest number of watches at the same time. Each waiting deployment needs one watch. All watches share 15 connections. This number of
 * watches, together with their deployments, needs about 100 MB of memory.
 */
export const WATCHES = 1_350;

/**
 * Largest number of watches and logs of consoles at the same time, with the WebSockets that carry watches. Most of the connections of this
 * server are for deployments. An open console has at most four watches and one WebSocket.
 */
export const PAGE_WATCHES = 450;

/** Client with the rights of a caller. */
export class CallerClient extends KubeClient {
  /** Signal that aborts when the text of the answer is ready, or when the client has closed the connection. */
  readonly ended: AbortSignal;
  readonly #token: string;
  readonly #usernames: Usernames;

  constructor(transport: Transport, token: string, usernames: Usernames, ended: AbortSignal) {
    super(transport);
    this.ended = ended;
    this.#token = token;
    this.#usernames = usernames;
  }

  /** Returns the name of the caller. @throws ApiError 401 when the API server does not know the caller. */
  async username(): Promise<string> {
    return await this.#usernames.of(this.#token, this);
  }
}

/** Caller of a request. */
export interface Caller {
  readonly client: CallerClient;
  /** Connections to the API server, only for watches. Each watch has the rights of the caller. */
  readonly watches: Transport;
  /** Connections for the watches of consoles. Deployments have others, so that neither takes those of the other. */
  readonly pages: Transport;
}

export class Callers {
  readonly #transport: Transport;
  readonly #watches: Transport;
  readonly #pages: Transport;
  readonly #usernames = new Usernames();

  /**
   * `connection` contains the address of the API server. The credentials in `connection` are not used, because each request has the token
   * of its caller.
   */
  constructor({ server, serverName, certificateAuthority }: Connection, metrics: Registry) {
    const address = { server, serverName, certificateAuthority };
    this.#transport = new Transport(address, { metrics, userAgent: 'berth-server' });
    this.#watches = new Transport(address, { metrics, userAgent: 'berth-server', watches: WATCHES });
    this.#pages = new Transport(address, { metrics, userAgent: 'berth-server', watches: PAGE_WATCHES });
  }

  /**
   * Returns the client with the rights of the caller. `ended` becomes {@link CallerClient.ended}.
   *
   * @throws StatusError 401 when the request has no bearer token.
   */
  clientOf(headers: IncomingHttpHeaders, ended: AbortSignal): CallerClient {
    return this.#client(tokenOf(headers), ended);
  }

  /** Returns the client and the watches of the caller. @throws StatusError 401 when the request has no bearer token. */
  callerOf(headers: IncomingHttpHeaders, ended: AbortSignal): Caller {
    const token = tokenOf(headers);
    return {
      client: this.#client(token, ended),
      watches: this.#watches.as(token),
      pages: this.#pages.as(token),
    };
  }

  async close(): Promise<void> {
    await Promise.all([this.#transport.close(), this.#watches.close(), this.#pages.close()]);
  }

  #client(token: string, ended: AbortSignal): CallerClient {
    return new CallerClient(this.#transport.as(token), token, this.#usernames, ended);
  }
}

/**
 * Returns the bearer token. Its header can contain the word Bearer twice, because the Swagger page adds this word, and many users type the
 * word, too.
 *
 * @throws StatusError 401 when the request has no bearer token, or a token that is too long.
 */
export function tokenOf({ authorization = '' }: IncomingHttpHeaders): string {
  const token = /^(?:Bearer +){1,2}([-\w.~+/]+=*) *$/i.exec(authorization)?.[1];
  if (token === undefined || token.length > TOKEN_LENGTH) {
    throw new StatusError(401, 'Unauthorized');
  }
  return token;
}

/**
 * Time in milliseconds for which the name of a token's user is stored. During this time, the server does not notice that the token has
 * expired. This is acceptable, because API servers also accept a token for this long after it has expired.
 */
const NAME_MILLISECONDS = 10_000;
/**
 * Largest number of stored names. CI systems can call with hundreds of tokens at the same time. If more tokens are in use, some names are
 * not stored, and the server asks the API server more often.
 */
const NAMES = 8_192;

/**
 * Asks the API server for the name of the user who has a token, and stores the answer for a few seconds. For several requests with the same
 * token, the server asks only once. Refusals are not stored.
 */
export class Usernames {
  readonly #names = new LRUCache<string, string, KubeClient>({
    max: NAMES,
    ttl: NAME_MILLISECONDS,
    // While the API server is asked for a name, the cache might remove the entry for this name, to make room for another entry. With this
    // option, the caller still gets the name.
    ignoreFetchAbort: true,
    fetchMethod: async (_hash, _known, { context }) => {
      const { status } = await context.create(SELF_SUBJECT_REVIEWS, { metadata: {} });
      return status?.userInfo?.username ?? '';
    },
  });

  /**
   * Returns the name of the user who has the token. `client` sends this token to the API server. @throws ApiError 401 when the API server
   * does not accept the token.
   */
  async of(token: string, client: KubeClient): Promise<string> {
    // The key is a hash, because the memory must not contain tokens in plain text.
    const hash = createHash('sha256').update(token).digest('base64');
    return await this.#names.forceFetch(hash, { context: client });
  }
}

declare module 'fastify' {
  interface FastifyRequest {
    /** Returns the client with the rights of the caller. @throws StatusError 401 when the request has no bearer token. */
    caller: () => CallerClient;
    /** Returns the client and the watches with the rights of the caller. @throws StatusError 401 when the request has no bearer token. */
    fullCaller: () => Caller;
    /**
     * Controller whose signal aborts when the text of the answer is ready, or when the client has closed the connection. It is absent if
     * the router refuses the request.
     */
    end?: AbortController;
  }
}

const GONE = new StatusError(408, 'The client closed the connection');

/**
 * Adds the caller to each request. A request without a token that the API server knows is refused before its body is read, unless the schema
 * of its route has `security: []`.
 */
export function addCallers(app: App, callers: Callers): void {
  app.decorateRequest('caller');
  app.decorateRequest('fullCaller');
  app.decorateRequest('end');
  app.addHook('onRequest', (request, reply, next) => {
    const end = new AbortController();
    request.end = end;
    reply.raw.once('close', () => end.abort(GONE));
    request.caller = () => callers.clientOf(request.headers, end.signal);
    request.fullCaller = () => callers.callerOf(request.headers, end.signal);
    if (needsToken(request)) {
      tokenOf(request.headers);
      request.owner = async () => await request.caller().username();
    }
    next();
  });
  // The text of the answer is complete now, so the objects of the answer no longer count in the memory limit of lists. The text counts in
  // the limit of unread answers (answers.ts) until the client has read it.
  app.addHook('onSend', (request, _reply, _payload, next) => {
    request.end?.abort();
    next();
  });
  app.addHook('preParsing', async (request) => {
    const username = await request.owner?.();
    if (username !== undefined) {
      request.username = username;
      keepConnection(request.socket, username);
    }
  });
}

function needsToken({ routeOptions: { schema } }: FastifyRequest): boolean {
  return schema !== undefined && schema.security?.length !== 0;
}

const CREDENTIALS = /^Bearer +(?:Bearer +)?([^ ].*)$/i;

/** Adds the header `WWW-Authenticate` to every answer with status 401. */
export function addChallenges(app: App, signIn: SignInProvider): void {
  app.addHook('onSend', (request, reply, _payload, next) => {
    if (reply.statusCode === 401) {
      void reply.header('www-authenticate', challengeOf(request.headers.authorization, signIn));
    }
    next();
  });
}

/**
 * Returns the value of the header `WWW-Authenticate` for a refused request. `authorization` is the value of the request's header
 * `Authorization`. `now` is in milliseconds since 1970.
 */
export function challengeOf(
  authorization: string | undefined,
  signIn: SignInProvider,
  now = Date.now(),
): string {
  const token = CREDENTIALS.exec(authorization ?? '')?.[1];
  if (token === undefined) {
    return 'Bearer';
  }
  const cause = causeOfRefusal(token, signIn, now / 1000);
  const description = cause === undefined ? '' : `, error_description="${cause}"`;
  return `Bearer error="invalid_token"${description}`;
}
