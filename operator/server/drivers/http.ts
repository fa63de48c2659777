/** HTTP requests to one controller, with a time limit for all of them together. It follows no redirect. */
import { addAbortListener } from 'node:events';
import { Client, type Dispatcher } from 'undici';
import { codeOf, messageOf } from '../../../base/errors.ts';
import { ByteCollector } from '../../../base/lines.ts';
import { PowerError, quoteController } from './driver.ts';

/** Codes of errors of Node.js and OpenSSL about the certificate of a server. */
const CERTIFICATE_ERROR = /CERT|UNABLE_TO_(GET|VERIFY)|INVALID_(CA|PURPOSE)/;
/** Codes of errors when a server answers, but not with TLS or HTTP. */
const PROTOCOL_ERROR = /^(EPROTO|ERR_SSL_|HPE_|UND_ERR_HEADERS_OVERFLOW|UND_ERR_RES_)/;
/** Statuses with which a server of HTTP says that it has not carried out the request, beside 4xx. After 500, 502 and 504 nobody knows. */
const NOT_DONE = new Set([501, 503]);

export interface HttpOptions {
  readonly origin: string;
  /** Value of the header `Authorization`. */
  readonly authorization: string | undefined;
  /** Time in milliseconds for all requests together. */
  readonly limitMilliseconds: number;
  /** Certificates of authorities as PEM text. The default is the public authorities, and those of NODE_EXTRA_CA_CERTS. */
  readonly authority?: string | undefined;
  readonly insecureSkipVerify?: boolean | undefined;
}

export interface HttpRequest {
  readonly method: 'GET' | 'POST';
  /** Path and query. */
  readonly path: string;
  /** Name of the request at the beginning of messages. */
  readonly what: string;
  readonly headers?: Readonly<Record<string, string>>;
  readonly body?: string;
  /** Number of bytes of the answer that are read. */
  readonly limitBytes: number;
}

export interface HttpAnswer {
  readonly status: number;
  /** First bytes of the body. Empty if the controller has accepted a POST, because nothing in that body counts. */
  readonly body: Buffer;
  /** Whether the body had more bytes than were read. */
  readonly isCut: boolean;
}

/** One call of a controller: requests one after another, over one connection if the controller keeps it. */
export class HttpCall implements AsyncDisposable {
  readonly #client: Client;
  readonly #headers: Readonly<Record<string, string>>;
  readonly #limitMilliseconds: number;
  readonly #signal: AbortSignal;

  constructor({
    origin,
    authorization,
    limitMilliseconds,
    authority,
    insecureSkipVerify = false,
  }: HttpOptions) {
    this.#headers = authorization === undefined ? {} : { authorization };
    this.#limitMilliseconds = limitMilliseconds;
    this.#signal = AbortSignal.timeout(limitMilliseconds);
    this.#client = new Client(origin, {
      allowH2: false,
      connect: {
        timeout: limitMilliseconds,
        rejectUnauthorized: !insecureSkipVerify,
        ...(authority === undefined ? {} : { ca: authority }),
      },
    });
  }

  /** Sends a request and returns the answer, whatever its status is. @throws PowerError when no answer comes */
  async send(request: HttpRequest): Promise<HttpAnswer> {
    const { method, path, body = null, what } = request;
    const exchange = new Exchange(request);
    try {
      this.#signal.throwIfAborted();
      using _listener = addAbortListener(this.#signal, () => exchange.fail(this.#signal.reason));
      const headers = { ...this.#headers, ...request.headers };
      this.#client.dispatch({ method, path, body, headers }, exchange);
      return await exchange.answer;
    } catch (error) {
      throw this.#failure(error, what, method === 'GET' || !exchange.isSent);
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#client.destroy();
  }

  #failure(cause: unknown, what: string, isRefusal: boolean): PowerError {
    const code = codeOf(cause) ?? '';
    const how = { isRefusal, cause };
    if (this.#signal.aborted) {
      const seconds = this.#limitMilliseconds / 1000;
      return new PowerError(
        'ControllerUnreachable',
        `${what}: no complete answer came within ${seconds} s`,
        how,
      );
    }
    if (CERTIFICATE_ERROR.test(code)) {
      // Node.js adds advice about its own flags after a semicolon. The text has the names in the certificate, which the controller chooses.
      const mistake = quoteController(messageOf(cause).split('; ', 1)[0] ?? '', undefined);
      return new PowerError('CertificateRefused', `${what}: the certificate is not trusted: ${mistake}`, how);
    }
    if (PROTOCOL_ERROR.test(code)) {
      return new PowerError(
        'ControllerFailed',
        `${what}: the answer is not valid TLS or HTTP (${code})`,
        how,
      );
    }
    const why = code === '' ? messageOf(cause) : code;
    return new PowerError('ControllerUnreachable', `${what}: the connection failed (${why})`, how);
  }
}

/**
 * Returns an error for an answer that is not a success.
 * @param words text of the controller about the error, or an empty text
 */
export function statusError(request: HttpRequest, { status }: HttpAnswer, message: string): PowerError {
  const isRefused = (status >= 400 && status < 500) || NOT_DONE.has(status);
  const how = { isRefusal: request.method === 'GET' || isRefused };
  const tail = message === '' ? '' : `: ${message}`;
  if (status === 401 || status === 403) {
    return new PowerError('CredentialsRefused', `${request.what} was answered with ${status}${tail}`, how);
  }
  const redirect = status >= 300 && status < 400 ? ', a redirect, which Berth does not follow' : '';
  return new PowerError(
    'ControllerFailed',
    `${request.what} was answered with ${status}${redirect}${tail}`,
    how,
  );
}

export function isSuccess(status: number): boolean {
  return status >= 200 && status < 300;
}

/** One request and its answer. */
class Exchange implements Dispatcher.DispatchHandler {
  readonly #resolvers = Promise.withResolvers<HttpAnswer>();
  readonly #body = new ByteCollector();
  readonly #request: HttpRequest;
  #status = 0;
  /** Whether there was a connection, so that the controller can have received the request. */
  isSent = false;

  constructor(request: HttpRequest) {
    this.#request = request;
  }

  get answer(): Promise<HttpAnswer> {
    return this.#resolvers.promise;
  }

  fail(error: Error): void {
    this.#resolvers.reject(error);
  }

  onRequestStart(): void {
    this.isSent = true;
  }

  onResponseStart(controller: Dispatcher.DispatchController, status: number): void {
    this.#status = status;
    if (this.#request.method === 'POST' && isSuccess(status)) {
      this.#end(false);
      controller.abort(new Error('the rest of the answer is not needed'));
    }
  }

  onResponseData(controller: Dispatcher.DispatchController, chunk: Buffer): void {
    const room = this.#request.limitBytes - this.#body.length;
    this.#body.add(chunk.subarray(0, room));
    if (chunk.length > room) {
      this.#end(true);
      controller.abort(new Error('the answer is too long'));
    }
  }

  onResponseEnd(): void {
    this.#end(false);
  }

  onResponseError(_controller: Dispatcher.DispatchController, error: Error): void {
    this.#resolvers.reject(error);
  }

  #end(isCut: boolean): void {
    this.#resolvers.resolve({ status: this.#status, body: this.#body.take(), isCut });
  }
}
