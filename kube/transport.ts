/** Sends requests to one API server. Bodies are plain JSON, and all requests share one pool of keep-alive connections. */
import { addAbortListener } from 'node:events';
import type { Socket } from 'node:net';
import type { IncomingHttpHeaders } from 'node:http';
import { createGunzip, type Gunzip } from 'node:zlib';
import type { Registry } from 'prom-client';
import type { Dispatcher, Pool } from 'undici';
import { Backoff } from '../base/backoff.ts';
import type { WebSocket } from 'ws';
import type { Channels, ChannelsRequest, WebSocketRequest } from './channels.ts';
import type { Connection } from './credentials.ts';
import { DeadlineError } from './errors.ts';
import { parseWithoutManagedFields } from './json.ts';
import { type RuntimeMetrics, runtimeMetrics } from './metrics.ts';
import { createPool } from './pool.ts';
import { beginSlice, isSliceOver, pause } from '../base/time.ts';
import { TokenSource } from './tokensource.ts';
import { readRefusal, requestUpgrade } from './upgrade.ts';

/**
 * Limit in bytes of an answer with a status other than 200. Such an answer is a refusal or one object, and an object has at most 3 MB. The
 * API server also passes on refusals of hosts. A hostile host could send an endless refusal, so the limit is needed.
 */
const LIMIT_BYTES = 16 * 1024 * 1024;

/**
 * Size in bytes of the pieces into which a compressed body is decompressed. The reader of a list needs less than a millisecond for a piece.
 * Lists are requested in compressed form, because the API server compresses long lists without a loss of speed. A compressed list has fewer
 * bytes, so this process needs only half of the CPU time to read it.
 */
const DECOMPRESSED_BYTES = 64 * 1024;

/**
 * Type of the controller with which {@link exchange} ends, pauses and resumes a request. The type has no other methods, because the
 * connection pool of the `berth` command (`cli`) offers only these three.
 */
export type ExchangeController = Pick<Dispatcher.DispatchController, 'abort' | 'pause' | 'resume'>;

export interface Exchanged {
  statusCode: number;
  headers: IncomingHttpHeaders;
  /** Body, decoded as UTF-8. It is empty if `onData` received the body. */
  text: string;
}

/**
 * Sends a request. The promise rejects with the network's error, or with the signal's reason. It rejects as soon as the signal aborts, even
 * while the request waits for a connection. If the status is 200, `onData` takes the pieces of the body as they arrive. If `onData` throws,
 * the promise rejects with that error. The promise also rejects if the body of a refusal is too long.
 */
export async function exchange(
  dispatcher: Dispatcher,
  options: Dispatcher.DispatchOptions,
  signal: AbortSignal,
  onData?: (piece: Buffer) => void,
): Promise<Exchanged> {
  signal.throwIfAborted();
  const exchanged = new Exchange(onData);
  using _listener = addAbortListener(signal, () => exchanged.abort(signal.reason));
  dispatcher.dispatch(options, exchanged);
  return await exchanged.answer;
}

class Exchange implements Dispatcher.DispatchHandler {
  readonly #resolvers = Promise.withResolvers<Exchanged>();
  #controller: ExchangeController | undefined;
  #abortedFor: Error | undefined;
  #statusCode = 0;
  #headers: IncomingHttpHeaders = {};
  /** Stream that decompresses the body. Undefined if the body is not compressed. */
  #gunzip: Gunzip | undefined;
  readonly #chunks: Buffer[] = [];
  #bytes = 0;
  readonly #onData: ((piece: Buffer) => void) | undefined;

  constructor(onData: ((piece: Buffer) => void) | undefined) {
    this.#onData = onData;
  }

  get answer(): Promise<Exchanged> {
    return this.#resolvers.promise;
  }

  abort(reason: Error): void {
    this.#abortedFor = reason;
    this.#controller?.abort(reason);
    this.#gunzip?.destroy();
    this.#resolvers.reject(reason);
  }

  onRequestStart(controller: ExchangeController): void {
    this.#controller = controller;
    if (this.#abortedFor !== undefined) {
      controller.abort(this.#abortedFor);
    }
  }

  /** Called for each status that the server sends. Informational statuses (1xx) can come before the final status. */
  onResponseStart(controller: ExchangeController, statusCode: number, headers: IncomingHttpHeaders): void {
    this.#statusCode = statusCode;
    this.#headers = headers;
    if (headers['content-encoding'] === 'gzip') {
      this.#gunzip = createGunzip({ chunkSize: DECOMPRESSED_BYTES })
        .on('data', (piece: Buffer) => this.#take(piece))
        .on('drain', () => controller.resume())
        .on('end', () => this.#end())
        .on('error', (error) => this.abort(error));
    }
  }

  onResponseData(controller: ExchangeController, chunk: Buffer): void {
    if (this.#gunzip !== undefined) {
      // Each decompressed piece arrives in a separate callback, so other work can run between two pieces.
      if (!this.#gunzip.write(chunk)) {
        controller.pause();
      }
      return;
    }
    beginSlice();
    this.#take(chunk);
    // One connection can deliver 2 MiB in a turn, and reading them takes about 20 ms.
    if (isSliceOver()) {
      controller.pause();
      setImmediate(() => controller.resume());
    }
  }

  #take(piece: Buffer): void {
    if (this.#onData === undefined || this.#statusCode !== 200) {
      this.#keep(piece);
      return;
    }
    try {
      this.#onData(piece);
    } catch (error) {
      this.abort(error as Error);
    }
  }

  #keep(chunk: Buffer): void {
    this.#chunks.push(chunk);
    this.#bytes += chunk.length;
    if (this.#statusCode !== 200 && this.#bytes > LIMIT_BYTES) {
      this.abort(
        new Error(`the answer with HTTP status ${this.#statusCode} has more than ${LIMIT_BYTES} bytes`),
      );
    }
  }

  onResponseEnd(): void {
    if (this.#gunzip === undefined) {
      this.#end();
    } else {
      this.#gunzip.end();
    }
  }

  #end(): void {
    const [first] = this.#chunks;
    const body = this.#chunks.length === 1 && first !== undefined ? first : Buffer.concat(this.#chunks);
    this.#resolvers.resolve({
      statusCode: this.#statusCode,
      headers: this.#headers,
      text: body.toString('utf8'),
    });
  }

  onResponseError(_controller: ExchangeController, error: Error): void {
    this.#gunzip?.destroy();
    this.#resolvers.reject(error);
  }
}

/**
 * Time limits of a request in milliseconds. For a read, it is half of the 60 s after which the API server ends the request, so the caller has
 * time for a second attempt. The API server itself ends a change after 34 s, and it waits at most 30 s for a webhook. Its answer, which
 * names a webhook that is too slow, therefore arrives within the limit for a change.
 */
const DEADLINE_MILLISECONDS = { read: 30_000, change: 36_000 } as const;
/**
 * Largest number of attempts for one request. client-go has the same number. If each wait is 1 s, all attempts fit into the time limit of a
 * request.
 */
const ATTEMPTS = 10;
/**
 * Longest value of Retry-After, in milliseconds, for which a request waits. If the value is larger, the caller gets the answer immediately.
 */
const RETRY_AFTER_LIMIT_MILLISECONDS = 10_000;
/** First wait in milliseconds before another attempt, if an answer with status 429 or 503 has no Retry-After. */
const RETRY_FIRST_MILLISECONDS = 250;

export type Method = 'GET' | 'POST' | 'PUT' | 'PATCH' | 'DELETE';

export interface Request {
  method: Method;
  /** Path with its query. */
  path: string;
  /** Body, which is sent as JSON. */
  body?: unknown;
  /** Content type of the body. The default is `application/json`. */
  contentType?: string | undefined;
  /** Media type of the answer, a form of JSON. The default is `application/json`. */
  accept?: string | undefined;
  signal?: AbortSignal | undefined;
  /** Time limit of the whole request: the wait for a connection, sending, retries and reading the answer. */
  deadlineMilliseconds?: number | undefined;
  /** Function that is called just before each attempt. If it throws, the request is not sent. */
  beforeSend?: (() => void) | undefined;
  /** If the status is 200, this function takes the pieces of the body as they arrive. In this case, the `body` of the answer is empty. */
  onData?: ((piece: Buffer) => void) | undefined;
}

export interface Answer {
  status: number;
  /** Parsed JSON without `managedFields`, or text when the answer is not JSON. */
  body: unknown;
  /** Wait in milliseconds before the next attempt, if the server's answer requests one. */
  retryAfterMilliseconds: number | undefined;
}

export interface TransportOptions {
  metrics: Registry;
  /** Name of this program in the API server's audit log. */
  userAgent?: string;
  /**
   * Largest number of watches at the same time. If it is set, the transport serves only watches, which share HTTP/2 connections. With
   * HTTP/1.1, a thousand watches would need a thousand connections.
   */
  watches?: number;
  /** Connections of another transport to the same server. If absent, the transport has its own connections. */
  pool?: Pool;
}

/**
 * Client of one API server. It always verifies the server's certificate. Within the time limit it repeats a request of any method after
 * `429`, `503`, and other server errors with `Retry-After`. These answers mean that the server has not executed the request.
 */
export class Transport {
  readonly host: string;
  /** Prefix of each request's path. Empty if the server is not a proxy. It never begins with `//`, because `//` would begin a host name. */
  readonly #root: string;
  #connection: Connection;
  #pool: Pool;
  #token: TokenSource;
  readonly metrics: RuntimeMetrics;
  readonly #options: TransportOptions;

  constructor(connection: Connection, options: TransportOptions) {
    this.#connection = connection;
    this.#options = options;
    this.#token = new TokenSource(connection);
    const { host, pathname } = new URL(connection.server);
    this.host = host;
    this.#root = pathname.replace(/^\/+/, '/').replace(/\/+$/, '');
    this.#pool = options.pool ?? createPool(connection, options.watches);
    this.metrics = runtimeMetrics(options.metrics);
  }

  /**
   * Returns a transport that sends the token of another user over the same connections. The caller must not close the returned transport,
   * because it shares its connections with the original transport.
   *
   * @throws Error when the connections have a client certificate. The API server prefers a certificate to a token, so the requests would
   * have the rights of the certificate.
   */
  as(token: string): Transport {
    const { server, serverName, certificateAuthority, clientCertificate } = this.#connection;
    if (clientCertificate !== undefined) {
      throw new Error(
        'a connection with a client certificate cannot send requests with the token of another user',
      );
    }
    const connection = { server, serverName, certificateAuthority, token };
    return new Transport(connection, { ...this.#options, pool: this.#pool });
  }

  /**
   * Resolves with the server's answer, even if its status is an error.
   *
   * @throws DeadlineError when the time limit passes, the signal's reason when the signal aborts, or the network's error when the
   * connection fails. If the request changes an object, the server might have made the change even so.
   */
  async request(request: Request): Promise<Answer> {
    const usual = DEADLINE_MILLISECONDS[request.method === 'GET' ? 'read' : 'change'];
    const { signal, deadlineMilliseconds = usual } = request;
    signal?.throwIfAborted();
    // A credential plug-in can ask a person to sign in. Therefore it has its own time limit, and the request's time limit begins later.
    await this.#token.token();
    const limit = new AbortController();
    using _listener = signal && addAbortListener(signal, () => limit.abort(signal.reason));
    const timer = setTimeout(() => limit.abort(deadlineError(request)), deadlineMilliseconds);
    try {
      return await this.#attempts(request, limit.signal);
    } finally {
      clearTimeout(timer);
    }
  }

  /**
   * Opens a stream of any length: a watch, or a log that is followed. The server has 30 s to send the headers of its answer. After that,
   * only `signal`, the server or the connection ends the stream.
   *
   * @throws ApiError when the server refuses.
   */
  async stream(path: string, signal: AbortSignal): Promise<AsyncIterable<Buffer>> {
    const response = await this.#measured({ method: 'GET', path }, (options) =>
      this.#pool.request({ ...options, signal, headersTimeout: DEADLINE_MILLISECONDS.read }),
    );
    if (response.statusCode !== 200) {
      if (response.statusCode === 401) {
        this.#token.refuse();
      }
      throw await readRefusal(response.body, response.statusCode, retryAfter(response));
    }
    return response.body as AsyncIterable<Buffer>;
  }

  /**
   * Opens a separate connection to the target of the path, for example to a Pod by its subresource `attach`. The API server passes on all
   * bytes unchanged. The caller must handle the errors of the connection.
   *
   * @throws ApiError when the API server or the host refuses, the signal's reason when the signal aborts, or the network's error.
   */
  async upgrade(path: string, protocol: string, signal: AbortSignal): Promise<Socket> {
    const headers = await this.#headers({ method: 'POST', path });
    return await requestUpgrade(this.#connection, { path: this.#root + path, protocol, headers, signal });
  }

  /**
   * Opens a WebSocket to a subresource of a Pod: `exec`, `attach` or `portforward`. The WebSocket is closed when `signal` aborts.
   *
   * @throws the same errors as {@link upgrade}.
   */
  async channels(request: Omit<ChannelsRequest, 'headers'>): Promise<Channels> {
    // The library is loaded only when needed, because loading takes time and most programs have no such connection.
    const { openChannels } = await import('./channels.ts');
    const headers = await this.#headers({ method: 'GET', path: request.path });
    return await openChannels(this.#connection, { ...request, path: this.#root + request.path, headers });
  }

  /**
   * Opens a WebSocket to a subresource of a Pod, and returns what `take` makes of it before its first message arrives. The WebSocket is
   * closed when `signal` aborts.
   *
   * @throws the same errors as {@link upgrade}.
   */
  async webSocket<T>(request: Omit<WebSocketRequest, 'headers'>, take: (socket: WebSocket) => T): Promise<T> {
    const { openWebSocket } = await import('./channels.ts');
    const headers = await this.#headers({ method: 'GET', path: request.path });
    return await openWebSocket(
      this.#connection,
      { ...request, path: this.#root + request.path, headers },
      take,
    );
  }

  /** Uses other credentials for all later requests. Requests that are under way are completed over the old connections. */
  replaceCredentials(connection: Connection): void {
    const old = this.#pool;
    this.#connection = connection;
    this.#token = new TokenSource(connection);
    this.#pool = createPool(connection, this.#options.watches);
    // This function does not wait for `close`, because `close` resolves only when the last watch of the old pool has ended. `close` never
    // rejects.
    void old.close();
  }

  /** Ends all connections at once. */
  async close(): Promise<void> {
    await this.#pool.destroy();
  }

  async #attempts(request: Request, signal: AbortSignal): Promise<Answer> {
    const backoff = new Backoff({
      firstMilliseconds: RETRY_FIRST_MILLISECONDS,
      capMilliseconds: RETRY_AFTER_LIMIT_MILLISECONDS,
      jitter: 1,
    });
    for (let attempt = 1; ; attempt += 1) {
      const response = await this.#measured(request, (options) =>
        exchange(this.#pool, options, signal, request.onData),
      );
      const body = bodyOf(response, response.text);
      const wait = attempt < ATTEMPTS ? this.#retryWait(response, attempt, backoff) : undefined;
      if (wait === undefined) {
        return { status: response.statusCode, body, retryAfterMilliseconds: retryAfter(response) };
      }
      this.metrics.requestRetries.inc({
        code: response.statusCode,
        verb: request.method,
        host: this.host,
      });
      await pause(wait, signal);
    }
  }

  /** Returns the wait in milliseconds before another attempt. The result is undefined if the answer is final. */
  #retryWait(response: Head, attempt: number, backoff: Backoff): number | undefined {
    const status = response.statusCode;
    if (status === 401 && attempt === 1 && this.#token.refuse()) {
      return 0;
    }
    if (status !== 429 && status < 500) {
      return undefined;
    }
    const asked = retryAfter(response);
    if (asked !== undefined) {
      return asked <= RETRY_AFTER_LIMIT_MILLISECONDS ? asked : undefined;
    }
    return status === 429 || status === 503 ? backoff.next() : undefined;
  }

  /** Sends the request with `send` and counts it in the metrics. Turns off the time limits of undici for the request. */
  async #measured<A extends Head>(
    request: Request,
    send: (options: Dispatcher.DispatchOptions) => Promise<A>,
  ): Promise<A> {
    const headers = await this.#headers(request);
    const started = performance.now();
    let code = '<error>';
    try {
      request.beforeSend?.();
      const answer = await send({
        method: request.method,
        path: this.#root + request.path,
        headers,
        body: request.body === undefined ? null : JSON.stringify(request.body),
        headersTimeout: 0,
        bodyTimeout: 0,
      });
      code = String(answer.statusCode);
      return answer;
    } finally {
      const { host } = this;
      const seconds = (performance.now() - started) / 1000;
      this.metrics.requests.inc({ code, method: request.method, host });
      this.metrics.requestDuration.observe({ verb: request.method, host }, seconds);
    }
  }

  async #headers(request: Request): Promise<Record<string, string>> {
    const { onData, body, contentType = 'application/json', accept = 'application/json' } = request;
    const token = await this.#token.token();
    return {
      accept,
      'user-agent': this.#options.userAgent ?? 'berth',
      ...(onData === undefined ? {} : { 'accept-encoding': 'gzip' }),
      ...(body === undefined ? {} : { 'content-type': contentType }),
      ...(token === undefined ? {} : { authorization: `Bearer ${token}` }),
    };
  }
}

/** Status and headers of an answer, which arrive before its body. */
type Head = Pick<Exchanged, 'statusCode' | 'headers'>;

function deadlineError(request: Request): DeadlineError {
  return new DeadlineError(`${request.method} ${request.path.split('?')[0]}: no answer in time`);
}

function bodyOf({ headers }: Head, text: string): unknown {
  const type = headers['content-type'];
  return typeof type === 'string' && type.includes('json') && text !== ''
    ? parseWithoutManagedFields(text)
    : text;
}

/** Converts Retry-After from seconds to milliseconds. A date is ignored: some proxies send a date, but the API server never does. */
function retryAfter(response: Head): number | undefined {
  const value = response.headers['retry-after'];
  return typeof value === 'string' && /^\d{1,6}$/.test(value) ? Number(value) * 1000 : undefined;
}
