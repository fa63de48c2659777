/**
 * Replaces `undici` in the bundle of the command. A command sends only a few requests, and loading the library would take a quarter of its
 * time. This file has only the functions that `Transport` uses. `undici.test.ts` tests both.
 */
import * as http from 'node:http';
import * as https from 'node:https';
import { isIP, type Socket } from 'node:net';
import { connect as connectSecurely, type ConnectionOptions } from 'node:tls';
import type { Dispatcher } from 'undici';
import type { ExchangeController } from '../../../kube/transport.ts';

/** Default time limit of a connection attempt in milliseconds. undici has the same default. */
const CONNECT_MILLISECONDS = 10_000;

export interface PoolOptions {
  readonly connections?: number;
  /** Time in milliseconds after which an idle connection is closed. */
  readonly keepAliveTimeout?: number;
  readonly connect?: ConnectOptions | Connector;
}

interface ConnectOptions extends ConnectionOptions {
  readonly timeout?: number;
  readonly keepAliveInitialDelay?: number;
}

interface Target {
  readonly protocol: string;
  readonly hostname: string;
  readonly port: string;
  /** Open connection to the server, on which TLS begins. */
  readonly httpSocket?: Socket;
}

/** Opens a connection to a server. */
type Connector = (target: Target, callback: (error: Error | null, socket: Socket | null) => void) => void;

/** Returns a connector for servers with TLS. */
export function buildConnector({ timeout = CONNECT_MILLISECONDS, ...options }: ConnectOptions): Connector {
  return ({ hostname, port, httpSocket }, callback) => {
    const servername = isIP(hostname) === 0 ? hostname : '';
    const address = { host: hostname, port: Number(port) };
    const socket = connectSecurely({
      servername,
      ...options,
      ...address,
      ...(httpSocket && { socket: httpSocket }),
    });
    const late = setTimeout(() => socket.destroy(timeOver('no connection in time')), timeout);
    const fail = (error: Error): void => callback(error, null);
    socket.once('error', fail).once('close', () => clearTimeout(late));
    socket.once('secureConnect', () => {
      clearTimeout(late);
      socket.off('error', fail);
      callback(null, socket);
    });
  };
}

type Options = Pick<Dispatcher.DispatchOptions, 'method' | 'path' | 'headers' | 'body'>;

interface Handler {
  onRequestStart(controller: ExchangeController): void;
  onResponseStart(controller: ExchangeController, status: number, headers: http.IncomingHttpHeaders): void;
  onResponseData(controller: ExchangeController, chunk: Buffer): void;
  onResponseEnd(): void;
  onResponseError(controller: ExchangeController, error: Error): void;
}

type StreamOptions = Options & { readonly signal: AbortSignal; readonly headersTimeout: number };

/** HTTP/1.1 connections to one server. */
export class Pool {
  readonly #origin: string;
  readonly #library: typeof http | typeof https;
  readonly #agent: http.Agent;
  readonly #connectMilliseconds: number;
  readonly #keepAliveDelay: number | undefined;

  constructor(origin: string, { connections, keepAliveTimeout, connect = {} }: PoolOptions) {
    const {
      timeout = CONNECT_MILLISECONDS,
      keepAliveInitialDelay,
      ...tls
    }: ConnectOptions = typeof connect === 'function' ? {} : connect;
    this.#origin = origin;
    this.#library = origin.startsWith('https:') ? https : http;
    this.#connectMilliseconds = timeout;
    this.#keepAliveDelay = keepAliveInitialDelay;
    this.#agent = new this.#library.Agent({
      ...tls,
      keepAlive: true,
      maxSockets: connections ?? Infinity,
      ...(keepAliveTimeout === undefined ? {} : { timeout: keepAliveTimeout }),
    });
    if (typeof connect === 'function') {
      const { protocol, hostname, port } = new URL(origin);
      this.#agent.createConnection = (_options, callback) => {
        connect({ protocol, hostname, port }, callback as Parameters<Connector>[1]);
        return undefined;
      };
    }
  }

  dispatch(options: Options, handler: Handler): boolean {
    const request = this.#send(options);
    let received: http.IncomingMessage | undefined;
    const controller = {
      // No error is passed to the connection, because the handler has the reason. An error on a connection without a listener would end the
      // process.
      abort: () => void request.destroy(),
      pause: () => void received?.pause(),
      resume: () => void received?.resume(),
    };
    const fail = (error: Error): void => handler.onResponseError(controller, error);
    request.on('error', fail);
    request.once('response', (response) => {
      received = response;
      handler.onResponseStart(controller, response.statusCode ?? 0, response.headers);
      response.on('data', (chunk: Buffer) => handler.onResponseData(controller, chunk));
      response.once('end', () => handler.onResponseEnd());
      response.on('error', fail);
    });
    handler.onRequestStart(controller);
    return true;
  }

  /**
   * Resolves with the status, the headers and the body of the answer. The body is a stream.
   *
   * @throws the signal's reason; the network's error.
   */
  async request({ signal, headersTimeout, ...options }: StreamOptions) {
    signal.throwIfAborted();
    const request = this.#send(options);
    const { promise, resolve, reject } = Promise.withResolvers<http.IncomingMessage>();
    let received: http.IncomingMessage | undefined;
    const onAbort = (): void => {
      const reason = signal.reason as Error;
      reject(reason);
      // The reader of the body also gets the reason.
      void (received?.destroy(reason) ?? request.destroy());
    };
    const late = setTimeout(() => request.destroy(timeOver('no answer in time')), headersTimeout);
    signal.addEventListener('abort', onAbort, { once: true });
    request.once('close', () => signal.removeEventListener('abort', onAbort));
    // This listener is never removed, because an error without a listener would end the process.
    request.on('error', reject);
    request.once('response', (response) => {
      received = response;
      resolve(response);
    });
    try {
      const response = await promise;
      return { statusCode: response.statusCode ?? 0, headers: response.headers, body: response };
    } finally {
      clearTimeout(late);
    }
  }

  async close(): Promise<void> {
    await this.destroy();
  }

  /** Ends all connections immediately. */
  async destroy(): Promise<void> {
    this.#agent.destroy();
  }

  #send({ method, path, headers, body }: Options): http.ClientRequest {
    const content = typeof body === 'string' ? body : '';
    // Node.js sends no length for the body of a DELETE request. The server would then read this body as the next request.
    const length = content === '' ? {} : { 'content-length': Buffer.byteLength(content) };
    const request = this.#library.request(new URL(path, this.#origin), {
      method,
      headers: { ...(headers as http.OutgoingHttpHeaders), ...length },
      agent: this.#agent,
    });
    request.once('socket', (socket) => this.#watch(socket, request));
    request.end(content);
    return request;
  }

  /** Ends the request if its connection is not open in time. */
  #watch(socket: Socket, request: http.ClientRequest): void {
    if (!socket.connecting) {
      return;
    }
    socket.setKeepAlive(true, this.#keepAliveDelay);
    const late = setTimeout(
      () => request.destroy(timeOver('no connection in time')),
      this.#connectMilliseconds,
    );
    const end = (): void => clearTimeout(late);
    socket.once(this.#library === https ? 'secureConnect' : 'connect', end).once('close', end);
  }
}

function timeOver(message: string): Error {
  return Object.assign(new Error(message), { code: 'ETIMEDOUT' });
}
