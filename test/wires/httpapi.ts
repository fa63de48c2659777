/** Calls the HTTP API as clients do, with a bearer token and the authority of the server's certificate. */
import { Readable } from 'node:stream';
import { Agent, type Dispatcher, request } from 'undici';
import type { ServerProcess } from '../../hack/cluster/program.ts';

export interface HTTPAnswer {
  readonly status: number;
  readonly headers: Record<string, string | string[] | undefined>;
  /** Parsed JSON, or the text when it is not JSON. */
  // oxlint-disable-next-line typescript/no-explicit-any -- Each test reads other fields of it.
  readonly body: any;
  /** The body as received. */
  readonly text: string;
}

export interface HTTPCall {
  readonly method?: 'GET' | 'POST' | 'PUT' | 'PATCH' | 'DELETE' | 'HEAD';
  readonly token?: string | undefined;
  /** Body of the request. An object is sent as JSON. A text, a buffer or a stream is sent unchanged. */
  readonly body?: unknown;
  readonly headers?: Record<string, string>;
  readonly signal?: AbortSignal;
}

interface ClientOptions {
  /** Address from which the client connects. The system chooses one by default. */
  readonly localAddress?: string | undefined;
  readonly connections?: number;
}

export class HTTPClient {
  readonly #url: string;
  readonly #dispatcher: Agent;

  /** `connections` is the largest number of connections. There is no limit by default. */
  constructor(
    { url, authority }: Pick<ServerProcess, 'url' | 'authority'>,
    { localAddress, connections }: ClientOptions = {},
  ) {
    this.#url = url;
    this.#dispatcher = new Agent({
      connect: { ca: authority },
      headersTimeout: 0,
      bodyTimeout: 0,
      ...(localAddress === undefined ? {} : { localAddress }),
      ...(connections === undefined ? {} : { connections }),
    });
  }

  /** Sends the path as it is. */
  async call(path: string, call: HTTPCall = {}): Promise<HTTPAnswer> {
    const response = await this.open(path, call);
    const text = await response.body.text();
    return { status: response.statusCode, headers: response.headers, body: parsed(text), text };
  }

  /** Sends the path as it is. The body of the answer is not read yet. */
  async open(
    path: string,
    { method = 'GET', token, body, headers, signal }: HTTPCall = {},
  ): Promise<Dispatcher.ResponseData> {
    return await request(`${this.#url}${path}`, {
      method,
      dispatcher: this.#dispatcher,
      headers: {
        ...(body !== undefined && { 'content-type': 'application/json; charset=utf-8' }),
        ...(token !== undefined && { authorization: `Bearer ${token}` }),
        ...headers,
      },
      body: isPlain(body) ? body : body === undefined ? null : JSON.stringify(body),
      ...(signal === undefined ? {} : { signal }),
    });
  }

  async close(): Promise<void> {
    await this.#dispatcher.destroy();
  }
}

function isPlain(body: unknown): body is string | Buffer | Readable {
  return typeof body === 'string' || Buffer.isBuffer(body) || body instanceof Readable;
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}
