/** Serves the HTTPS endpoints of a kubelet: logs and streams of machines, metrics, and `/readyz`. */
import { readFileSync } from 'node:fs';
import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Server } from 'node:https';
import { isIPv6 } from 'node:net';
import { Readable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { isDeepStrictEqual } from 'node:util';
import type { Logger } from 'pino';
import type { Registry } from 'prom-client';
import type { Authorizer } from '../../kube/serving/authorization.ts';
import { type Certificate, parseValidity } from '../../kube/certificates/certificate.ts';
import { keepConnection } from '../../kube/serving/connections.ts';
import { HttpError } from '../../kube/serving/httperror.ts';
import { createServer, holdOpen, listen, reply, type RunningServer } from '../../kube/serving/httpserver.ts';
import { acceptUpgrades, type Upgrade } from '../../kube/serving/upgrades.ts';
import { useCertificate } from '../../kube/certificates/serving.ts';
import { OpenLimit } from './limit.ts';
import { type LogSource, parseLogRequest, type StreamTargets, type TransferSource } from './targets.ts';
import { RESOURCE_CONTENT_TYPE, type ResourceMetrics } from './resources.ts';
import { isStreamKind } from './streams/streamrequest.ts';
import { StreamServer } from './streamserver.ts';

/** Time between two reads of the file with the authorities of callers. A kubelet reads its file as often. */
const LOOK_MILLISECONDS = 60_000;

/** Subresource of the Node for which a caller needs a permission: `metrics` for the metrics, or `proxy` for all access to machines. */
type Subresource = 'proxy' | 'metrics';

export interface KubeletServerOptions {
  nodeName: string;
  listenAddress: string;
  port: number;
  /** File with the certificate authority that signed the API server's client certificate. The server follows changes of the file. */
  clientCAFile: string | undefined;
  certificate: Certificate;
  authorizer: Authorizer;
  logs: LogSource;
  streams: StreamTargets;
  transfers: TransferSource;
  /**
   * Returns the reason why a joined host accepts no VMs, or undefined if the host accepts VMs. The reason must contain no secret, because
   * every caller can read it.
   */
  unready: () => string | undefined;
  metrics: Registry;
  resources: Pick<ResourceMetrics, 'text'>;
  logger: Logger;
}

interface Route {
  subresource: Subresource;
  /** Serves a request. The signal aborts when the caller has closed the connection. */
  serve: (url: URL, response: ServerResponse, signal: AbortSignal) => Promise<void>;
}

export class KubeletServer {
  /** Whether the host has joined the cluster. The server also answers before that, but `/readyz` reports a fault until that moment. */
  hasJoined = false;
  readonly #options: KubeletServerOptions;
  readonly #server: Server;
  readonly #readers = new OpenLimit('logs');
  readonly #streams: StreamServer;
  #certificate: Certificate;
  /** The authorities in use. */
  #authorities: Buffer[];
  #look: NodeJS.Timeout | undefined;
  #running: RunningServer | undefined;

  constructor(options: KubeletServerOptions) {
    this.#options = options;
    const { certificate, clientCAFile, streams: targets, transfers, metrics, logger } = options;
    this.#streams = new StreamServer({ targets, transfers, metrics, logger });
    this.#server = createServer((request, response, url) => this.#handle(request, response, url), {
      logger,
      // TLS accepts callers without a valid certificate, because they can have a token. Each request is checked later.
      tls: { requestCert: true, rejectUnauthorized: false },
    });
    acceptUpgrades(this.#server, (upgrade) => this.#upgrade(upgrade), logger);
    this.#certificate = certificate;
    this.#authorities = authoritiesIn(clientCAFile);
    this.#use(this.#certificate, this.#authorities);
  }

  /** Starts to listen and returns the port. */
  async listen(): Promise<number> {
    const { listenAddress, port } = this.#options;
    const host = isIPv6(listenAddress) ? `[${listenAddress}]` : listenAddress;
    this.#running = await listen(this.#server, `${host}:${port}`);
    this.#look = setInterval(() => this.#followAuthorities(), LOOK_MILLISECONDS).unref();
    return this.#running.port;
  }

  /** Replaces the certificate for new connections. */
  replaceCertificate(certificate: Certificate): void {
    this.#use(certificate, this.#authorities);
  }

  #use(certificate: Certificate, authorities: Buffer[]): void {
    useCertificate(this.#server, certificate, authorities);
    this.#certificate = certificate;
    this.#authorities = authorities;
  }

  /**
   * Uses changed authorities for new connections. While their file cannot be read, or has no certificate, the server keeps the authorities in
   * use.
   */
  #followAuthorities(): void {
    try {
      const authorities = authoritiesIn(this.#options.clientCAFile);
      if (!isDeepStrictEqual(authorities, this.#authorities)) {
        for (const file of authorities) {
          // This call throws if the file has no certificate.
          parseValidity(file.toString());
        }
        this.#use(this.#certificate, authorities);
      }
    } catch (error) {
      this.#options.logger.error({ err: error }, 'The certificate authorities of clients could not be read');
    }
  }

  async close(): Promise<void> {
    clearInterval(this.#look);
    await this.#streams.close();
    await this.#running?.close();
  }

  async #handle(request: IncomingMessage, response: ServerResponse, url: URL): Promise<void> {
    const closed = new AbortController();
    response.on('close', () => closed.abort());
    try {
      await this.#answer(request, response, url, closed.signal);
    } catch (error) {
      // If the caller has closed the connection, nobody needs the error.
      if (!closed.signal.aborted) {
        throw error;
      }
    }
  }

  async #answer(
    request: IncomingMessage,
    response: ServerResponse,
    url: URL,
    signal: AbortSignal,
  ): Promise<void> {
    if (url.pathname === '/readyz') {
      const reason = this.hasJoined ? this.#options.unready() : 'This host has not joined the cluster yet';
      endWith(response, reason === undefined ? 200 : 503, reason ?? 'ok');
      return;
    }
    const route = this.#route(url.pathname);
    if (route === undefined) {
      endWith(response, 404, 'not found');
      return;
    }
    await this.#admit(request, route.subresource, request.method === 'POST' ? 'create' : 'get');
    await route.serve(url, response, signal);
  }

  /**
   * Checks the identity and the permission of the caller. @throws HttpError 401 when the caller has neither a certificate of a trusted
   * authority nor a token that a TokenReview accepts; HttpError 403 when the caller has no permission.
   */
  async #admit(request: IncomingMessage, subresource: Subresource, verb: 'create' | 'get'): Promise<void> {
    const { authorizer, nodeName } = this.#options;
    const user = await authorizer.identify(request);
    if (user === undefined) {
      throw new HttpError(401, 'Unauthorized');
    }
    const resourceAttributes = { verb, version: 'v1', resource: 'nodes', subresource, name: nodeName };
    if (await authorizer.authorize(user, { resourceAttributes })) {
      keepConnection(request.socket, user.username ?? '');
      return;
    }
    const what = `user=${user.username}, verb=${verb}, resource=nodes, subresource=${subresource}`;
    throw new HttpError(403, `Forbidden (${what})`);
  }

  /** Serves a stream. The caller needs the permission `create`, even for a GET request, because all WebSocket clients send GET. */
  async #upgrade(upgrade: Upgrade): Promise<void> {
    const [, kind = ''] = upgrade.url.pathname.split('/');
    if (!isStreamKind(kind)) {
      throw new HttpError(400, 'A request to this path cannot upgrade the connection');
    }
    await this.#admit(upgrade.request, 'proxy', 'create');
    await this.#streams.serve(kind, upgrade);
  }

  #route(path: string): Route | undefined {
    // A kubelet has other metrics below /metrics. Programs that read them must not get the metrics of the agent again.
    if (path === '/metrics') {
      return { subresource: 'metrics', serve: (_, response) => this.#metrics(response) };
    }
    if (path === '/metrics/resource') {
      return { subresource: 'metrics', serve: (_, response) => this.#resources(response) };
    }
    const [, verb = ''] = path.split('/');
    switch (verb) {
      case 'containerLogs':
        return { subresource: 'proxy', serve: (url, response, signal) => this.#logs(url, response, signal) };
      case 'exec':
      case 'attach':
      case 'portForward':
        return {
          subresource: 'proxy',
          serve: async (_, response) => endWith(response, 400, `${verb} needs an upgrade of the connection`),
        };
      default:
        return undefined;
    }
  }

  async #logs(url: URL, response: ServerResponse, signal: AbortSignal): Promise<void> {
    const asked = parseLogRequest(url, Date.now());
    await this.#readers.count(asked.namespace, asked.pod, async () => {
      const lines = await this.#options.logs(asked, signal);
      response.writeHead(200, { 'Content-Type': 'text/plain; charset=utf-8' });
      // The headers are sent at once, so that the caller knows that the log is open. A quiet console can send nothing for a long time.
      holdOpen(response);
      response.flushHeaders();
      await pipeline(Readable.from(lines), response, { signal });
    });
  }

  async #metrics(response: ServerResponse): Promise<void> {
    const { metrics } = this.#options;
    const text = await metrics.metrics();
    response.writeHead(200, { 'Content-Type': metrics.contentType });
    response.end(text);
  }

  async #resources(response: ServerResponse): Promise<void> {
    const text = await this.#options.resources.text();
    response.writeHead(200, { 'Content-Type': RESOURCE_CONTENT_TYPE });
    response.end(text);
  }
}

/**
 * Returns the certificate authorities for callers' certificates. If no file is configured, the list is empty. The result is never
 * undefined, because Node.js trusts the public authorities if the list is undefined.
 */
function authoritiesIn(file: string | undefined): Buffer[] {
  return file === undefined ? [] : [readFileSync(file)];
}

/** Sends a text for a person, and ends the response. */
function endWith(response: ServerResponse, status: number, text: string): void {
  reply(response, status, `${text}\n`);
}
