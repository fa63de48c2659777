/**
 * Serves the metrics over HTTPS to callers that have the right to read them. Serves the results of health checks over plain HTTP to
 * everybody.
 */
import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Logger } from 'pino';
import type { Registry } from 'prom-client';
import type { Authorizer } from './authorization.ts';
import { keepConnection } from './connections.ts';
import { createServer, listen, closeAfterAnswer, reply, type RunningServer } from './httpserver.ts';
import { runtimeMetrics } from '../metrics.ts';
import { type CertificateProvider, serveCertificate } from '../certificates/serving.ts';

export interface MetricsServerOptions {
  /** Address of the server: `host:port`, or `:port` for every address of the host. If the port is 0, the system chooses a free port. */
  listen: string;
  metrics: Registry;
  /** Checks the callers. A caller needs the right to `get` the path `/metrics`. */
  authorizer: Authorizer;
  certificates: CertificateProvider;
  logger: Logger;
  /** Interval in milliseconds between two reads of the certificate. The default is 10 s. */
  lookMilliseconds?: number;
}

/**
 * Health check. Returns the fault as a text for the log, or undefined if there is no fault. The check must be fast and must not contact
 * other computers.
 */
export type Check = () => string | undefined;

export interface HealthServerOptions {
  listen: string;
  /** Health checks by name. */
  live: Record<string, Check>;
  ready: Record<string, Check>;
  logger: Logger;
}

/**
 * Serves `/metrics` as controller-runtime does. A caller without a valid token gets 401. A caller without the right gets 403. If the API
 * server does not answer, the caller gets 500.
 */
export async function serveMetrics(o: MetricsServerOptions): Promise<RunningServer> {
  const ended = new AbortController();
  const server = createServer((request, response, url) => answerMetrics(o, request, response, url), {
    logger: o.logger,
    tls: {},
  });
  await serveCertificate(server, {
    provider: o.certificates,
    logger: o.logger,
    signal: ended.signal,
    lookMilliseconds: o.lookMilliseconds,
    onServed: (notAfter) =>
      runtimeMetrics(o.metrics).certificateEnd.set({ certificate: 'serving' }, notAfter.getTime() / 1000),
  });
  const running = await listen(server, o.listen);
  return {
    port: running.port,
    close: async () => {
      ended.abort();
      await running.close();
    },
  };
}

/** Serves `/healthz`, `/readyz`, `/healthz/NAME`, `?verbose` and `?exclude=NAME`, as the components of Kubernetes do. */
export async function serveHealth(o: HealthServerOptions): Promise<RunningServer> {
  const failing = new Set<string>();
  const checksOf = new Map([
    ['healthz', o.live],
    ['readyz', o.ready],
  ]);
  const answer = (_: IncomingMessage, response: ServerResponse, url: URL): void => {
    const [, path = '', name] = url.pathname.split('/');
    const checks = checksOf.get(path);
    const chosen = checks && Object.entries(checks).filter(([one]) => name === undefined || name === one);
    if (chosen === undefined || (name !== undefined && chosen.length === 0)) {
      return reply(response, 404, 'Not Found');
    }
    const excluded = url.searchParams.getAll('exclude');
    answerHealth(response, {
      path,
      checks: chosen.filter(([one]) => !excluded.includes(one)),
      verbose: url.searchParams.has('verbose'),
      failing,
      logger: o.logger,
    });
  };
  const server = createServer(answer, { logger: o.logger });
  closeAfterAnswer(server);
  return await listen(server, o.listen);
}

async function answerMetrics(
  o: MetricsServerOptions,
  request: IncomingMessage,
  response: ServerResponse,
  { pathname: path }: URL,
): Promise<void> {
  const user = await o.authorizer.identify(request);
  if (user === undefined) {
    response.setHeader('www-authenticate', 'Bearer');
    return reply(response, 401, 'Unauthorized');
  }
  const allowed = await o.authorizer.authorize(user, { nonResourceAttributes: { path, verb: 'get' } });
  if (!allowed) {
    return reply(response, 403, 'Forbidden');
  }
  keepConnection(request.socket, user.username ?? '');
  if (path !== '/metrics') {
    return reply(response, 404, 'Not Found');
  }
  if (request.method !== 'GET') {
    return reply(response, 405, 'Method Not Allowed');
  }
  const text = await o.metrics.metrics();
  reply(response, 200, text, o.metrics.contentType);
}

interface HealthQuestion {
  path: string;
  checks: [string, Check][];
  verbose: boolean;
  /** Names of the checks that failed at the last probe. Only changes of this set are logged, because a probe comes every few seconds. */
  failing: Set<string>;
  logger: Logger;
}

function answerHealth(response: ServerResponse, o: HealthQuestion): void {
  const lines: string[] = [];
  let failed = false;
  for (const [name, check] of o.checks) {
    const reason = check();
    failed ||= reason !== undefined;
    lines.push(reason === undefined ? `[+]${name} ok` : `[-]${name} failed: reason withheld`);
    logChange(o, name, reason);
  }
  lines.push(`${o.path} check ${failed ? 'failed' : 'passed'}`);
  reply(response, failed ? 500 : 200, failed || o.verbose ? `${lines.join('\n')}\n` : 'ok');
}

function logChange({ failing, logger }: HealthQuestion, check: string, reason: string | undefined): void {
  if (reason !== undefined && !failing.has(check)) {
    failing.add(check);
    logger.warn({ check, reason }, 'health check fails');
  } else if (reason === undefined && failing.delete(check)) {
    logger.info({ check }, 'health check passes again');
  }
}
