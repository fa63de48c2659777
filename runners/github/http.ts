/** HTTPS requests to a server of GitHub, and to the servers that it names. Every answer is bounded in size and time. No redirect is followed. */
import { Agent, type Dispatcher } from 'undici';
import { AddressError, type Addresses, proxiedConnector } from '../../base/addresses.ts';
import { codeOf, messageOf } from '../../base/errors.ts';
import { JsonCheck, JsonError } from '../../base/json.ts';
import { ByteCollector } from '../../base/lines.ts';
import type { Proxies } from '../../base/proxy.ts';
import { ProxyError } from '../../base/tunnel.ts';
import { GitHubError } from './error.ts';

/**
 * Limits of an answer. The largest honest ones are a message with 50 jobs and a page of 100 runners with their labels. Both have below 300
 * KB and below 8,000 values.
 */
const LIMITS = { bytes: 1024 * 1024, items: 32_768 };
/** Time limit in milliseconds for a connection with TLS. */
const CONNECT_MILLISECONDS = 10_000;
/** Longest name of a host in messages, in characters. No longer name is in DNS. */
const HOST_CHARACTERS = 253;
/** Number of connections to one server. One of them has the long poll. */
const CONNECTIONS = 6;
/** Codes of errors of Node.js and OpenSSL about the certificate of a server. */
const CERTIFICATE_ERROR = /CERT|UNABLE_TO_(GET|VERIFY)|INVALID_(CA|PURPOSE)/;
/**
 * Identifier of a request: groups of hexadecimal digits. No other text goes into messages, because a server or a proxy can send back the
 * credentials of the request.
 */
const REQUEST_ID = /^[0-9a-f]{1,12}([:-][0-9a-f]{1,12}){1,7}$/i;
/** Longest wait in seconds that a header can ask for: it has at most five digits. */
const SECONDS = /^\d{1,5}$/;

export interface GitHubHttpRequest {
  readonly method: 'GET' | 'POST' | 'PATCH' | 'DELETE';
  readonly url: URL;
  readonly headers: Readonly<Record<string, string>>;
  /** JSON value. */
  readonly body?: unknown;
  /** Time limit of the whole exchange in milliseconds. */
  readonly limitMilliseconds: number;
  /** Name of the request at the beginning of messages. */
  readonly what: string;
}

export interface GitHubHttpAnswer {
  readonly status: number;
  /** JSON value. It is undefined for an empty body, and for an error whose body is no JSON. */
  readonly body: unknown;
  /** Identifiers of the request at the server, for its support. The text can be empty. */
  readonly requestID: string;
  /** Wait in milliseconds that the server asks for. */
  readonly retryAfterMilliseconds: number | undefined;
  /** Whether the server says that no request is left in this hour. */
  readonly isUsedUp: boolean;
  /** Clock of the server in milliseconds since the epoch. */
  readonly date: number | undefined;
}

/** How servers are reached. A user names the server, and its answers name further servers. */
export interface GitHubNetwork {
  readonly proxies: Proxies;
  /** Rules for the addresses of servers. They are checked at each connection. */
  readonly addresses: Addresses;
}

export interface GitHubHttpOptions extends GitHubNetwork {
  /** Certificates of authorities as PEM text. The default is the public authorities, and those of NODE_EXTRA_CA_CERTS. */
  readonly authorities: string | undefined;
}

export class GitHubHttp {
  readonly #agent: Agent;

  constructor({ authorities, proxies, addresses }: GitHubHttpOptions) {
    const tls = {
      timeout: CONNECT_MILLISECONDS,
      allowH2: false,
      ...(authorities === undefined ? {} : { ca: authorities }),
    };
    const direct = addresses.connector(tls);
    this.#agent = new Agent({
      connections: CONNECTIONS,
      connect: (target, callback) => {
        const { protocol, hostname, port } = target;
        const proxy = proxies.proxyFor({ protocol, hostname, port });
        (proxy === undefined ? direct : proxiedConnector(proxy, addresses, tls))(target, callback);
      },
    });
  }

  /** Sends a request and returns the answer, whatever its status is. @throws GitHubError when no valid answer comes */
  async send(request: GitHubHttpRequest, signal: AbortSignal): Promise<GitHubHttpAnswer> {
    const { limitMilliseconds, what } = request;
    const limit = AbortSignal.timeout(limitMilliseconds);
    try {
      return await this.#exchange(request, AbortSignal.any([signal, limit]));
    } catch (error) {
      signal.throwIfAborted();
      if (error instanceof JsonError) {
        throw new GitHubError('GitHubFailed', `${what}: the answer ${error.message}`);
      }
      throw limit.aborted
        ? new GitHubError('GitHubUnreachable', `${what}: no answer came within ${limitMilliseconds / 1000} s`)
        : networkError(error, what);
    }
  }

  /** Ends all connections at once. */
  async close(): Promise<void> {
    await this.#agent.destroy();
  }

  async #exchange(
    { method, url, headers, body }: GitHubHttpRequest,
    signal: AbortSignal,
  ): Promise<GitHubHttpAnswer> {
    const response = await this.#agent.request({
      origin: url.origin,
      path: url.pathname + url.search,
      method,
      headers,
      body: body === undefined ? null : JSON.stringify(body),
      signal,
      // The signal has the time limit.
      headersTimeout: 0,
      bodyTimeout: 0,
    });
    return await readAnswer(response);
  }
}

async function readAnswer({ statusCode, headers, body }: Dispatcher.ResponseData): Promise<GitHubHttpAnswer> {
  const check = new JsonCheck(LIMITS);
  const bytes = new ByteCollector();
  // If the check throws, the loop ends the connection.
  for await (const chunk of body as AsyncIterable<Buffer>) {
    check.push(chunk);
    bytes.add(chunk);
  }
  const header = (name: string): string => {
    const value = headers[name];
    return typeof value === 'string' ? value : '';
  };
  const asked = header('retry-after');
  const date = Date.parse(header('date'));
  return {
    status: statusCode,
    body: parseBody(check, bytes.take(), statusCode),
    requestID: ['activityid', 'x-github-request-id']
      .map(header)
      .filter((id) => REQUEST_ID.test(id))
      .join(' '),
    retryAfterMilliseconds: SECONDS.test(asked) ? Number(asked) * 1000 : undefined,
    isUsedUp: header('x-ratelimit-remaining') === '0',
    date: Number.isNaN(date) ? undefined : date,
  };
}

function parseBody(check: JsonCheck, bytes: Buffer, status: number): unknown {
  if (bytes.length === 0) {
    return undefined;
  }
  try {
    return check.parse(bytes);
  } catch (error) {
    // Errors of proxies and load balancers are pages for people.
    if (error instanceof JsonError && status >= 300) {
      return undefined;
    }
    throw error;
  }
}

function networkError(cause: unknown, what: string): GitHubError {
  if (cause instanceof AddressError) {
    // The message does not tell the address, because it can be one that only this program can look up.
    const host = cause.hostname.slice(0, HOST_CHARACTERS);
    return new GitHubError('GitHubAddressRefused', `${what}: the address of ${host} is not allowed`, {
      cause,
    });
  }
  const code = codeOf(cause) ?? '';
  if (cause instanceof ProxyError) {
    return new GitHubError('GitHubUnreachable', `${what}: ${cause.message}`, { cause });
  }
  if (CERTIFICATE_ERROR.test(code)) {
    return new GitHubError('GitHubCertificateRefused', `${what}: the certificate is not trusted (${code})`, {
      cause,
    });
  }
  const why = code === '' ? messageOf(cause) : code;
  return new GitHubError('GitHubUnreachable', `${what}: the connection failed (${why})`, { cause });
}
