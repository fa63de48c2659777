/** Calls the HTTP API as clients do, with a bearer token and the authority of the server's certificate. */
import { Agent, request } from 'undici';
import type { ServerProcess } from '../../hack/cluster/server.ts';

export interface HTTPAnswer {
  readonly status: number;
  readonly headers: Record<string, string | string[] | undefined>;
  /** Parsed JSON, or the text when it is not JSON. */
  // oxlint-disable-next-line typescript/no-explicit-any -- Each test reads other fields of it.
  readonly body: any;
  /** The body as it came. */
  readonly text: string;
}

export interface HTTPCall {
  readonly method?: 'GET' | 'POST' | 'PUT' | 'PATCH' | 'DELETE' | 'HEAD';
  readonly token?: string | undefined;
  /** Body; an object is sent as JSON, a text as it is. */
  readonly body?: unknown;
  readonly headers?: Record<string, string>;
  readonly signal?: AbortSignal;
}

export class HTTPClient {
  readonly #url: string;
  readonly #dispatcher: Agent;

  constructor({ url, authority }: Pick<ServerProcess, 'url' | 'authority'>) {
    this.#url = url;
    this.#dispatcher = new Agent({ connect: { ca: authority }, headersTimeout: 0, bodyTimeout: 0 });
  }

  /** Sends the path as it is. */
  async call(
    path: string,
    { method = 'GET', token, body, headers, signal }: HTTPCall = {},
  ): Promise<HTTPAnswer> {
    const response = await request(`${this.#url}${path}`, {
      method,
      dispatcher: this.#dispatcher,
      headers: {
        ...(body !== undefined && { 'content-type': 'application/json; charset=utf-8' }),
        ...(token !== undefined && { authorization: `Bearer ${token}` }),
        ...headers,
      },
      body: body === undefined || typeof body === 'string' ? (body ?? null) : JSON.stringify(body),
      ...(signal === undefined ? {} : { signal }),
    });
    const text = await response.body.text();
    return { status: response.statusCode, headers: response.headers, body: parsed(text), text };
  }

  async close(): Promise<void> {
    await this.#dispatcher.destroy();
  }
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}
