/** Metrics of the requests that clients send to the HTTP API. */
import { Counter, Gauge, Histogram, type Registry } from 'prom-client';
import type { App } from './app.ts';

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
