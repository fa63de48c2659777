/** Metrics over HTTPS, to those who may read them; health over plain HTTP, to all. */
import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Logger } from 'pino';
import type { Registry } from 'prom-client';
import type { Authorizer } from './authorization.ts';
import { createServer, listen, reply, type RunningServer } from './httpserver.ts';
import { runtimeMetrics } from './metrics.ts';
import { type CertificateProvider, serveCertificate } from './servingcertificate.ts';

export interface MetricsServerOptions {
  /** `host:port` or `:port`, which is every address; port 0 takes a free one. */
  listen: string;
  metrics: Registry;
  /** Readers need the right to `get` the path `/metrics`. */
  authorizer: Authorizer;
  certificates: CertificateProvider;
  logger: Logger;
  /** How often the certificate is looked at; 10 s when absent. */
  lookMilliseconds?: number;
}

/** Answers why something is not well, in words for the log, or undefined when it is. Must be cheap, and ask no other machine. */
export type Check = () => string | undefined;

export interface HealthServerOptions {
  listen: string;
  /** By name. */
  live: Record<string, Check>;
  ready: Record<string, Check>;
  logger: Logger;
}

/** `/metrics` as controller-runtime serves it: 401 without a good token, 403 to who may not, 500 when that cannot be asked. */
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

/** `/healthz` and `/readyz`, `/healthz/NAME`, `?verbose`, `?exclude=NAME`, as Kubernetes' own components answer. */
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
  return await listen(createServer(answer, { logger: o.logger }), o.listen);
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
  /** Names of checks that failed when last looked at: only a change is logged, probes come every few seconds. */
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
