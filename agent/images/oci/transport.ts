/**
 * A pool of connections to image servers: registries with their token servers and storage, or web servers. The pool uses HTTP/1.1, which
 * was twice as fast as HTTP/2 in measurements with Berth.
 */
import { X509Certificate } from 'node:crypto';
import { readFileSync } from 'node:fs';
import type { Readable } from 'node:stream';
import { Agent, type buildConnector, type Dispatcher, Pool } from 'undici';
import { networkError } from './failures.ts';
import { Addresses, type AddressRules, proxiedConnector } from '../../../base/addresses.ts';
import type { Proxies } from '../../../base/proxy.ts';
import { type ConnectOptions, refusal } from '../../../base/tunnel.ts';
import { apiHost } from '../../../api/v1alpha1/reference.ts';
import { ReasonedError } from '../../../api/v1alpha1/reasons.ts';

/** Time limit in milliseconds for opening a connection. The time is enough for a handshake with a busy server far away. */
const CONNECT_TIMEOUT_MILLISECONDS = 15_000;
/**
 * Time limit in milliseconds for the headers of an answer. The limit is long, because a registry sometimes has to check or fetch a blob of
 * gigabytes before it answers.
 */
const HEADERS_TIMEOUT_MILLISECONDS = 120_000;
/** If no data arrives for this time in milliseconds, the agent aborts the transfer, and then resumes it. */
const BODY_IDLE_TIMEOUT_MILLISECONDS = 60_000;
/**
 * Largest number of connections to each server. The download of one image needs only four connections to fully use a host with 2 cores. The
 * limit is higher, because several images can come from one server at once.
 */
const CONNECTIONS_PER_HOST = 32;
const ADVICE =
  'to allow this server, name it in images.registries of the agent; images.allowLoopbackHttp allows all addresses of the host itself';
const REDIRECT_LIMIT = 5;
const REDIRECTS = new Set([301, 302, 303, 307, 308]);
/** HTTP status with which a proxy asks for credentials. */
const PROXY_AUTHENTICATION = 407;

export interface RegistrySettings {
  /** Name of the registry as in references: `registry.example:5000`. */
  host: string;
  /** Path of a PEM file with certificate authorities for this host. For this host, these authorities replace the public authorities. */
  caFile?: string | undefined;
  /** True to use HTTP without TLS for this host. */
  plainHttp?: boolean | undefined;
}

export interface RegistriesOptions extends Pick<AddressRules, 'clusterCIDRs' | 'ownAddresses'> {
  /** True to allow addresses of this host itself and link-local addresses, for example for a mirror on this host. */
  allowLoopbackHttp: boolean;
  /** Registries with settings. An administrator has named them, so the agent may connect to them at any IP address. */
  registries: readonly RegistrySettings[];
  /** Proxies of this host. If absent, every server is reached directly. */
  proxies?: Proxies | undefined;
}

export interface RegistryExchange {
  method: 'GET' | 'HEAD' | 'POST' | 'PUT' | 'DELETE';
  url: URL;
  headers: Readonly<Record<string, string>>;
  /** Returns the body of the request. The transport calls this function each time it sends the request. */
  body?: (() => Buffer | Readable) | undefined;
  /** Value of the header `Authorization`. The header is sent only to the host of `url`, not to hosts of redirects. */
  authorization?: string | undefined;
  /** True to accept any certificate from the host of `url`. Hosts of redirects must prove their identity in any case. */
  unverified?: boolean;
  /** False to return redirects instead of following them. The default is true. */
  followsRedirects?: boolean;
  /** Text at the beginning of error messages. */
  what: string;
}

export interface Response {
  status: number;
  headers: Dispatcher.ResponseData['headers'];
  body: Dispatcher.ResponseData['body'];
  /** URL from which the answer came, after all redirects. */
  url: URL;
}

export class RegistryTransport {
  readonly #agent: Agent;
  /** Pools of connections that do not check the certificate of the server. */
  readonly #unverified: Agent;
  readonly #settings = new Map<string, RegistrySettings & { ca?: string }>();
  readonly #addresses: Addresses;
  readonly #proxies: Proxies | undefined;

  /** Reads the files of certificate authorities. @throws Error when a file cannot be read. */
  constructor(options: RegistriesOptions) {
    this.#addresses = new Addresses({
      ...options,
      allowsLocal: options.allowLoopbackHttp,
      namedHosts: options.registries.map(({ host }) => apiHost(host)),
      advice: ADVICE,
    });
    this.#proxies = options.proxies;
    for (const settings of options.registries) {
      const ca = settings.caFile === undefined ? {} : { ca: readFileSync(settings.caFile, 'utf8') };
      // The same form of the host finds the settings again, even if the name has the default port of http or https.
      const { host } = baseUrl(settings.host, false);
      this.#settings.set(host, { ...settings, ...ca });
    }
    this.#agent = new Agent({ factory: (origin) => new Pool(origin, this.#poolOptions(origin, true)) });
    this.#unverified = new Agent({ factory: (origin) => new Pool(origin, this.#poolOptions(origin, false)) });
  }

  /** Returns the base URL of a registry's API. If `scheme` is defined, it overrides the scheme of the settings. */
  baseUrl(registry: string, scheme?: 'http' | 'https'): URL {
    const secure = baseUrl(registry, false);
    if (scheme !== undefined) {
      return scheme === 'http' ? baseUrl(registry, true) : secure;
    }
    return this.#settings.get(secure.host)?.plainHttp ? baseUrl(registry, true) : secure;
  }

  /**
   * Sends a request, follows its redirects, and returns the answer, whatever its status is.
   *
   * @throws ReasonedError or TransientError when no answer comes.
   */
  async send(exchange: RegistryExchange, signal: AbortSignal): Promise<Response> {
    try {
      return await this.#follow(exchange, signal);
    } catch (error) {
      throw networkError(error, exchange.what, signal);
    }
  }

  /** Closes all connections. Requests that are not finished fail. */
  async close(): Promise<void> {
    await Promise.all([this.#agent.destroy(), this.#unverified.destroy()]);
  }

  async #follow(exchange: RegistryExchange, signal: AbortSignal): Promise<Response> {
    let { url } = exchange;
    for (let hop = 0; hop <= REDIRECT_LIMIT; hop += 1) {
      const response = await this.#exchange(exchange, url, signal);
      if (!REDIRECTS.has(response.status) || exchange.followsRedirects === false) {
        return response;
      }
      await response.body.dump();
      url = nextUrl(exchange, url, response);
    }
    throw new ReasonedError(
      'ImageFetchFailed',
      `${exchange.what} is redirected more than ${REDIRECT_LIMIT} times`,
    );
  }

  async #exchange(exchange: RegistryExchange, url: URL, signal: AbortSignal): Promise<Response> {
    const { method, authorization } = exchange;
    // Only the host of the request receives the credentials. The storage servers to which a registry redirects must not see them, and would
    // refuse a request with them.
    const isOwn = url.origin === exchange.url.origin;
    const headers = {
      ...exchange.headers,
      ...(authorization !== undefined && isOwn ? { authorization } : {}),
    };
    const agent = isOwn && exchange.unverified === true ? this.#unverified : this.#agent;
    const request = { origin: url.origin, method, headers, body: exchange.body?.() ?? null, signal };
    return await this.#sent(agent, request, url);
  }

  /** Sends a request. With TLS, a proxy only sees a tunnel. Without TLS, it gets the request with the whole URL. */
  async #sent(
    agent: Agent,
    request: Omit<Dispatcher.RequestOptions, 'path' | 'headers'> & { headers: Record<string, string> },
    url: URL,
  ): Promise<Response> {
    const path = url.pathname + url.search;
    const proxy = url.protocol === 'http:' ? this.#proxies?.proxyFor(url) : undefined;
    if (proxy === undefined) {
      return responseOf(await agent.request({ ...request, path }), url);
    }
    const { authorization } = proxy;
    const own = authorization === undefined ? {} : { 'proxy-authorization': authorization };
    const headers = { ...request.headers, ...own };
    const response = responseOf(await agent.request({ ...request, path: url.origin + path, headers }), url);
    if (response.status === PROXY_AUTHENTICATION) {
      await response.body.dump();
      throw refusal(proxy, response.status, url.host);
    }
    return response;
  }

  #poolOptions(origin: string | URL, rejectUnauthorized: boolean): Pool.Options {
    const server = typeof origin === 'string' ? new URL(origin) : origin;
    const connect = { timeout: CONNECT_TIMEOUT_MILLISECONDS, allowH2: false, rejectUnauthorized };
    return {
      allowH2: false,
      connections: CONNECTIONS_PER_HOST,
      headersTimeout: HEADERS_TIMEOUT_MILLISECONDS,
      bodyTimeout: BODY_IDLE_TIMEOUT_MILLISECONDS,
      connect: this.#connector(server, connect),
    };
  }

  /**
   * Returns a function that opens connections to a server. For each connection it reads the file of certificate authorities, because
   * administrators replace authorities while the agent runs.
   */
  #connector(server: URL, options: ConnectOptions): buildConnector.connector {
    const { ca: first, caFile } = this.#settings.get(server.host) ?? {};
    if (first === undefined || caFile === undefined) {
      return this.#connectorWith(server, options);
    }
    let ca = first;
    let connect = this.#connectorWith(server, { ...options, ca });
    return (target, callback) => {
      const present = authoritiesIn(caFile) ?? ca;
      if (present !== ca) {
        ca = present;
        connect = this.#connectorWith(server, { ...options, ca });
      }
      connect(target, callback);
    };
  }

  #connectorWith(server: URL, tls: ConnectOptions): buildConnector.connector {
    const proxy = this.#proxies?.proxyFor(server);
    return proxy === undefined
      ? this.#addresses.connector(tls)
      : proxiedConnector(proxy, this.#addresses, tls);
  }
}

function responseOf({ statusCode: status, headers, body }: Dispatcher.ResponseData, url: URL): Response {
  return { status, headers, body, url };
}

/** Returns the text of a file of certificate authorities. The result is undefined if the file cannot be read or has no certificate. */
function authoritiesIn(caFile: string): string | undefined {
  try {
    const text = readFileSync(caFile, 'utf8');
    // This call throws if the text has no certificate, for example because the file is only half written.
    void new X509Certificate(text);
    return text;
  } catch {
    return undefined;
  }
}

/**
 * Returns the URL to which a redirect leads. The transport follows every redirect of a GET or HEAD request. For other methods, it follows
 * only redirects with the statuses 307 and 308, because only these statuses preserve the method.
 *
 * @throws ReasonedError when the redirect must not be followed.
 */
function nextUrl(exchange: RegistryExchange, url: URL, { status, headers }: Response): URL {
  const { location } = headers;
  const mayFollow = status >= 307 || exchange.method === 'GET' || exchange.method === 'HEAD';
  if (typeof location !== 'string' || !URL.canParse(location, url.href) || !mayFollow) {
    throw new ReasonedError(
      'ImageFetchFailed',
      `${exchange.what}: ${url.host} answered ${status} without a usable redirect`,
    );
  }
  const next = new URL(location, url);
  // A redirect's URL can contain credentials. They are removed, because credentials must not go to other hosts.
  next.username = '';
  next.password = '';
  checkNoDowngrade(url, next, exchange.what);
  return next;
}

/** Refuses protocols other than http and https, and a change from https to http. @throws ReasonedError when `to` is refused. */
export function checkNoDowngrade(from: URL, to: URL, what: string): void {
  if (to.protocol === 'https:' || (to.protocol === 'http:' && from.protocol === 'http:')) {
    return;
  }
  // A registry builds such URLs if it does not know that a proxy in front of it ends TLS.
  const advice = to.host === from.host ? '; a proxy that ends TLS must send X-Forwarded-Proto' : '';
  throw new ReasonedError(
    'ImageFetchFailed',
    `${what}: ${from.host} redirects to ${to.protocol}//${to.host}, but a change from ${from.protocol}// to ${to.protocol}// is not allowed${advice}`,
  );
}

function baseUrl(registry: string, plainHttp: boolean | undefined): URL {
  return new URL(`${plainHttp === true ? 'http' : 'https'}://${apiHost(registry)}`);
}
