/**
 * Declares metrics of controllers, caches and the API client. Most have the names that dashboards know from controller-runtime and
 * client-go.
 */
import { Counter, collectDefaultMetrics, Gauge, Histogram, Registry } from 'prom-client';
import { unhandledRejections } from './program.ts';

/** Buckets of controller-runtime's `controller_runtime_reconcile_time_seconds`. */
const RECONCILE_BUCKETS = [
  0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.25, 1.5,
  1.75, 2, 2.5, 3, 3.5, 4, 4.5, 5, 6, 7, 8, 9, 10, 15, 20, 25, 30, 40, 50, 60,
];
/** Buckets of controller-runtime's workqueue histograms: twelve powers of ten, from 1e-8 on. */
const QUEUE_BUCKETS = [1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1, 10, 100, 1000];
/** Buckets of client-go's `rest_client_request_duration_seconds`. */
const REQUEST_BUCKETS = [0.005, 0.025, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60];

/**
 * Gauges of prom-client whose names wrongly have the suffix of counters. They are removed, because `promtool check metrics` reports them as
 * mistakes. The gauges without the suffix contain the same numbers, separately for each type.
 */
const MISNAMED = [
  'nodejs_active_handles_total',
  'nodejs_active_requests_total',
  'nodejs_active_resources_total',
];

export type RuntimeMetrics = ReturnType<typeof declare>;

const declared = new WeakMap<Registry, RuntimeMetrics>();

/** Creates a registry with the metrics of Node.js and all metrics that this module declares. */
export function createMetrics(): Registry {
  const registry = new Registry();
  collectDefaultMetrics({ register: registry });
  for (const name of MISNAMED) {
    registry.removeSingleMetric(name);
  }
  runtimeMetrics(registry);
  return registry;
}

/** Returns this module's metrics in the given registry. The first call for a registry declares the metrics there. */
export function runtimeMetrics(registry: Registry): RuntimeMetrics {
  const known = declared.get(registry);
  if (known !== undefined) {
    return known;
  }
  const metrics = declare(registry);
  declared.set(registry, metrics);
  return metrics;
}

function declare(registry: Registry) {
  /** Functions that are called before each scrape. They compute gauges that only a scrape needs. */
  const beforeScrape = new Set<() => void>();
  return {
    beforeScrape,
    ...declareReconciles([registry], beforeScrape),
    ...declareQueues([registry]),
    ...declareClient([registry]),
    ...declareRest([registry]),
  };
}

function declareReconciles(registers: Registry[], beforeScrape: ReadonlySet<() => void>) {
  const labelNames = ['controller'] as const;
  return {
    reconciles: new Counter({
      name: 'controller_runtime_reconcile_total',
      help: 'Total number of reconciliations per controller',
      labelNames: ['controller', 'result'] as const,
      registers,
    }),
    reconcileErrors: new Counter({
      name: 'controller_runtime_reconcile_errors_total',
      help: 'Total number of reconciliation errors per controller',
      labelNames,
      registers,
    }),
    terminalErrors: new Counter({
      name: 'controller_runtime_terminal_reconcile_errors_total',
      help: 'Total number of terminal reconciliation errors per controller',
      labelNames,
      registers,
    }),
    panics: new Counter({
      name: 'controller_runtime_reconcile_panics_total',
      help: 'Total number of reconciliations that failed because of a programming error, for example a TypeError, per controller',
      labelNames,
      registers,
    }),
    timeouts: new Counter({
      name: 'controller_runtime_reconcile_timeouts_total',
      help: 'Total number of reconciliations that took longer than the time limit, per controller',
      labelNames,
      registers,
    }),
    reconcileTime: new Histogram({
      name: 'controller_runtime_reconcile_time_seconds',
      help: 'Length of time per reconciliation per controller',
      labelNames,
      buckets: RECONCILE_BUCKETS,
      registers,
    }),
    maximumReconciles: new Gauge({
      name: 'controller_runtime_max_concurrent_reconciles',
      help: 'Maximum number of concurrent reconciles per controller',
      labelNames,
      registers,
    }),
    activeWorkers: new Gauge({
      name: 'controller_runtime_active_workers',
      help: 'Number of currently used workers per controller',
      labelNames,
      registers,
      // A scrape collects this gauge first. Therefore this gauge calls the functions of `beforeScrape`, which compute the other gauges.
      collect() {
        for (const compute of beforeScrape) {
          compute();
        }
      },
    }),
    staleSkips: new Counter({
      name: 'berth_stale_sync_skips_total',
      help: 'Number of delayed reconciliations per controller. They wait until a cache contains the last change by this process',
      labelNames,
      registers,
    }),
  };
}

function declareQueues(registers: Registry[]) {
  const labelNames = ['name', 'controller'] as const;
  return {
    queueDepth: new Gauge({
      name: 'workqueue_depth',
      help: 'Current depth of workqueue',
      labelNames: ['name', 'controller', 'priority'] as const,
      registers,
    }),
    queueAdds: new Counter({
      name: 'workqueue_adds_total',
      help: 'Total number of adds handled by workqueue',
      labelNames,
      registers,
    }),
    queueRetries: new Counter({
      name: 'workqueue_retries_total',
      help: 'Total number of retries handled by workqueue',
      labelNames,
      registers,
    }),
    queueDuration: new Histogram({
      name: 'workqueue_queue_duration_seconds',
      help: 'Seconds that an item waits in the workqueue before its processing begins',
      labelNames,
      buckets: QUEUE_BUCKETS,
      registers,
    }),
    workDuration: new Histogram({
      name: 'workqueue_work_duration_seconds',
      help: 'Seconds that the processing of one item of the workqueue takes',
      labelNames,
      buckets: QUEUE_BUCKETS,
      registers,
    }),
    unfinishedWork: new Gauge({
      name: 'workqueue_unfinished_work_seconds',
      help: 'Seconds spent so far on items whose processing has not ended yet',
      labelNames,
      registers,
    }),
    longestRunning: new Gauge({
      name: 'workqueue_longest_running_processor_seconds',
      help: 'Seconds since the start of the oldest processing that has not ended yet',
      labelNames,
      registers,
    }),
  };
}

function declareClient(registers: Registry[]) {
  return {
    leader: new Gauge({
      name: 'leader_election_master_status',
      help: '1 if this process holds the named lease and so is the leader, otherwise 0',
      labelNames: ['name'] as const,
      registers,
    }),
    slowPath: new Counter({
      name: 'leader_election_slowpath_total',
      help: 'Number of lease renewals for which this process first had to read the lease again',
      labelNames: ['name'] as const,
      registers,
    }),
    relists: new Counter({
      name: 'berth_reflector_relists_total',
      help: 'Reads of all objects of a resource type, by reason',
      labelNames: ['resource', 'reason'] as const,
      registers,
    }),
    cuts: new Counter({
      name: 'berth_reflector_cuts_total',
      help: 'Watches that this process ended and resumed, because no data came or because data came too late',
      labelNames: ['resource', 'reason'] as const,
      registers,
    }),
    lastEvent: new Gauge({
      name: 'berth_reflector_last_event_timestamp_seconds',
      help: 'Unix time of the last event or bookmark from a watch, per resource type',
      labelNames: ['resource'] as const,
      registers,
    }),
    storeVersion: new Gauge({
      name: 'store_resource_version',
      help: 'Latest resourceVersion in the cache, per resource type',
      labelNames: ['resource'] as const,
      registers,
    }),
    storeObjects: new Gauge({
      name: 'berth_reflector_objects',
      help: 'Number of cached objects, per resource type',
      labelNames: ['resource'] as const,
      registers,
    }),
    certificateEnd: new Gauge({
      name: 'berth_certificate_expiration_timestamp_seconds',
      help: 'Unix time when a certificate of this process expires. The label serving means its server certificate, and client means its client certificate for the API server. The label http means the certificate that the HTTP API shows to its clients',
      labelNames: ['certificate'] as const,
      registers,
    }),
    unhandledRejections: new Counter({
      name: 'berth_unhandled_rejections_total',
      help: 'Rejected promises that no code handled. Each one is a fault of the program. The program logs the rejection and continues',
      registers,
      collect() {
        this.reset();
        this.inc(unhandledRejections());
      },
    }),
    eventsSent: new Counter({
      name: 'berth_events_total',
      help: 'Number of Events, by the result of recording them',
      labelNames: ['result'] as const,
      registers,
    }),
  };
}

function declareRest(registers: Registry[]) {
  return {
    requests: new Counter({
      name: 'rest_client_requests_total',
      help: 'Number of HTTP requests, partitioned by status code, method, and host',
      labelNames: ['code', 'method', 'host'] as const,
      registers,
    }),
    requestDuration: new Histogram({
      name: 'rest_client_request_duration_seconds',
      help: 'Request latency in seconds, by method and host',
      labelNames: ['verb', 'host'] as const,
      buckets: REQUEST_BUCKETS,
      registers,
    }),
    requestRetries: new Counter({
      name: 'rest_client_request_retries_total',
      help: 'Number of request retries, partitioned by status code, method, and host',
      labelNames: ['code', 'verb', 'host'] as const,
      registers,
    }),
  };
}
