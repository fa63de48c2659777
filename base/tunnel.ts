/** Opens connections through HTTP proxies, with the method CONNECT. */
import { once } from 'node:events';
import type { ClientRequest, IncomingMessage } from 'node:http';
import type { Socket } from 'node:net';
import { buildConnector } from 'undici';
import { messageOf } from './errors.ts';
import type { Proxy } from './proxy.ts';

/** Cause of a failure: the proxy does not answer, it refuses the connection, or it cannot open the connection at present. */
export type ProxyErrorCode = 'PROXY_UNREACHABLE' | 'PROXY_REFUSED' | 'PROXY_FAILED';

/** Error of a proxy. The message names the proxy without its credentials. */
export class ProxyError extends Error {
  override readonly name = 'ProxyError';
  readonly code: ProxyErrorCode;

  constructor(code: ProxyErrorCode, message: string, options?: ErrorOptions) {
    super(message, options);
    this.code = code;
  }
}

export interface TunnelOptions {
  /** Host to which the proxy connects. An IPv6 address has no brackets. */
  host: string;
  port: number;
  timeoutMilliseconds: number;
}

/**
 * Resolves with a connection to the host once the proxy has opened it. The caller closes the connection.
 *
 * @throws ProxyError when the proxy does not open it in time.
 */
export async function openTunnel(proxy: Proxy, options: TunnelOptions): Promise<Socket> {
  const target = `${options.host.includes(':') ? `[${options.host}]` : options.host}:${options.port}`;
  const { origin } = proxy;
  const late = new AbortController();
  const timer = setTimeout(
    () => late.abort(new Error('the time limit is over')),
    options.timeoutMilliseconds,
  );
  try {
    const sent = await connectRequest(proxy, target, late.signal);
    const [answer, socket, first] = (await once(sent, 'connect')) as [IncomingMessage, Socket, Buffer];
    if (answer.statusCode === 200) {
      socket.unshift(first);
      return socket;
    }
    socket.destroy();
    throw refusal(proxy, answer.statusCode ?? 0, target);
  } catch (error) {
    if (error instanceof ProxyError) {
      throw error;
    }
    const cause: unknown = late.signal.aborted ? late.signal.reason : error;
    const message = `The proxy ${origin.origin} does not answer: ${messageOf(cause)}`;
    throw new ProxyError('PROXY_UNREACHABLE', message, { cause });
  } finally {
    clearTimeout(timer);
  }
}

/** Settings of connections: TLS settings, and the time limit of each step in milliseconds. */
export type ConnectOptions = buildConnector.BuildOptions & { timeout: number };

/** Returns a connector for undici that reaches servers through tunnels. `options` has the TLS settings of the servers. */
export function tunnelConnector(proxy: Proxy, options: ConnectOptions): buildConnector.connector {
  const secure = buildConnector(options);
  return (target, callback) => void connectThrough(proxy, secure, options.timeout, target, callback);
}

async function connectThrough(
  proxy: Proxy,
  secure: buildConnector.connector,
  timeoutMilliseconds: number,
  target: buildConnector.Options,
  callback: buildConnector.Callback,
): Promise<void> {
  const isSecure = target.protocol === 'https:';
  const host = target.hostname.replace(/^\[|\]$/g, '');
  const port = Number(target.port || (isSecure ? 443 : 80));
  let httpSocket: Socket;
  try {
    httpSocket = await openTunnel(proxy, { host, port, timeoutMilliseconds });
  } catch (error) {
    callback(error as Error, null);
    return;
  }
  if (isSecure) {
    secure({ ...target, httpSocket }, callback);
  } else {
    callback(null, httpSocket);
  }
}

/** Returns the error for a proxy's answer that is not from the server. `target` is the host with its port. */
export function refusal({ origin }: Proxy, status: number, target: string): ProxyError {
  const code = status >= 500 ? 'PROXY_FAILED' : 'PROXY_REFUSED';
  return new ProxyError(code, `The proxy ${origin.origin} answered ${status} to a connection to ${target}`);
}

async function connectRequest(
  { origin, authorization }: Proxy,
  target: string,
  signal: AbortSignal,
): Promise<ClientRequest> {
  const { request } = origin.protocol === 'https:' ? await import('node:https') : await import('node:http');
  const sent = request({
    method: 'CONNECT',
    host: origin.hostname.replace(/^\[|\]$/g, ''),
    port: origin.port || undefined,
    path: target,
    headers: { host: target, ...(authorization !== undefined && { 'proxy-authorization': authorization }) },
    agent: false,
    signal,
  });
  sent.end();
  return sent;
}
