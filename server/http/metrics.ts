/** Counts and logs requests. */
import { Counter, Gauge, Histogram, type Registry } from 'prom-client';
import type { App } from './app.ts';
import { REQUEST_ID } from './errors.ts';

/** Upper bounds of the buckets in seconds. A request for one object takes milliseconds, and a deployment takes minutes. */
const BUCKETS = [0.005, 0.025, 0.1, 0.25, 0.5, 1, 5, 15, 60, 300, 600];
/**
 * Value of the label `route` for requests that match no route. Their paths are not used as values, because clients could choose too many
 * different paths.
 */
const NO_ROUTE = 'none';

/** Counts requests and measures how long they take. `waiting` returns the number of requests that wait, for example for a VM. */
export function addMetrics(app: App, registry: Registry, waiting: () => number): void {
  const registers = [registry];
  const labelNames = ['method', 'route'] as const;
  const durations = new Histogram({
    name: 'berth_http_request_duration_seconds',
    help: 'Seconds from the arrival of a request until its answer is sent',
    labelNames,
    buckets: BUCKETS,
    registers,
  });
  const requests = new Counter({
    name: 'berth_http_requests_total',
    help: 'Requests of clients, by route and status code of the answer',
    labelNames: ['method', 'route', 'code'] as const,
    registers,
  });
  // oxlint-disable-next-line no-new -- The registry keeps the gauge.
  new Gauge({
    name: 'berth_http_waiting_requests',
    help: 'Requests that wait for a VM or an emulator to run, or for the deletion of a VM',
    registers,
    collect() {
      this.set(waiting());
    },
  });
  app.addHook('onResponse', (request, reply, next) => {
    const { method } = request;
    const route = request.routeOptions.url ?? NO_ROUTE;
    requests.inc({ method, route, code: reply.statusCode });
    durations.observe({ method, route }, reply.elapsedTime / 1000);
    next();
  });
}

/** Longest path in a line, in characters. Longer paths are cut. */
const PATH_CHARACTERS = 256;
/** Methods that change nothing. */
const READING: ReadonlySet<string> = new Set(['GET', 'HEAD', 'OPTIONS']);
/**
 * Statuses of refused requests that are only logged at the level `debug`. Somebody without a token, or with too many requests, could fill the
 * log with them.
 */
const COMMON_REFUSALS: ReadonlySet<number> = new Set([401, 429]);

declare module 'fastify' {
  interface FastifyRequest {
    /** Name of the caller, for the log. It is absent before the API server has confirmed the token. */
    username?: string;
  }
}

/**
 * Adds the id of the request to each answer. Logs each request that changes something, and each failure of the server. Other requests are
 * logged at the level `debug`. A line has no query, no body and no token.
 */
export function logRequests(app: App): void {
  app.decorateRequest('username');
  app.addHook('onRequest', (request, reply, next) => {
    void reply.header(REQUEST_ID, request.id);
    next();
  });
  app.addHook('onResponse', (request, reply, next) => {
    const { method, url, username } = request;
    const { statusCode: status } = reply;
    const changes = !READING.has(method) && !COMMON_REFUSALS.has(status);
    const level = status >= 500 ? 'warn' : changes ? 'info' : 'debug';
    const path = url.split('?')[0]?.slice(0, PATH_CHARACTERS);
    const milliseconds = Math.round(reply.elapsedTime);
    request.log[level]({ method, path, status, username, milliseconds }, 'Request answered');
    next();
  });
}
